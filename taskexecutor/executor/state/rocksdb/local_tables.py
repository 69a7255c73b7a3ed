"""Tables of the newest checkpoints on this machine's disk.

A table never changes, so a link to the file that a task has written or restored is as good as the
checkpoint's file. A task that restores the table here, in this process or in another one, links it
and does not read the checkpoint. Missing tables are read from the checkpoint.
"""

from __future__ import annotations

import os
import tempfile
import threading
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from firesteel.common.checkpoints.state import DatabaseHandle, StateFile
from firesteel.common.process import temporary

_PURPOSE = "tables"
_CHECKPOINTS = 2  # the newest one may be incomplete, so that the one before is restored


class LocalTables:
    """The tables that this process links, those of one job, by their contents. `base` is the folder
    of databases; None: the directory of temporary files. Every method may be called from any
    thread.
    """

    def __init__(self, base: Path | None = None) -> None:
        self._base = base
        self._lock = threading.Lock()
        self._directory: Path | None = None
        self._by_checkpoint: dict[int, set[str]] = {}
        self._closed = False

    def keep(self, handle: DatabaseHandle, folder: Path) -> None:
        """Keeps the tables of the checkpoint, whose files are in `folder`, and removes those that
        only older checkpoints contain.
        """
        with self._lock:
            if self._closed:
                return
            if self._directory is None:
                self._directory = temporary.make(_PURPOSE, self._base)
            named = self._by_checkpoint.setdefault(handle.checkpoint_id, set())
            for name, file in handle.tables:
                if (name_here := _name(file)) not in named:
                    named.add(name_here)
                    with suppress(OSError):  # it exists, or is read from the checkpoint
                        os.link(folder / name, self._directory / name_here)
            self._remove_old(self._directory)

    def _remove_old(self, directory: Path) -> None:
        old = sorted(self._by_checkpoint)[:-_CHECKPOINTS]
        named = set().union(*(self._by_checkpoint.pop(checkpoint_id) for checkpoint_id in old))
        for name in named.difference(*self._by_checkpoint.values()):
            with suppress(OSError):
                (directory / name).unlink()

    def link(self, file: StateFile, path: Path) -> bool:
        """Creates `path` as a link to the table, if a process of this user keeps it here."""
        for directory in self._directories():
            here = directory / _name(file)
            with suppress(OSError):
                if directory.stat().st_uid == os.getuid() and _is_whole(here, file):
                    os.link(here, path, follow_symlinks=False)
                    return True
        return False

    def _directories(self) -> Iterable[Path]:
        pattern = f"{temporary.PREFIX}{_PURPOSE}-*"
        if self._base is not None:
            return self._base.glob(pattern)
        # Each slot's process has its own directory of temporary files, beside those of the others.
        return Path(tempfile.gettempdir()).parent.glob(f"*/{pattern}")

    def close(self) -> None:
        """Removes the links."""
        with self._lock:
            self._closed = True
            directory, self._directory = self._directory, None
        if directory is not None:
            temporary.remove(directory)


def _name(file: StateFile) -> str:
    return f"{file.checksum}.sst"


def _is_whole(path: Path, file: StateFile) -> bool:
    return not path.is_symlink() and path.stat().st_size == file.size_bytes
