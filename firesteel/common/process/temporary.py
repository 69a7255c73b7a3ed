"""Temporary folders that go with their process: removed by it, or, if it was killed, by the next
one that starts.

Each folder holds a file `owner` that its process keeps locked for as long as it lives; the
operating system lets go of the lock however the process ends. So whoever can lock it knows for
certain that nobody uses the folder any more.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
import time
from pathlib import Path

PREFIX = "firesteel-"
SHARED_MEMORY = Path("/dev/shm")
KEPT_S = 7 * 24 * 3600.0  # how long a folder stays that was kept for people to look at
_OWNER, _KEPT = "owner", "kept"

_locks: dict[Path, int] = {}  # of this process; a lock is lost with its descriptor


def make(purpose: str = "", base: Path | None = None) -> Path:
    """A folder of this process, as `tempfile.mkdtemp` makes it (in `base`); `remove` it when it is
    not needed any more.
    """
    path = Path(tempfile.mkdtemp(prefix=f"{PREFIX}{purpose}-" if purpose else PREFIX, dir=base))
    # Locked before it has its name: no sweep may come between.
    unnamed = path / f"{_OWNER}.new"
    _locks[path] = os.open(unnamed, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    fcntl.flock(_locks[path], fcntl.LOCK_EX)
    unnamed.rename(path / _OWNER)
    return path


def remove(path: Path) -> None:
    shutil.rmtree(path, ignore_errors=True)
    _release(path)


def keep(path: Path) -> None:
    """Leaves the folder for people to look at, for `KEPT_S`."""
    (path / _KEPT).touch()
    _release(path)


def _release(path: Path) -> None:
    if (lock := _locks.pop(path, None)) is not None:
        os.close(lock)


def sweep(base: Path | None = None) -> list[Path]:
    """Removes the folders of processes that are no more, and returns them. Leaves alone what is not
    provably ours and theirs.

    Looks in `base`, or where temporary files go.
    """
    removed = []
    for path in (base or Path(tempfile.gettempdir())).glob(f"{PREFIX}*"):
        with contextlib.suppress(OSError):  # somebody else's, or another sweep was faster
            if not path.is_symlink() and path.stat().st_uid == os.getuid() and _is_abandoned(path):
                shutil.rmtree(path, ignore_errors=True)
                removed.append(path)
    return removed


def _is_abandoned(path: Path) -> bool:
    """Raises OSError if there is no telling: BlockingIOError when its owner lives."""
    lock = os.open(path / _OWNER, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        kept = path / _KEPT
        return not kept.exists() or time.time() - kept.stat().st_mtime > KEPT_S
    finally:
        os.close(lock)
