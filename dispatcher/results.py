"""The rows that CollectSinks collect, kept on disk until their job is forgotten.

Rows are deleted earlier if they are too old or too many (`Limits`). DIR/<job id>/evicted then
contains the reason: readers get that reason instead of an incomplete result.

There is one file per sink and generation, DIR/<job id>/<operator id>-<generation>.chunks. It
repeats [7-byte little-endian length][length of the label][label][one Arrow IPC stream]. A chunk
counts once it is complete. The label is "GROUP ATTEMPT", with the attempt that sent the chunk, or
"GROUP". The next JobMaster needs the number of stored chunks per attempt to accept each chunk once.

A job that starts over sends its rows again under a higher generation, which replaces the older one.
Within a generation, chunks are numbered from 0, and each is appended once however often it is sent.

In a job with checkpoints, each chunk belongs to a group, and readers do not see it until its group
is published: by a chunk with the group and no content, which is written when a checkpoint that
contains the group's rows is complete. After a failure, rows of unpublished groups are sent again in
new groups. Publishing a group twice has no effect; publishing a missing group is refused, because
its rows would be lost.

With an object store that Dispatchers share, a chunk is stored there before it is in the file, and
DIR holds only what this Dispatcher has needed since it leads: a job's rows are fetched when they
are first requested (`chunk_copies`).

I/O blocks: the shell appends in one thread, and readers may use others.
"""

from __future__ import annotations

import asyncio
import errno
import os
import shutil
import threading
from collections import Counter, deque
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, NamedTuple

from dispatcher.chunk_copies import EVICTED, ChunkCopies
from firesteel.common.checkpoints.storage import StorageError
from firesteel.common.config import options
from firesteel.common.logs import get_logger
from firesteel.common.units import shortest_duration, shortest_size
from firesteel.errors import FiresteelError

_HEAD_BYTES = 8  # the last byte is the length of the label

log = get_logger(__name__)


class ResultsNotWritten(FiresteelError):
    """The disk did not accept a chunk; the file is unchanged."""


class ResultsGone(FiresteelError):
    """The rows were deleted."""


class ChunkOutOfOrder(FiresteelError):
    """The chunk has an older generation, or a chunk before it or the group it publishes is
    missing.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    generation: int
    index: int
    ipc_stream: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Limits for the rows of ended jobs; rows of running jobs are never deleted."""

    max_bytes: int  # of all jobs together, including running ones; 0: no limit
    max_age_s: float  # since the job ended; 0: no limit

    def to_evict(
        self, sizes: Mapping[str, int], ended_ms: Mapping[str, int], *, now_ms: int, more: int = 0
    ) -> dict[str, str]:
        """Returns the jobs whose rows must be deleted so that `more` bytes fit, with the reason.

        `sizes` is in bytes by job; `ended_ms` has the end time of each ended job.
        """
        total_bytes = sum(sizes.values()) + more
        kept_bytes = total_bytes - sum(size for job, size in sizes.items() if job in ended_ms)
        helps = self.max_bytes and kept_bytes <= self.max_bytes
        evicted: dict[str, str] = {}
        for job_id in sorted(sizes.keys() & ended_ms.keys(), key=lambda job: ended_ms[job]):
            if self.max_age_s and now_ms - ended_ms[job_id] > self.max_age_s * 1000:
                age = shortest_duration(self.max_age_s)
                evicted[job_id] = (
                    f"collected rows are kept for {age} after the job's end"
                    f" ({options.RESULTS_MAX_AGE.key})"
                )
            elif helps and total_bytes > self.max_bytes:
                evicted[job_id] = (
                    f"the collected rows of all jobs are limited to {shortest_size(self.max_bytes)}"
                    f" ({options.RESULTS_MAX_SIZE.key}), and these were the oldest"
                )
            else:
                break
            total_bytes -= sizes[job_id]
        return evicted


class Collected(NamedTuple):
    operator_id: str
    generation: int
    chunks: int
    by_attempt: dict[str, int]  # how many of them each attempt has sent


