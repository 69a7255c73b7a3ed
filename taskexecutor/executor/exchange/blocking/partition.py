"""The producer's end of a BLOCKING edge: partitions the task's output and writes it to a file."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from firesteel.common.ids import ResultId
from firesteel.common.job_graph import ResultPartitionId, StoredPartition
from firesteel.common.logs import get_logger
from firesteel.elements import CheckpointBarrier, EndOfData, EndOfPartition, StreamEvent
from taskexecutor.executor.exchange.blocking.partition_file import Codec, PartitionFile
from taskexecutor.executor.exchange.errors import (
    ExchangeClosed,
    LocalProtocolError,
    ResultNotWritten,
)
from taskexecutor.executor.exchange.partition import PartitionId
from taskexecutor.executor.exchange.partitioning import Broadcast, Routing, cut
from taskexecutor.executor.exchange.schema import StreamSchema

log = get_logger(__name__)

# target size of a chunk's rows; a chunk is read as a whole and ends with the batch that reaches
# this
CHUNK_BYTES = 2**20


@dataclass(frozen=True, slots=True)
class ResultFolders:
    """Where a process writes its partitions until its TaskExecutor takes them over."""

    disk: Path
    memory: Path | None = None  # an in-memory file system; None: all files are on disk
    buffer_bytes: int = 16 * 2**20  # per partition
    codec: Codec = None


class BlockingPartition:
    """The task's thread calls every method except `abort` and `close`."""

    def __init__(
        self,
        partition_id: PartitionId,
        routing: Routing,
        *,
        folders: ResultFolders,
        batch_rows: int,
        on_close: Callable[[BlockingPartition], None] = lambda partition: None,
    ) -> None:
        self.id = partition_id
        self.records_out = 0
        self.bytes_out = 0
        self.write_ns = 0  # partitioning and writing
        self.stored: StoredPartition | None = None  # set once `finish` has returned
        self._routing = routing
        self._folders = folders
        self._batch_rows = batch_rows
        self._on_close = on_close
        self._schema = StreamSchema(self.id)
        self._shared = isinstance(routing, Broadcast)  # written once, for all consumers
        channels = 1 if self._shared else len(routing.targets)
        self._buffered: list[list[pa.RecordBatch]] = [[] for _ in range(channels)]
        self._buffered_bytes = 0
        self._data_finished: bool | None = None  # the flag of EndOfData; None before EndOfData
        self._ended = False  # EndOfPartition was emitted
        self._lock = threading.Lock()  # held while the task's thread writes or ends the file
        self._file: PartitionFile | None = None
        self._aborted = ""  # the reason

    # -- the task's side

    def emit(self, batch: pa.RecordBatch) -> None:
        """Partitions a batch, and writes the buffered rows if the buffer is full.

        Raises ExchangeClosed after abort(), SchemaChanged, ResultNotWritten.
        """
        started_ns = time.perf_counter_ns()
        self._raise_if_aborted()
        if self._data_finished is not None:
            raise LocalProtocolError(f"the {self.id} received a batch after its end")
        self._schema.check(batch)
        for index, piece in self._route(batch):
            size_bytes = self._schema.size_bytes(piece)
            self._buffered[index].append(piece)
            self._buffered_bytes += size_bytes
            self.bytes_out += size_bytes
        self.records_out += batch.num_rows
        if self._buffered_bytes >= self._folders.buffer_bytes:
            self._write_region()
        self.write_ns += time.perf_counter_ns() - started_ns

    def emit_event(self, event: StreamEvent) -> None:
        """Handles the end events and ignores watermarks, because consumers start to read after the
        end.
        """
        self._raise_if_aborted()
        match event:
            case CheckpointBarrier():
                raise LocalProtocolError(
                    f"a checkpoint barrier reached the {self.id}, which is not a stream"
                )
            case EndOfData():
                self._data_finished = event.finished
                if self._file is not None:
                    self._write_region()
            case EndOfPartition():
                self._ended = True
            case _:
                pass

    def await_acknowledged(self) -> None:
        """Returns immediately: a file does not wait for consumers."""
        self._raise_if_aborted()

    def finish(self) -> None:
        """Completes the file after EndOfPartition. Raises ExchangeClosed, ResultNotWritten."""
        if not self._ended or self._data_finished is None:
            raise LocalProtocolError(f"the {self.id} has not ended")
        if self._file is None and self._folders.memory is not None:
            try:
                self._write_all(self._folders.memory)
            except ResultNotWritten as error:
                log.info(
                    "no shared memory left for a result; writing it to disk",
                    partition=str(self.id),
                    why=str(error),
                )
                self._delete()
        if self.stored is None:
            self._write_all(self._folders.disk)
        self._buffered.clear()

    def abort(self, reason: str = "its task failed or was cancelled") -> None:
        """Makes the task's next call raise. May be called from any thread. A complete file
        stays.
        """
        self._aborted = self._aborted or f"{self.id} was aborted: {reason}"

    def close(self) -> None:
        """Deletes an incomplete file."""
        self.abort("it was closed before it was complete")
        if self.stored is None:
            self._delete()
        self._on_close(self)

    # A producer of a file never waits for its consumers.
    blocked_ns = 0
    blocked = False
    overdrawn = False

    @property
    def out_pool_usage(self) -> float:
        """Returns the used share of the buffer, 0 to 1."""
        return min(1.0, self._buffered_bytes / self._folders.buffer_bytes)

    @property
    def queue_length(self) -> int:
        """Returns the number of buffered batches."""
        return sum(map(len, self._buffered))

    # -- inside

    def _route(self, batch: pa.RecordBatch) -> Iterator[tuple[int, pa.RecordBatch]]:
        if self._shared:
            return ((0, piece) for piece in cut(batch, self._batch_rows))
        return self._routing.route(batch)

    def _write_all(self, folder: Path) -> None:
        """Writes the buffered rows and completes the file."""
        self._write_region(folder, keep=True)
        targets = self._routing.targets
        with self._lock:
            self._raise_if_aborted()
            file = self._opened(folder)
            file.end(
                first_consumer=targets[0],
                consumers=len(targets),
                shared=self._shared,
                data_finished=bool(self._data_finished),
            )
            self.stored = StoredPartition(
                ResultPartitionId(ResultId(self.id.result_id), self.id.producer, self.id.attempt),
                size_bytes=file.size_bytes,
                rows=file.rows,
                path=str(file.path),
            )

    def _write_region(self, folder: Path | None = None, *, keep: bool = False) -> None:
        """Writes the buffered rows, consumer by consumer. `keep`: the rows stay in the buffer."""
        for index, pieces in enumerate(self._buffered):
            for batches in self._chunks(pieces):
                with self._lock:
                    self._raise_if_aborted()
                    self._opened(folder or self._folders.disk).write(index, batches)
            if not keep:
                pieces.clear()
        self._buffered_bytes = 0

    def _opened(self, folder: Path) -> PartitionFile:
        if self._file is None:
            name = f"{self.id.result_id}-{self.id.producer}-{self.id.attempt}"
            self._file = PartitionFile(
                folder / self.id.job_id / name, str(self.id), self._folders.codec
            )
        return self._file

    def _chunks(self, pieces: list[pa.RecordBatch]) -> Iterator[list[pa.RecordBatch]]:
        chunk: list[pa.RecordBatch] = []
        size_bytes = 0
        for batch in self._joined(pieces):
            chunk.append(batch)
            size_bytes += self._schema.size_bytes(batch)
            if size_bytes >= CHUNK_BYTES:
                yield chunk
                chunk, size_bytes = [], 0
        if chunk:
            yield chunk

    def _joined(self, pieces: list[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Joins small batches, because every batch has a fixed cost."""
        waiting: list[pa.RecordBatch] = []
        rows = size_bytes = 0
        for piece in pieces:
            more_bytes = self._schema.size_bytes(piece)
            if waiting and (
                not self._schema.coalesces
                or rows + piece.num_rows > self._batch_rows
                or size_bytes + more_bytes > CHUNK_BYTES
            ):
                yield _one(waiting)
                waiting, rows, size_bytes = [], 0, 0
            waiting.append(piece)
            rows += piece.num_rows
            size_bytes += more_bytes
        if waiting:
            yield _one(waiting)

    def _delete(self) -> None:
        with self._lock:
            file, self._file = self._file, None
            if file is not None:
                file.delete()

    def _raise_if_aborted(self) -> None:
        if self._aborted:
            raise ExchangeClosed(self._aborted)


def _one(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    return batches[0] if len(batches) == 1 else pa.concat_batches(batches)
