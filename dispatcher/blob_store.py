"""Users' files, stored once per content: DIR/<xxhash3-128 of the content>.

Files that no stored job needs are deleted once no pending submission can refer to them.

With an object store that Dispatchers share, a file is written there before it is stored here, and a
file that is missing here is fetched on demand.

The only part of a request that becomes part of a path is a checked hash (invariant 24). A file
appears under its name only when it is complete and its content has that hash.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Collection, Iterable
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import BinaryIO

import xxhash

from firesteel.common.checkpoints.storage import CheckpointStorage, StorageError
from firesteel.common.ids import IdSource, is_id
from firesteel.errors import FiresteelError, PayloadTooLarge

CHUNK_BYTES = 2**20
# From a file's upload, or the answer that it exists, to its job's submission.
SUBMIT_WITHIN_S = 3600.0


class BadBlob(FiresteelError):
    """A malformed hash, or content that does not match its hash."""


class DiskFull(FiresteelError):
    """No space for the upload; no part of it is kept."""


class BlobStore:
    def __init__(
        self,
        directory: Path,
        limit_bytes: int,
        ids: IdSource | None = None,
        *,
        copies: CheckpointStorage | None = None,
    ) -> None:
        """`copies` is the object store that holds all files, if there is one."""
        self._ids = ids or IdSource()
        self._copies = copies
        self._unneeded_since: dict[str, float] = {}  # copies of files that are not here
        self._directory = directory
        self._limit_bytes = limit_bytes
        directory.mkdir(parents=True, exist_ok=True)
        for unfinished in directory.glob("*.part"):  # left by an earlier process
            unfinished.unlink(missing_ok=True)

    def path(self, blob_hash: str) -> Path:
        """Returns the blob's path, whether or not it exists. Raises BadBlob if the hash is
        malformed.
        """
        if not is_id(blob_hash):
            raise BadBlob(
                f"{blob_hash[:80]!r} is not the hash of a file:"
                " expected 32 lower-case hex characters"
            )
        return self._directory / blob_hash

    def missing(self, hashes: Iterable[str]) -> list[str]:
        """Returns the hashes to upload. Files that exist are kept for the job that will refer to
        them. Raises StorageError.
        """
        return [blob_hash for blob_hash in hashes if not self._keep(blob_hash)]

    def drop_unneeded(self, needed: Collection[str], now: float) -> list[str]:
        """Deletes files that are not `needed` and that no client has requested recently. Returns
        their hashes. `now` is in seconds since 1970. Raises StorageError.
        """
        dropped = []
        here = set()
        for path in self._directory.iterdir():
            here.add(path.name)
            if not is_id(path.name) or path.name in needed:
                continue
            with suppress(FileNotFoundError):  # a concurrent call deleted it first
                if path.stat().st_mtime < now - SUBMIT_WITHIN_S:
                    path.unlink()
                    dropped.append(path.name)
        if self._copies is not None:
            elsewhere = set(self._copies.files()) - here - set(needed)
            self._unneeded_since = {h: self._unneeded_since.get(h, now) for h in elsewhere}
            old = (h for h, at in self._unneeded_since.items() if at < now - SUBMIT_WITHIN_S)
            dropped += [h for h in old if h not in dropped]
            self._copies.delete(dropped)
        return dropped

    def _keep(self, blob_hash: str) -> bool:
        """Whether the file exists; if so, marks it as just used."""
        path = self.path(blob_hash)
        try:
            os.utime(path)
        except FileNotFoundError:
            return self._fetch(blob_hash, path)
        return True

    def _fetch(self, blob_hash: str, path: Path) -> bool:
        """Fetches the file from the object store; False if it has no copy. Raises StorageError."""
        if self._copies is None or not self._copies.exists(blob_hash):
            return False
        part = self._part(blob_hash)
        try:
            part.write_bytes(self._copies.read_unchecked(blob_hash))
            if (found := xxhash.xxh3_128_hexdigest(part.read_bytes())) != blob_hash:
                raise StorageError(
                    f"the file {blob_hash} of {self._copies.uri} is damaged: its content has the"
                    f" hash {found}"
                )
            os.replace(part, path)
        finally:
            part.unlink(missing_ok=True)
        return True

    def _part(self, blob_hash: str) -> Path:
        return self._directory / f"{blob_hash}.{self._ids.next()[:8]}.part"

    def begin(self, blob_hash: str) -> Upload:
        path = self.path(blob_hash)
        part = self._part(blob_hash)
        return Upload(path, part, blob_hash, self._limit_bytes, self._copies)

    def open(self, blob_hash: str) -> BinaryIO:
        """Opens the file for reading. Raises FileNotFoundError, BadBlob or StorageError."""
        path = self.path(blob_hash)
        if not path.exists():
            self._fetch(blob_hash, path)
        return open(path, "rb")


class Upload:
    """A file that is being received: call `write` for each chunk, then `finish`. Leaving the `with`
    block without `finish` discards it.
    """

    def __init__(
        self,
        path: Path,
        part: Path,
        blob_hash: str,
        limit_bytes: int,
        copies: CheckpointStorage | None,
    ) -> None:
        self._path = path
        self._copies = copies
        self._hash = blob_hash
        self._limit_bytes = limit_bytes
        self._part = part
        self._file: BinaryIO | None = None
        self._digest = xxhash.xxh3_128()
        self.size_bytes = 0

    def __enter__(self) -> Upload:
        self._file = open(self._part, "xb")
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        exc: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._file is not None:
            self._file.close()
        self._part.unlink(missing_ok=True)  # `finish` has renamed it

    def write(self, data: bytes) -> None:
        """Appends a chunk. Raises PayloadTooLarge or DiskFull."""
        assert self._file is not None
        self.size_bytes += len(data)
        if self.size_bytes > self._limit_bytes:
            raise too_large(self._hash, self.size_bytes, self._limit_bytes)
        try:
            self._file.write(data)
            self._digest.update(data)
        except OSError as error:
            raise _disk_error(error, self._path.parent) from error

    def finish(self) -> None:
        """Stores the file. Raises BadBlob if its content does not match the hash, or
        StorageError.
        """
        assert self._file is not None
        if self._digest.hexdigest() != self._hash:
            raise BadBlob(
                f"file {self._hash} arrived with different content ({self._digest.hexdigest()});"
                " upload it again"
            )
        try:
            self._file.flush()
            os.fsync(self._file.fileno())
            if self._copies is not None:
                with open(self._part, "rb") as content:
                    self._copies.write(self._hash, iter(lambda: content.read(CHUNK_BYTES), b""))
            os.replace(self._part, self._path)
        except OSError as error:
            raise _disk_error(error, self._path.parent) from error


def too_large(name: str, size_bytes: int, limit_bytes: int) -> PayloadTooLarge:
    return PayloadTooLarge(
        f"file {name} has {size_bytes:,} bytes or more, over the limit of {limit_bytes:,}"
        " (blob.max-size); ship less, or raise the limit"
    )


def _disk_error(error: OSError, directory: Path) -> Exception:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return DiskFull(
            f"the Dispatcher's disk is full: no space for the file in {directory};"
            " free some, then run the job again"
        )
    return error
