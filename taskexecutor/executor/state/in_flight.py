"""In-flight batches that a checkpoint has overtaken: written with it, and read before new data on
recovery.

A file is the Arrow IPC stream of one edge's batches to one subtask, producer by producer.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import pyarrow as pa

from firesteel.common.checkpoints.state import InFlight
from firesteel.common.checkpoints.storage import CheckpointStorage
from firesteel.common.ids import ResultId
from firesteel.common.job_graph import JobEdge

BatchesByProducer: TypeAlias = Mapping[int, Sequence[pa.RecordBatch]]


@dataclass(frozen=True, slots=True, kw_only=True)
class RestoredInFlight:
    """Reads lazily on iteration. The file exists as long as its checkpoint."""

    result_id: ResultId
    file: str  # for errors
    batches: Iterable[tuple[int, pa.RecordBatch]]  # with their producer, in its order


def write_in_flight(
    storage: CheckpointStorage, path: str, edge: JobEdge, batches: BatchesByProducer
) -> InFlight | None:
    """Writes the batches. Returns None if there are none. Raises StorageError."""
    non_empty = {producer: of for producer, of in sorted(batches.items()) if of}
    if not non_empty:
        return None
    file = storage.write(path, _stream([batch for of in non_empty.values() for batch in of]))
    return InFlight(
        result_id=edge.result_id,
        partitioner=edge.partitioner,
        file=file,
        batches=tuple((producer, len(of)) for producer, of in non_empty.items()),
    )


def restored_in_flight(storage: CheckpointStorage, handle: InFlight) -> RestoredInFlight:
    return RestoredInFlight(
        result_id=handle.result_id, file=handle.file.path, batches=_Batches(storage, handle)
    )


@dataclass(frozen=True, slots=True)
class _Batches:
    storage: CheckpointStorage
    handle: InFlight

    def __iter__(self) -> Iterator[tuple[int, pa.RecordBatch]]:
        reader = pa.ipc.open_stream(self.storage.read(self.handle.file))
        for producer, count in self.handle.batches:
            for _ in range(count):
                yield producer, reader.read_next_batch()


class _Chunks(io.RawIOBase):
    def __init__(self) -> None:
        self.written: list[bytes] = []

    def writable(self) -> bool:
        return True

    def write(self, data: object) -> int:
        chunk = bytes(data)  # type: ignore[call-overload]  # a buffer, valid during the call
        self.written.append(chunk)
        return len(chunk)


def _stream(batches: Sequence[pa.RecordBatch]) -> Iterator[bytes]:
    """Encodes one batch at a time, so that the batches are not copied as a whole."""
    chunks = _Chunks()
    with pa.ipc.new_stream(pa.PythonFile(chunks, "w"), batches[0].schema) as writer:
        for batch in batches:
            writer.write_batch(batch)
            yield from chunks.written
            chunks.written.clear()
    yield from chunks.written