class ResultStore:
    def __init__(self, directory: Path, *, copies: ChunkCopies | None = None) -> None:
        """With `copies`, an object store of all rows, `directory` is emptied. Raises
        StorageError.
        """
        self._directory = directory
        self._copies = copies
        self._not_fetched: dict[str, int] = {}  # by job, bytes of rows that are not here
        self._fetching = threading.Lock()
        self._open: dict[tuple[str, str], _ChunkFile] = {}  # newest generations, once written to
        if copies is not None:
            shutil.rmtree(directory, ignore_errors=True)  # other leaders may have added rows
            self._not_fetched = copies.sizes()
        directory.mkdir(parents=True, exist_ok=True)
        self.total_bytes = sum(self.sizes().values())

    def begin(self, job_id: str, operator_id: str, generation: int) -> None:
        """Makes this the sink's generation and deletes chunks of older ones.

        Raises ChunkOutOfOrder, ResultsNotWritten or StorageError.
        """
        try:
            self._file(job_id, operator_id, generation)
        except OSError as error:
            raise _not_written(error, self._directory / job_id) from error

    def append(
        self,
        job_id: str,
        operator_id: str,
        generation: int,
        index: int,
        ipc_stream: bytes,
        group: str = "",
        attempt_id: str = "",
    ) -> None:
        """Writes the chunk to the operating system, or to the object store. Does nothing if it is
        already stored.

        Raises ChunkOutOfOrder, ResultsNotWritten or StorageError.
        """
        try:
            file = self._file(job_id, operator_id, generation)
            if index > file.chunks:
                raise ChunkOutOfOrder(
                    f"chunk {index} of operator {operator_id} came before chunk {file.chunks}"
                )
            if index == file.chunks:
                head = file.head(ipc_stream, group, attempt_id)
                if self._copies is not None:
                    record = head + ipc_stream
                    self._copies.store(job_id, operator_id, generation, index, record)
                self.total_bytes += file.append(head, ipc_stream, group, attempt_id)
        except OSError as error:
            raise _not_written(error, self._directory / job_id) from error

    def newest(self, job_id: str, operator_id: str) -> int | None:
        """Returns the generation that readers read, or None if there is none yet."""
        return max(self._generations(job_id, operator_id), default=None)

    def collected(self, job_id: str) -> list[Collected]:
        """Returns what each sink of the job has collected. Raises ResultsNotWritten or
        StorageError.
        """
        try:
            self._fetch(job_id)
            names = {path.name for path in (self._directory / job_id).glob("*.chunks")}
            found = []
            for operator_id in sorted({name.partition("-")[0] for name in names}):
                generation = self.newest(job_id, operator_id)
                assert generation is not None
                file = self._file(job_id, operator_id, generation)
                found.append(Collected(operator_id, generation, file.chunks, dict(file.by_attempt)))
        except OSError as error:
            raise _not_written(error, self._directory / job_id) from error
        return found

    def path(self, job_id: str, operator_id: str, generation: int) -> Path:
        return self._directory / job_id / f"{operator_id}-{generation}.chunks"

    def drop(self, job_id: str) -> None:
        for key in [key for key in self._open if key[0] == job_id]:
            del self._open[key]
        self._not_fetched.pop(job_id, None)
        shutil.rmtree(self._directory / job_id, ignore_errors=True)
        if self._copies is not None:
            try:
                self._copies.drop(job_id)
            except StorageError as error:  # the next leader deletes them
                log.warning("collected rows cannot be deleted", job_id=job_id, reason=str(error))
        self.total_bytes = sum(self.sizes().values())

    def sizes(self) -> dict[str, int]:
        """Returns the bytes on disk, or still in the object store, by job."""
        sizes = dict(self._not_fetched)
        for path in self._directory.glob("*/*.chunks"):
            with suppress(FileNotFoundError):
                sizes[path.parent.name] = sizes.get(path.parent.name, 0) + path.stat().st_size
        return sizes

    def jobs(self) -> list[str]:
        """Returns the jobs that have rows, or a reason why they were deleted."""
        return [*self._not_fetched, *(path.name for path in self._directory.iterdir())]

    def keep_to(
        self, limits: Limits, ended_ms: Mapping[str, int], *, now_ms: int, more: int = 0
    ) -> dict[str, str]:
        """Deletes rows beyond the limits and returns the reasons by job. Raises OSError or
        StorageError."""
        sizes = self.sizes()
        evicted = limits.to_evict(sizes, ended_ms, now_ms=now_ms, more=more)
        for job_id, why in evicted.items():
            self._evict(job_id, why)
        self.total_bytes = sum(sizes.values()) - sum(sizes[job_id] for job_id in evicted)
        return evicted

    def _evict(self, job_id: str, why: str) -> None:
        """Deletes the job's rows. Writes the reason first, because readers look for it."""
        folder = self._directory / job_id
        folder.mkdir(exist_ok=True)
        (folder / EVICTED).write_text(why)
        if self._copies is not None:
            self._copies.evict(job_id, why)
            self._not_fetched.pop(job_id, None)
        for path in folder.glob("*.chunks"):
            path.unlink(missing_ok=True)

    def evicted(self, job_id: str) -> str | None:
        """Returns why the job's rows were deleted, or None if they were not. Raises
        StorageError.
        """
        self._fetch(job_id)
        try:
            return (self._directory / job_id / EVICTED).read_text()
        except FileNotFoundError:
            return None

    def _file(self, job_id: str, operator_id: str, generation: int) -> _ChunkFile:
        file = self._open.get((job_id, operator_id))
        if file is None or file.generation != generation:
            existing = self._generations(job_id, operator_id)
            if (newest := max(existing, default=generation)) > generation:
                raise ChunkOutOfOrder(
                    f"generation {generation} of operator {operator_id} is older than {newest}"
                )
            (self._directory / job_id).mkdir(parents=True, exist_ok=True)
            if self._copies is not None and generation not in existing:
                self._copies.begin(job_id, operator_id, generation)
            file = _ChunkFile(self.path(job_id, operator_id, generation), generation)
            self._open[job_id, operator_id] = file
            for older in existing:
                if older != generation:
                    self.path(job_id, operator_id, older).unlink(missing_ok=True)
                    if self._copies is not None:
                        self._copies.drop_generation(job_id, operator_id, older)
            self.total_bytes = sum(self.sizes().values())
        return file

    def _fetch(self, job_id: str) -> None:
        """Makes the job's rows available here. Raises StorageError."""
        if self._copies is None or job_id not in self._not_fetched:
            return
        with self._fetching:
            if job_id in self._not_fetched:
                self._copies.fetch(job_id, self._directory / job_id)
                self._not_fetched.pop(job_id, None)

    def _generations(self, job_id: str, operator_id: str) -> list[int]:
        self._fetch(job_id)
        prefix, suffix = f"{operator_id}-", ".chunks"
        try:
            names = os.listdir(self._directory / job_id)
        except FileNotFoundError:
            return []
        numbers = [
            name[len(prefix) : -len(suffix)]
            for name in names
            if name.startswith(prefix) and name.endswith(suffix)
        ]
        return [int(number) for number in numbers if number.isdigit()]


