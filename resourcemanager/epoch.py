"""The ResourceManager's epoch: a number that increases at every start in the same directory.

TaskExecutors and JobMasters use it to distinguish the messages of a ResourceManager from those of
its predecessor, so it must not depend on anything that can go back, such as the wall clock.
"""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from firesteel.common.ids import Epoch
from firesteel.errors import FiresteelError


class EpochFile:
    """The last epoch of ResourceManagers that are not elected, in DIR/resourcemanager.epoch."""

    def __init__(self, directory: Path) -> None:
        self._path = directory / "resourcemanager.epoch"

    def next(self) -> Epoch:
        """Returns the last epoch plus one, or 1 if there was none, once it is on disk.

        Raises FiresteelError if the file cannot be written or has unexpected content.
        """
        try:
            return self._next()
        except (OSError, ValueError) as error:
            raise FiresteelError(
                f"the ResourceManager's epoch in {self._path} cannot be raised: {error};"
                " check --dir"
            ) from error

    def _next(self) -> Epoch:
        descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        with os.fdopen(descriptor, "r+") as file:
            # Two processes that start simultaneously get two epochs.
            fcntl.flock(file, fcntl.LOCK_EX)
            text = file.read()
            complete = text[: text.rfind("\n") + 1]  # an epoch counts once its line is complete
            epochs = [int(line) for line in complete.splitlines()]
            epoch = Epoch(epochs[-1] + 1 if epochs else 1)
            file.seek(len(complete))
            file.truncate()
            file.write(f"{epoch}\n")
            file.flush()
            os.fsync(file.fileno())
        directory = os.open(self._path.parent, os.O_RDONLY)
        try:
            os.fsync(directory)  # the file may be new
        finally:
            os.close(directory)
        return epoch
