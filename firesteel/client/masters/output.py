"""Copies the logs of the services to standard output, which `kubectl logs` shows.

The services write files, which the REST API and `firesteel logs` read.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO

INTERVAL_S = 0.2


class Output:
    """Copies what is appended to the files from now on."""

    def __init__(self, paths: Sequence[Path], to: BinaryIO | None = None) -> None:
        self._copied = {path: _size(path) for path in paths}
        self._to = to or sys.stdout.buffer

    async def run(self) -> None:
        while True:
            self.copy()
            await asyncio.sleep(INTERVAL_S)

    def copy(self) -> None:
        with contextlib.suppress(OSError):  # a full disk
            self._copy()

    def _copy(self) -> None:
        for path, copied in self._copied.items():
            size = _size(path)
            if size == copied:
                continue
            with path.open("rb") as file:
                file.seek(copied if size > copied else 0)  # else the log has started over
                self._to.write(file.read())
                self._copied[path] = file.tell()
            self._to.flush()


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0
