"""Files of checkpoints on any file system of pyarrow's: a directory, S3, ...

    DIR/JOB-ID/chk-7/            what checkpoint 7 refers to
              chk-7/_metadata    written last: with it the checkpoint is whole

Paths in the metadata are relative to the job's directory, so that directory can be moved or copied.

A file appears under its name only when it is complete. Every file has a checksum, and so has every
part that is read by itself; data with a wrong checksum is never used (invariant 6).

No call waits for ever: an unresponsive S3 is given up after three attempts of a few seconds.
A URI has no credentials, since it appears in logs and in the job store.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from operator import itemgetter
from typing import Any, BinaryIO, TypeAlias, TypeVar
from urllib.parse import parse_qsl, urlsplit

import xxhash

from firesteel.common.checkpoints.state import KeyGroupSlice, StateFile, TableSlice
from firesteel.errors import FiresteelError

_Slice: TypeAlias = KeyGroupSlice | TableSlice
_T = TypeVar("_T")
_R = TypeVar("_R")

METADATA = "_metadata"
_PART = ".part"
_COPY_BYTES = 4 << 20
_AT_ONCE = 8  # files in an object store, where each one takes time, however small
_RUN_BYTES = 4 << 20
_ATTEMPTS = 3  # at a request to S3, each of which may stay without an answer for a few seconds
_WITHOUT_DIRECTORIES = ("s3", "gcs")  # a created directory would be an empty object there


class StorageError(FiresteelError):
    """A directory cannot be used, or a file is missing, truncated or damaged."""


class StorageAway(StorageError):
    """An object store does not respond; the state of its files is unknown."""


class CheckpointStorage:
    """One directory with its files and subdirectories. Every method may be called from any thread,
    and raises StorageError.
    """

    def __init__(self, uri: str, *, option: str = "execution.checkpointing.dir") -> None:
        """`uri` is a path or a URI such as s3://bucket/checkpoints?endpoint_override=...; `option`
        is the option that errors about the directory name.
        """
        self.uri = uri if "://" in uri else os.path.abspath(uri)
        self._option = option
        self._fs: Any
        self._fs, root = _file_system(self.uri, option)
        self._root = root.rstrip("/")

    def at(self, path: str) -> CheckpointStorage:
        """Returns the storage of a subdirectory."""
        below = CheckpointStorage.__new__(CheckpointStorage)
        where, mark, query = self.uri.partition("?")
        below.uri = f"{where.rstrip('/')}/{path}{mark}{query}"
        below._option = self._option
        below._fs = self._fs
        below._root = self._path(path)
        return below

    def each(self, do: Callable[[_T], _R], items: Sequence[_T]) -> list[_R]:
        """Calls `do`, which reads or writes a file here, for each item; concurrently unless the
        files are on this machine's disk. Raises the first error when all calls are over; calls that
        have not started by then are omitted.
        """
        if self._fs.type_name == "local" or len(items) < 2:
            return [do(item) for item in items]
        with ThreadPoolExecutor(min(_AT_ONCE, len(items)), "files of checkpoints") as threads:
            calls = [threads.submit(do, item) for item in items]
            try:
                return [call.result() for call in calls]
            except BaseException:
                threads.shutdown(wait=False, cancel_futures=True)
                raise

    def check_writable(self) -> None:
        """Checks that files can be written, by writing and deleting one."""
        name = ".firesteel-check"
        with self._errors(f"the directory {self.uri} cannot be written ({self._option})"):
            self._create_parent(name)
            with self._fs.open_output_stream(self._path(name)) as stream:
                stream.write(b"ok")
            self._fs.delete_file(self._path(name))

    def write(self, path: str, chunks: Iterable[bytes | memoryview]) -> StateFile:
        """Writes a new file, completely or not at all."""
        digest = xxhash.xxh3_128()
        size_bytes = 0
        with self._errors(f"the file {path} of {self.uri} cannot be written"):
            self._create_parent(path)
            with self._new_file(path) as stream:
                for chunk in chunks:
                    stream.write(chunk)
                    digest.update(chunk)
                    size_bytes += len(chunk)
        return StateFile(path=path, size_bytes=size_bytes, checksum=digest.hexdigest())

    def read(self, file: StateFile) -> bytes:
        """Reads a whole file."""
        where = f"the file {file.path} of {self.uri}"
        with self._opened(file) as source:
            content: bytes = source.read_at(file.size_bytes, 0)
        _check(where, content, 0, file.size_bytes, file.checksum)
        return content

    def read_to(self, file: StateFile, path: str | os.PathLike[str]) -> None:
        """Creates a local file with the content of this one. Neither may change: within a file
        system they are links to the same content, which is read, but not written again.
        """
        where = f"the file {file.path} of {self.uri}"
        digest, size_bytes = xxhash.xxh3_128(), 0
        linked = self._linked(file, path)
        with (
            self._errors(f"{where} cannot be read"),
            self._fs.open_input_stream(self._path(file.path)) as source,
            open(os.devnull if linked else path, "wb") as target,
        ):
            while chunk := source.read(_COPY_BYTES):
                target.write(chunk)
                digest.update(chunk)
                size_bytes += len(chunk)
        if size_bytes != file.size_bytes:
            raise _cut_short(where, 0, file.size_bytes, size_bytes)
        if digest.hexdigest() != file.checksum:
            raise _damaged(where, 0, size_bytes, digest.hexdigest(), file.checksum)

    def _linked(self, file: StateFile, path: str | os.PathLike[str]) -> bool:
        """Whether `path` is now a link to the file: not on a different file system."""
        if self._fs.type_name != "local":
            return False
        try:
            os.link(self._path(file.path), path)
        except OSError:
            return False
        return True

    def read_slices(self, file: StateFile, parts: Sequence[_Slice]) -> Iterator[bytes]:
        """Reads `parts`, which are ordered by offset. Neighbours are read together, because each
        read of an object store takes time.
        """
        where = f"the file {file.path} of {self.uri}"
        with self._opened(file) as source:
            for run in _runs(parts):
                begin, last = run[0].offset, run[-1]
                content = source.read_at(last.offset + last.size_bytes - begin, begin)
                for part in run:
                    piece = content[part.offset - begin : part.offset - begin + part.size_bytes]
                    _check(where, piece, part.offset, part.size_bytes, part.checksum)
                    yield piece

    def check_whole(self, files: Iterable[StateFile]) -> None:
        """Checks that the files exist with their original sizes. Does not read them."""
        expected = {self._path(file.path): file for file in files}
        with self._errors(f"the files of {self.uri} cannot be listed"):
            infos = self._fs.get_file_info(list(expected))
        for info in infos:
            file = expected[info.path]
            if info.type.name != "File":
                raise StorageError(f"the file {file.path} of {self.uri} is missing")
            if info.size != file.size_bytes:
                raise StorageError(
                    f"the file {file.path} of {self.uri} is not whole: {file.size_bytes} bytes were"
                    f" written, and {info.size} are there"
                )

    def read_unchecked(self, path: str) -> bytes:
        """Reads a file that contains its own checksum."""
        with (
            self._errors(f"the file {path} of {self.uri} cannot be read"),
            self._fs.open_input_stream(self._path(path)) as stream,
        ):
            content: bytes = stream.read()
        return content

    def copy(self, path: str, to: CheckpointStorage) -> None:
        """Copies a file to the same path in another storage."""

        def chunks() -> Iterator[bytes]:
            with (
                self._errors(f"the file {path} of {self.uri} cannot be read"),
                self._fs.open_input_stream(self._path(path)) as stream,
            ):
                while chunk := stream.read(_COPY_BYTES):
                    yield chunk

        to.write(path, chunks())

    def exists(self, path: str) -> bool:
        with self._errors(f"{self.uri} cannot be read"):
            return bool(self._fs.get_file_info(self._path(path)).type.name != "NotFound")

    def delete(self, paths: Iterable[str]) -> None:
        """Deletes files; ignores missing ones."""
        for path in paths:
            problem = f"the file {path} of {self.uri} cannot be deleted"
            with self._errors(problem), suppress(FileNotFoundError):
                self._fs.delete_file(self._path(path))

    def delete_directory(self, path: str) -> None:
        """Deletes a directory with its contents; ignores a missing one."""
        problem = f"the directory {path} of {self.uri} cannot be deleted"
        with self._errors(problem), suppress(FileNotFoundError):
            self._fs.delete_dir(self._path(path))

    def files(self) -> list[str]:
        """Returns all files in this directory and below, sorted, with unfinished ones."""
        return list(self.sizes())

    def sizes(self) -> dict[str, int]:
        """Returns the sizes in bytes of all files here and below, sorted, with unfinished ones."""
        files = self._listed(recursive=True)
        return {path: info.size for path, info in files if info.type.name == "File"}

    def directories(self) -> list[str]:
        """Returns the names of the subdirectories, sorted."""
        entries = self._listed(recursive=False)
        return [path for path, info in entries if info.type.name == "Directory"]

    # -- inside

    def _path(self, path: str) -> str:
        if path.startswith("/") or ".." in path.split("/"):
            raise StorageError(f"{path!r} leads out of the directory {self.uri}")
        return f"{self._root}/{path}" if path else self._root

    def _listed(self, *, recursive: bool) -> list[tuple[str, Any]]:
        from pyarrow.fs import FileSelector

        selector = FileSelector(self._root, recursive=recursive, allow_not_found=True)
        with self._errors(f"the directory {self.uri} cannot be listed"):
            infos = self._fs.get_file_info(selector)
        return sorted(
            ((info.path[len(self._root) + 1 :], info) for info in infos), key=itemgetter(0)
        )

    def _create_parent(self, path: str) -> None:
        if self._fs.type_name not in _WITHOUT_DIRECTORIES:
            self._fs.create_dir(self._path(path).rpartition("/")[0], recursive=True)

    @contextmanager
    def _new_file(self, path: str) -> Iterator[Any]:
        """Creates a file. On a local disk it is flushed and renamed. An object store shows it when
        it is closed, even if it has not been written to its end.
        """
        where = self._path(path)
        if self._fs.type_name != "local":
            stream = self._fs.open_output_stream(where)
            try:
                yield stream
                stream.close()
            except BaseException:
                with suppress(OSError):
                    stream.close()
                with suppress(OSError):
                    self._fs.delete_file(where)
                raise
            return
        part = where + _PART
        try:
            file: BinaryIO
            with open(part, "wb") as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            os.replace(part, where)
        except BaseException:
            with suppress(OSError):
                os.unlink(part)
            raise

    @contextmanager
    def _opened(self, file: StateFile) -> Iterator[Any]:
        with (
            self._errors(f"the file {file.path} of {self.uri} cannot be read"),
            self._fs.open_input_file(self._path(file.path)) as source,
        ):
            yield source

    @contextmanager
    def _errors(self, problem: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            reason = error.strerror or str(error)
            away = self._fs.type_name != "local" and not isinstance(error, FileNotFoundError)
            raise (StorageAway if away else StorageError)(f"{problem}: {reason}") from error


def _runs(parts: Sequence[_Slice]) -> Iterator[list[_Slice]]:
    """Groups neighbours whose total size is small enough."""
    run: list[_Slice] = []
    for part in parts:
        if run:
            end = run[-1].offset + run[-1].size_bytes
            too_large = part.offset + part.size_bytes - run[0].offset > _RUN_BYTES
            if part.offset != end or too_large:
                yield run
                run = []
        run.append(part)
    if run:
        yield run


def _check(where: str, content: bytes, offset: int, size_bytes: int, checksum: str) -> None:
    """Checks the content. Raises StorageError."""
    if len(content) != size_bytes:
        raise _cut_short(where, offset, size_bytes, len(content))
    actual = xxhash.xxh3_128_hexdigest(content)
    if actual != checksum:
        raise _damaged(where, offset, size_bytes, actual, checksum)


def _cut_short(where: str, offset: int, written_bytes: int, left_bytes: int) -> StorageError:
    return StorageError(
        f"{where} is cut short: {written_bytes} bytes were written at {offset},"
        f" {left_bytes} are left"
    )


def _damaged(where: str, offset: int, size_bytes: int, actual: str, checksum: str) -> StorageError:
    return StorageError(
        f"{where} is damaged: the {size_bytes} bytes at {offset} have checksum {actual},"
        f" not {checksum}"
    )


def _file_system(uri: str, option: str) -> tuple[Any, str]:
    """Returns the file system of a path or URI, and the path in it. Raises StorageError."""
    # Imported late: every JobMaster imports this module, and few have checkpoints.
    from pyarrow import fs as pafs

    if "://" not in uri:
        return pafs.LocalFileSystem(), uri
    parts = urlsplit(uri)
    if parts.password is not None:
        shown = uri.replace(parts.netloc, parts.netloc.rpartition("@")[2], 1)
        raise StorageError(
            f"{option}: {shown!r} has credentials in it, which logs and the job store would show."
            " Set s3.access-key and s3.secret-key for the cluster, or AWS_ACCESS_KEY_ID and"
            " AWS_SECRET_ACCESS_KEY in the environment of its processes"
        )
    try:
        return _s3(uri) if parts.scheme == "s3" else pafs.FileSystem.from_uri(uri)
    except ValueError as error:
        raise StorageError(f"{option}: {uri!r} is not a directory's URI: {error}") from error
    except OSError as error:
        raise StorageError(f"{option}: {uri!r} cannot be reached: {error}") from error


def _s3(uri: str) -> tuple[Any, str]:
    """Like `FileSystem.from_uri`, which retries for minutes while the server is unresponsive."""
    from pyarrow import fs as pafs

    options = dict(parse_qsl(urlsplit(uri).query))
    if unknown := options.keys() - {"region", "endpoint_override", "scheme"}:
        raise ValueError(
            f"unknown parameter {min(unknown)!r}; there are region, endpoint_override and scheme"
        )
    file_system, root = pafs.FileSystem.from_uri(uri)  # finds the bucket's region
    variable = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL", "")
    endpoint = urlsplit(variable)
    return pafs.S3FileSystem(
        region=file_system.region or None,
        endpoint_override=options.get("endpoint_override") or endpoint.netloc or None,
        scheme=options.get("scheme") or endpoint.scheme or None,
        tls_ca_file_path=os.environ.get("AWS_CA_BUNDLE") or None,
        allow_delayed_open=True,  # a small file is one request then, rather than three
        retry_strategy=pafs.AwsStandardS3RetryStrategy(max_attempts=_ATTEMPTS),
    ), root