class _ChunkFile:
    """Appends to the file of one generation. The file is reopened for each chunk."""

    def __init__(self, path: Path, generation: int) -> None:
        self.generation = generation
        self.chunks = 0
        self.by_attempt: Counter[str] = Counter()
        self._path = path
        self._groups: set[str] = set()
        self._end_bytes = 0  # an incomplete chunk after it is overwritten
        path.touch()
        with open(path, "rb") as file:
            while (record := _next_record(file, self._end_bytes)) is not None:
                self._added(record.group, record.attempt_id)
                self._end_bytes = record.end

    def head(self, ipc_stream: bytes, group: str, attempt_id: str) -> bytes:
        """Returns the header of the next chunk. Raises ChunkOutOfOrder."""
        if group and not ipc_stream and group not in self._groups:
            raise ChunkOutOfOrder(
                f"the job has no rows of group {group}, which a checkpoint contains"
            )
        label = (f"{group} {attempt_id}" if attempt_id else group).encode()
        return len(ipc_stream).to_bytes(_HEAD_BYTES - 1, "little") + bytes([len(label)]) + label

    def append(self, head: bytes, ipc_stream: bytes, group: str, attempt_id: str) -> int:
        """Returns the number of bytes written."""
        try:
            with open(self._path, "r+b") as file:
                file.truncate(self._end_bytes)
                file.seek(self._end_bytes)
                file.write(head)
                file.write(ipc_stream)
        except OSError:
            with suppress(OSError):  # the first error is the one to report
                os.truncate(self._path, self._end_bytes)
            raise
        written_bytes = len(head) + len(ipc_stream)
        self._end_bytes += written_bytes
        self._added(group, attempt_id)
        return written_bytes

    def _added(self, group: str, attempt_id: str) -> None:
        self.chunks += 1
        self._groups.add(group)
        if attempt_id:
            self.by_attempt[attempt_id] += 1


