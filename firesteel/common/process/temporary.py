"""Temporary folders that end with their process: it removes them, or, if it was killed, the next
process that starts does.

Each folder contains a lock file, `owner`, which its process holds as long as it lives.
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
    """Creates a folder for this process, as `tempfile.mkdtemp` does; `remove` it after use.

    `base` is its parent; None for the default folder of temporary files.
    """
    path = Path(tempfile.mkdtemp(prefix=f"{PREFIX}{purpose}-" if purpose else PREFIX, dir=base))
    # The file gets its name when it is locked, so a sweep in between ignores the folder.
    unnamed = path / f"{_OWNER}.new"
    _locks[path] = LockFile(unnamed)
    _locks[path].acquire()
    unnamed.rename(path / _OWNER)
    return path


def remove(path: Path) -> None:
    shutil.rmtree(path, ignore_errors=True)
    _release(path)


def keep(path: Path) -> None:
    """Keeps the folder for a user to examine, for `KEPT_S`."""
    (path / _KEPT).touch()
    _release(path)


def _release(path: Path) -> None:
    if (lock := _locks.pop(path, None)) is not None:
        lock.release()


def sweep(base: Path | None = None) -> list[Path]:
    """Removes the folders of dead processes in `base`, or among temporary files; returns them.

    Folders of other users, and those with unknown owners, are kept.
    """
    removed = []
    for path in (base or Path(tempfile.gettempdir())).glob(f"{PREFIX}*"):
        with contextlib.suppress(OSError):  # the folder is in use, or another sweep was faster
            if not path.is_symlink() and path.stat().st_uid == os.getuid() and _is_abandoned(path):
                shutil.rmtree(path, ignore_errors=True)
                removed.append(path)
    return removed


def _is_abandoned(path: Path) -> bool:
    """Whether its owner is dead. Raises OSError if unknown: BlockingIOError if the owner lives."""
    lock = LockFile(path / _OWNER)
    lock.acquire(create=False)
    try:
        kept = path / _KEPT
        return not kept.exists() or time.time() - kept.stat().st_mtime > KEPT_S
    finally:
        lock.release()
