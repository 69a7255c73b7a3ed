"""The output of executors, which their worker writes to files."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path


class ExecutorOutput:
    """Copies what executors have printed to the slot's log: <folder>/<application>/<executor>/."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._positions: dict[Path, int] = {}

    def copy(self) -> None:
        """Copies whole lines that have been written since the last call."""
        for name, stream in (("stdout", sys.stdout), ("stderr", sys.stderr)):
            for path in sorted(self._folder.glob(f"*/*/{name}")):
                for line in self._new_lines(path):
                    stream.write(line)

    def _new_lines(self, path: Path) -> list[str]:
        position = self._positions.get(path, 0)
        content = b""
        with contextlib.suppress(OSError), open(path, "rb") as file:  # its worker may remove it
            file.seek(position)
            content = file.read()
        whole = content[: content.rfind(b"\n") + 1]
        self._positions[path] = position + len(whole)
        return whole.decode(errors="backslashreplace").splitlines(keepends=True)