class _Record(NamedTuple):
    group: str
    attempt_id: str
    start: int  # of the content, in bytes
    end: int


def _next_record(file: BinaryIO, position: int) -> _Record | None:
    """Returns the record that starts at `position`, or None if it is incomplete."""
    file.seek(position)
    head = file.read(_HEAD_BYTES)
    if len(head) < _HEAD_BYTES:
        return None
    start = position + _HEAD_BYTES + head[-1]
    end = start + int.from_bytes(head[:-1], "little")
    if end > os.fstat(file.fileno()).st_size:
        return None
    group, _, attempt_id = file.read(head[-1]).decode().partition(" ")
    return _Record(group, attempt_id, start, end)


class ChunkReader:
    """Reads the published chunks of one file, in the order in which they were published."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._position_bytes = 0
        self._seen: deque[_Record] = deque()
        self._hidden: dict[str, list[_Record]] = {}

    def skip(self) -> bool:
        """Skips the next chunk; returns False if there is none yet."""
        return self._next(read=False) is not None

    def next(self) -> bytes | None:
        """Returns the next chunk, or None if there is none yet."""
        return self._next(read=True)

    def _next(self, *, read: bool) -> bytes | None:
        try:
            file: BinaryIO = open(self._path, "rb")  # noqa: SIM115 - closed by the `with` below
        except FileNotFoundError:
            return None
        with file:
            while not self._seen:
                record = _next_record(file, self._position_bytes)
                if record is None:
                    return None
                self._position_bytes = record.end
                self._take(record)
            found = self._seen.popleft()
            if not read:
                return b""
            file.seek(found.start)
            return file.read(found.end - found.start)

    def _take(self, record: _Record) -> None:
        if not record.group:
            self._seen.append(record)
        elif record.end > record.start:
            self._hidden.setdefault(record.group, []).append(record)
        else:
            self._seen.extend(self._hidden.pop(record.group, ()))


async def follow(
    results: ResultStore,
    job_id: str,
    operator_id: str,
    *,
    offset: int = 0,
    of_generation: int = 0,
    ended: Callable[[], bool],
    wait: Callable[[], Awaitable[None]],
) -> AsyncIterator[Chunk]:
    """Yields the sink's chunks as they arrive, until `ended()` is true and all were read.

    Skips the first `offset` chunks of generation `of_generation` (0: of the newest). When a newer
    generation replaces the one that the reader knows, yields a chunk with index -1 and no content,
    and then its chunks from index 0. `wait` returns when it may be worth looking again. Raises
    ResultsGone if the rows were deleted, even if some of them were already read.
    """
    generation: int | None = None
    index = 0
    while True:
        last_look = ended()  # evaluated first, so that rows written before the end are seen
        newest = await asyncio.to_thread(results.newest, job_id, operator_id)
        if newest is not None and newest != generation:
            if generation is not None or of_generation not in (0, newest):
                offset = 0
                yield Chunk(generation=newest, index=-1, ipc_stream=b"")
            generation, index = newest, 0
            reader = ChunkReader(results.path(job_id, operator_id, newest))
        if generation is not None:
            while index < offset and await asyncio.to_thread(reader.skip):
                index += 1
            while index >= offset and (chunk := await asyncio.to_thread(reader.next)) is not None:
                yield Chunk(generation=generation, index=index, ipc_stream=chunk)
                index += 1
        if last_look:
            if (why := await asyncio.to_thread(results.evicted, job_id)) is not None:
                raise ResultsGone(f"the rows of job {job_id} are gone: {why}")
            return
        await wait()


def _not_written(error: OSError, directory: Path) -> ResultsNotWritten:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return ResultsNotWritten(
            f"the disk is full: {directory} has no space for the collected rows;"
            " free space and run the job again"
        )
    return ResultsNotWritten(
        f"the collected rows cannot be written to {directory}: {error.strerror or error}"
    )
