"""The rows that CollectSinks collect, kept on disk until their job is forgotten.

One file per sink and generation, DIR/<job id>/<operator id>-<generation>.chunks, which repeats
[8-byte little-endian length][one Arrow IPC stream]. A chunk counts once it is complete.

A job that starts over sends its rows again, under a higher generation, which replaces the older
one. Within a generation chunks are numbered from 0, and each is appended once however often it is
sent. Blocking I/O: the shell appends in one thread, readers may be in others.
"""

from __future__ import annotations

import asyncio
import errno
import os
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from firesteel.errors import FiresteelError

_LENGTH_BYTES = 8


class ResultsNotWritten(FiresteelError):
    """The disk did not take a chunk; the file is as it was before."""


class ChunkOutOfOrder(FiresteelError):
    """The chunk is of an older generation, or one before it is missing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    generation: int
    index: int
    ipc_stream: bytes


class ResultStore:
    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._open: dict[tuple[str, str], _ChunkFile] = {}  # newest generations, once written to
        directory.mkdir(parents=True, exist_ok=True)

    def begin(self, job_id: str, operator_id: str, generation: int) -> None:
        """Makes this the sink's generation; chunks of older ones are deleted.

        Raises ChunkOutOfOrder or ResultsNotWritten.
        """
        try:
            self._file(job_id, operator_id, generation)
        except OSError as error:
            raise _not_written(error, self._directory / job_id) from error

    def append(
        self, job_id: str, operator_id: str, generation: int, index: int, ipc_stream: bytes
    ) -> None:
        """Hands the chunk to the operating system. Does nothing if it is there already.

        Raises ChunkOutOfOrder or ResultsNotWritten.
        """
        try:
            file = self._file(job_id, operator_id, generation)
            if index > file.chunks:
                raise ChunkOutOfOrder(
                    f"chunk {index} of operator {operator_id} came before chunk {file.chunks}"
                )
            if index == file.chunks:
                file.append(ipc_stream)
        except OSError as error:
            raise _not_written(error, self._directory / job_id) from error

    def newest(self, job_id: str, operator_id: str) -> int | None:
        """The generation that readers read; None while there is none."""
        return max(self._generations(job_id, operator_id), default=None)

    def path(self, job_id: str, operator_id: str, generation: int) -> Path:
        return self._directory / job_id / f"{operator_id}-{generation}.chunks"

    def drop(self, job_id: str) -> None:
        for key in [key for key in self._open if key[0] == job_id]:
            del self._open[key]
        shutil.rmtree(self._directory / job_id, ignore_errors=True)

    def _file(self, job_id: str, operator_id: str, generation: int) -> _ChunkFile:
        file = self._open.get((job_id, operator_id))
        if file is None or file.generation != generation:
            existing = self._generations(job_id, operator_id)
            if (newest := max(existing, default=generation)) > generation:
                raise ChunkOutOfOrder(
                    f"generation {generation} of operator {operator_id} is older than {newest}"
                )
            (self._directory / job_id).mkdir(parents=True, exist_ok=True)
            file = _ChunkFile(self.path(job_id, operator_id, generation), generation)
            self._open[job_id, operator_id] = file
            for older in existing:
                if older != generation:
                    self.path(job_id, operator_id, older).unlink(missing_ok=True)
        return file

    def _generations(self, job_id: str, operator_id: str) -> list[int]:
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
    """The file of one generation, to append to. It is opened anew for each chunk."""

    def __init__(self, path: Path, generation: int) -> None:
        self.generation = generation
        self.chunks = 0
        self._path = path
        path.touch()
        reader = ChunkReader(path)
        while reader.skip():
            self.chunks += 1
        self._end_bytes = reader.position_bytes  # an incomplete chunk after it is overwritten

    def append(self, ipc_stream: bytes) -> None:
        try:
            with open(self._path, "r+b") as file:
                file.truncate(self._end_bytes)
                file.seek(self._end_bytes)
                file.write(len(ipc_stream).to_bytes(_LENGTH_BYTES, "little"))
                file.write(ipc_stream)
        except OSError:
            with suppress(OSError):  # the first error is the one to report
                os.truncate(self._path, self._end_bytes)
            raise
        self._end_bytes += _LENGTH_BYTES + len(ipc_stream)
        self.chunks += 1


class ChunkReader:
    """The complete chunks of one file, in order, while it grows."""

    def __init__(self, path: Path) -> None:
        self.position_bytes = 0
        self._path = path

    def skip(self) -> bool:
        """Passes over the next chunk; False if it is not complete yet."""
        return self._next(read=False) is not None

    def next(self) -> bytes | None:
        """None if it is not complete yet."""
        return self._next(read=True)

    def _next(self, *, read: bool) -> bytes | None:
        try:
            file: BinaryIO = open(self._path, "rb")  # noqa: SIM115 - closed by the `with` below
        except FileNotFoundError:
            return None
        with file:
            size_bytes = os.fstat(file.fileno()).st_size
            file.seek(self.position_bytes)
            head = file.read(_LENGTH_BYTES)
            length = int.from_bytes(head, "little")
            end = self.position_bytes + _LENGTH_BYTES + length
            if len(head) < _LENGTH_BYTES or end > size_bytes:
                return None
            self.position_bytes = end
            return file.read(length) if read else b""


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
    """The sink's chunks as they come, until `ended()` and all were read.

    Leaves out the first `offset` chunks of generation `of_generation` (0: of the newest). When a
    newer generation replaces the one that the reader knows, a chunk with index -1 and no content
    says so, and its chunks follow from index 0. `wait` returns when it may be worth looking again.
    """
    generation: int | None = None
    index = 0
    while True:
        last_look = ended()  # asked before looking: what was written before the end is then seen
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
            return
        await wait()


def _not_written(error: OSError, directory: Path) -> ResultsNotWritten:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return ResultsNotWritten(
            f"the disk is full: {directory} cannot take the collected rows;"
            " free space and run again"
        )
    return ResultsNotWritten(
        f"the collected rows cannot be written to {directory}: {error.strerror or error}"
    )
