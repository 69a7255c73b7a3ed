"""Where the users' files and the collected rows of jobs are, which any Dispatcher that may lead
needs (`high-availability.storageDir`; spec 003, "High Availability").

A directory that all Dispatchers have mounted, which they use as it is; or an object store, which
has all that is acknowledged, and of which each Dispatcher has on its own disk what it has needed.

DIR/blobs, DIR/spool, and DIR/job-store with the id of the job store that these belong to. The file
is there before a Dispatcher first takes over the store. So a Dispatcher that does not find it,
although the store has had a leader, looks at another directory than that leader: one machine's own,
or one that is not mounted. It must not lead, because it would answer with no rows for jobs that
have some.

A leader that ZooKeeper does not answer goes on to take rows, because jobs would wait, although
another one may have been elected. So each leaves its epoch in DIR/leader before it reads what is
there, and who has written something reads that afterwards: if it is still its own, whoever leads
next will find what was written (invariant 20).
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple
from urllib.parse import unquote, urlsplit

from firesteel.common.checkpoints.storage import CheckpointStorage, StorageError
from firesteel.common.config import Configuration, options
from firesteel.common.ids import random_id
from firesteel.errors import FiresteelError

BLOBS, SPOOL = "blobs", "spool"
_MARKER = "job-store"
_LEADER = "leader"
_OPTION = options.HA_STORAGE_DIR.key


class BadStorage(FiresteelError):
    """A storage directory that cannot be used, or that other Dispatchers do not share."""


class SharedStorage(NamedTuple):
    directory: Path  # with blobs and spool
    copies: CheckpointStorage | None  # an object store with all that `directory` has, and more

    @staticmethod
    def of(conf: Configuration, directory: Path) -> SharedStorage:
        """As configured, else `directory`, the Dispatcher's own. Raises BadStorage."""
        configured = conf.get(options.HA_STORAGE_DIR)
        if not configured:
            return SharedStorage(directory, None)
        parts = urlsplit(configured)
        if "://" in configured and parts.scheme != "file":
            try:
                return SharedStorage(directory, CheckpointStorage(configured, option=_OPTION))
            except StorageError as error:
                raise BadStorage(str(error)) from None
        if parts.netloc not in ("", "localhost"):
            raise BadStorage(
                f"{_OPTION}: {configured!r} names another machine; give the directory at which its"
                " files are mounted here, as a path or file:///PATH"
            )
        path = Path(unquote(parts.path)) if parts.scheme == "file" else Path(configured)
        if not path.is_absolute():
            raise BadStorage(
                f"{_OPTION}: {configured!r} is another directory for each working directory;"
                " give an absolute path"
            )
        return SharedStorage(path, None)

    @property
    def uri(self) -> str:
        return self._files.uri

    def check(self, *, store_id: str, had_leader: bool) -> None:
        """Writes a file there and reads it, and looks for that of the job store's earlier leaders.

        Raises BadStorage if the directory is not theirs.
        """
        files = self._files
        try:
            _write_and_read(files)
            found = files.read_unchecked(_MARKER).decode().strip() if files.exists(_MARKER) else ""
            kept = {BLOBS, SPOOL} & set(files.directories())
        except StorageError as error:
            raise self._unusable(error) from error
        if found and found != store_id:
            raise BadStorage(
                f"the storage directory {self.uri} belongs to another cluster: to the job store"
                f" {found}, and this one's is {store_id}; check database.url and {_OPTION}"
            )
        if not found and had_leader and not kept:
            raise BadStorage(
                f"the storage directory {self.uri} does not have the files and rows of this"
                f" cluster's jobs: its job store {store_id} has had a leader, which kept them in"
                f" another directory. Set {_OPTION} to one that all Dispatchers reach, or move"
                f" {BLOBS} and {SPOOL} of the earlier directory there"
            )

    def claim(self, *, store_id: str, had_leader: bool) -> None:
        """Checks the directory and makes it the job store's. Before the store is taken over."""
        self.check(store_id=store_id, had_leader=had_leader)
        try:
            self._files.write(_MARKER, [f"{store_id}\n".encode()])
        except StorageError as error:
            raise self._unusable(error) from error

    def lead(self, epoch: int) -> None:
        """Before anything is read here. Raises BadStorage."""
        try:
            self._files.write(_LEADER, [f"{epoch}\n".encode()])
        except StorageError as error:
            raise self._unusable(error) from error

    def epoch(self) -> int:
        """Of the latest leader; 0: none. Raises StorageError."""
        files = self._files
        return int(files.read_unchecked(_LEADER)) if files.exists(_LEADER) else 0

    @property
    def _files(self) -> CheckpointStorage:
        return self.copies or CheckpointStorage(str(self.directory), option=_OPTION)

    def _unusable(self, error: StorageError) -> BadStorage:
        return BadStorage(
            f"the storage directory {self.uri} cannot be written and read by this process (user"
            f" {os.getuid()}): {error}; check {_OPTION}"
        )


def _write_and_read(files: CheckpointStorage) -> None:
    probe = f".check-{random_id()[:8]}"
    files.write(probe, [probe.encode()])
    try:
        found = files.read_unchecked(probe)
    finally:
        files.delete([probe])
    if found != probe.encode():
        raise StorageError("what was written there is not what was read")
