"""Temporary folders that end with their process: removed by it, or, if it was killed, by the next
one that starts.

Each folder holds a lock file, `owner`, that its process holds for as long as it lives.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
import time
from pathlib import Path

from firesteel.common.process.lock_file import LockFile

PREFIX = "firesteel-"
SHARED_MEMORY = Path("/dev/shm")
KEPT_S = 7 * 24 * 3600.0  # how long `keep` keeps a folder
_OWNER, _KEPT = "owner", "kept"

_locks: dict[Path, LockFile] = {}  # of this process


def make(purpose: str = "", base: Path | None = None) -> Path:
    """A folder of this process, made as `tempfile.mkdtemp` does; `remove` it when it is not needed.

    `base`: where to make it; else where temporary files go.
    """
    path = Path(tempfile.mkdtemp(prefix=f"{PREFIX}{purpose}-" if purpose else PREFIX, dir=base))
    # The file gets its name when it is locked: a sweep in between leaves the folder alone.
    unnamed = path / f"{_OWNER}.new"
    _locks[path] = LockFile(unnamed)
    _locks[path].acquire()
    unnamed.rename(path / _OWNER)
    return path


def remove(path: Path) -> None:
    shutil.rmtree(path, ignore_errors=True)
    _release(path)


def keep(path: Path) -> None:
    """Leaves the folder, for a user to look at, for `KEPT_S`."""
    (path / _KEPT).touch()
    _release(path)


def _release(path: Path) -> None:
    if (lock := _locks.pop(path, None)) is not None:
        lock.release()


def sweep(base: Path | None = None) -> list[Path]:
    """Removes the folders of dead processes, in `base` or where temporary files go; returns them.

    Folders of other users, and those whose owner is unknown, are left alone.
    """
    removed = []
    for path in (base or Path(tempfile.gettempdir())).glob(f"{PREFIX}*"):
        with contextlib.suppress(OSError):  # it is in use, or another sweep was faster
            if not path.is_symlink() and path.stat().st_uid == os.getuid() and _is_abandoned(path):
                shutil.rmtree(path, ignore_errors=True)
                removed.append(path)
    return removed


def _is_abandoned(path: Path) -> bool:
    """Raises OSError if that is unknown: BlockingIOError when its owner lives."""
    lock = LockFile(path / _OWNER)
    lock.acquire(create=False)
    try:
        kept = path / _KEPT
        return not kept.exists() or time.time() - kept.stat().st_mtime > KEPT_S
    finally:
        lock.release()
