"""Users' files, stored once per content: DIR/<xxhash3-128 of the content>.

Files that no stored job needs are dropped once no submission can be about to name them.

Nothing of a request but a checked hash becomes part of a path (invariant 24). A file appears under
its name only when it is complete and has the hash that its name is.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Collection, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import BinaryIO

import xxhash

from firesteel.common.ids import IdSource, is_id
from firesteel.errors import FiresteelError, PayloadTooLarge

CHUNK_BYTES = 2**20
SUBMIT_WITHIN_S = 3600.0  # from a file's upload, or the answer that it is here, to its job


class BadBlob(FiresteelError):
    """A malformed hash, or content with another hash than it was sent with."""


class DiskFull(FiresteelError):
    """Nothing of the upload is kept."""


class BlobStore:
    def __init__(self, directory: Path, limit_bytes: int, ids: IdSource | None = None) -> None:
        self._ids = ids or IdSource()
        self._directory = directory
        self._limit_bytes = limit_bytes
        directory.mkdir(parents=True, exist_ok=True)
        for unfinished in directory.glob("*.part"):  # of an earlier process
            unfinished.unlink(missing_ok=True)

    def path(self, blob_hash: str) -> Path:
        """Where the blob is, or would be. Raises BadBlob unless the hash is well-formed."""
        if not is_id(blob_hash):
            raise BadBlob(
                f"{blob_hash[:80]!r} is not the hash of a file:"
                " expected 32 lower-case hex characters"
            )
        return self._directory / blob_hash

    def has(self, blob_hash: str) -> bool:
        return self.path(blob_hash).is_file()

    def missing(self, hashes: Iterable[str]) -> list[str]:
        """The hashes to upload. The other files are kept for the job that is to name them."""
        return [blob_hash for blob_hash in hashes if not self._keep(self.path(blob_hash))]

    def drop_unneeded(self, needed: Collection[str], now: float) -> list[str]:
        """Deletes files that are not `needed` and that no client asked for lately. Returns their
        hashes. `now`: seconds since 1970.
        """
        dropped = []
        for path in self._directory.iterdir():
            if not is_id(path.name) or path.name in needed:
                continue
            with suppress(FileNotFoundError):  # another call was faster
                if path.stat().st_mtime < now - SUBMIT_WITHIN_S:
                    path.unlink()
                    dropped.append(path.name)
        return dropped

    def _keep(self, path: Path) -> bool:
        """Whether the file is here; if so, it counts as new."""
        try:
            os.utime(path)
        except FileNotFoundError:
            return False
        return True

    def begin(self, blob_hash: str) -> Upload:
        path = self.path(blob_hash)
        part = path.with_name(f"{blob_hash}.{self._ids.next()[:8]}.part")
        return Upload(path, part, blob_hash, self._limit_bytes)

    def read(self, blob_hash: str) -> Iterator[bytes]:
        """The content in chunks. Raises FileNotFoundError."""
        with open(self.path(blob_hash), "rb") as file:
            while chunk := file.read(CHUNK_BYTES):
                yield chunk


class Upload:
    """A file that is being received: `write` its chunks, then `finish`. Leaving the `with` block
    without `finish` keeps nothing.
    """

    def __init__(self, path: Path, part: Path, blob_hash: str, limit_bytes: int) -> None:
        self._path = path
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
        """Raises PayloadTooLarge or DiskFull."""
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
        """Raises BadBlob if the content has another hash."""
        assert self._file is not None
        if self._digest.hexdigest() != self._hash:
            raise BadBlob(
                f"file {self._hash} arrived with other content ({self._digest.hexdigest()});"
                " upload it again"
            )
        try:
            self._file.flush()
            os.fsync(self._file.fileno())
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
