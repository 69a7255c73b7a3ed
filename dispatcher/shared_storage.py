"""The storage of users' files and collected rows, which any Dispatcher that may lead needs
(`high-availability.storageDir`; spec 003, "High Availability").

It is a directory that all Dispatchers have mounted and use directly, or an object store that
contains everything acknowledged. Each Dispatcher keeps copies from the object store on its own disk
as it needs them.

It contains DIR/blobs, DIR/spool, and DIR/job-store with the id of the job store that owns it. That
file is written before a Dispatcher first takes over the store. If a Dispatcher does not find it
although the store has had a leader, its directory is not the leader's: it is local to one machine,
or not mounted. Such a Dispatcher must not lead, because it would return no rows for jobs that have
some.

A leader that ZooKeeper does not answer keeps accepting rows, because jobs would otherwise wait,
although another leader may have been elected. So each leader writes its epoch to DIR/leader before
it reads the content, and a writer reads that file after it has written: if it still contains the
writer's epoch, the next leader will find the written data (invariant 20).
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
    """The storage directory is unusable, or other Dispatchers do not share it."""


class SharedStorage(NamedTuple):
    directory: Path  # contains blobs and spool
    copies: CheckpointStorage | None  # an object store with at least the content of `directory`

    @staticmethod
    def of(conf: Configuration, directory: Path) -> SharedStorage:
        """Returns the configured storage, or `directory` if there is none. Raises BadStorage."""
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
                f"{_OPTION}: {configured!r} names another machine; specify the directory where its"
                " files are mounted here, as a path or file:///PATH"
            )
        path = Path(unquote(parts.path)) if parts.scheme == "file" else Path(configured)
        if not path.is_absolute():
            raise BadStorage(
                f"{_OPTION}: {configured!r} is a relative path, which depends on the working"
                " directory; specify an absolute path"
            )
        return SharedStorage(path, None)

    @property
    def uri(self) -> str:
        return self._files.uri

    def check(self, *, store_id: str, had_leader: bool) -> None:
        """Writes a file there, reads it, and looks for the marker of the job store's earlier
        leaders.

        Raises BadStorage if the directory does not belong to them.
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
                f"the storage directory {self.uri} belongs to another cluster, with the job store"
                f" {found}; the job store here is {store_id}. Check database.url and {_OPTION}"
            )
        if not found and had_leader and not kept:
            raise BadStorage(
                f"the storage directory {self.uri} does not contain the files and rows of this"
                f" cluster's jobs: the job store {store_id} has had a leader, which kept them in a"
                f" different directory. Set {_OPTION} to one that all Dispatchers reach, or move"
                f" {BLOBS} and {SPOOL} there from the earlier directory"
            )

    def claim(self, *, store_id: str, had_leader: bool) -> None:
        """Checks the directory and marks it as the job store's. Call it before the store is taken
        over.
        """
        self.check(store_id=store_id, had_leader=had_leader)
        try:
            self._files.write(_MARKER, [f"{store_id}\n".encode()])
        except StorageError as error:
            raise self._unusable(error) from error

    def lead(self, epoch: int) -> None:
        """Records this leader's epoch. Call it before any content is read. Raises BadStorage."""
        try:
            self._files.write(_LEADER, [f"{epoch}\n".encode()])
        except StorageError as error:
            raise self._unusable(error) from error

    def epoch(self) -> int:
        """Returns the epoch of the latest leader, or 0. Raises StorageError."""
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
        raise StorageError("the content read back differs from the content written")
