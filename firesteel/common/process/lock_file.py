"""Lock files, which a process holds as long as it lives, however it ends.

The operating system releases the lock with the descriptor. So a process that acquires it knows for
certain that the previous owner is gone.
"""

from __future__ import annotations

import fcntl
import os
from pathlib import Path


class LockFile:
    """An exclusive lock on the file at `path`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._descriptor: int | None = None

    def acquire(self, *, create: bool = True) -> None:
        """Acquires the lock. Raises BlockingIOError if another process holds it.

        Without `create`, raises FileNotFoundError if there is no such file; symbolic links are
        never followed.
        """
        flags = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | (os.O_CREAT if create else 0)
        descriptor = os.open(self.path, flags, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BaseException:
            os.close(descriptor)
            raise
        self._descriptor = descriptor

    def is_held(self) -> bool:
        """Whether any process holds the lock now."""
        try:
            descriptor = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        except FileNotFoundError:
            return False
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(descriptor)
        return False

    @property
    def is_in_place(self) -> bool:
        """Whether the file that this process holds still has its path."""
        assert self._descriptor is not None, f"{self.path} is not held"
        try:
            return os.path.samestat(os.fstat(self._descriptor), os.stat(self.path))
        except OSError:
            return False

    def release(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def write_text(self, text: str) -> None:
        """Replaces the content. Only for the process that holds the lock, for its pid for
        example.
        """
        assert self._descriptor is not None, f"{self.path} is not held"
        os.ftruncate(self._descriptor, 0)
        os.pwrite(self._descriptor, text.encode(), 0)
