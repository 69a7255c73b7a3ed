"""PythonSink: stream writers of PySpark's Python DataSource.

writers (any number)  --commit messages-->  committer (one subtask)

A DataSourceStreamWriter's `write` takes an iterator over all rows of an epoch, so it runs in a
separate thread, which the task feeds. Its result is sent as a row to the committer, which calls
`commit` with all results, or `abort` if the task fails or is cancelled before. Without a commit
interval, all rows of a job are one epoch, which ends with the input. With one, each writer ends an
epoch after this time, and the committer commits its messages when no more are in flight.

With checkpoints, each checkpoint ends an epoch: its barrier follows the messages, which become a
batch in the committer's state, and its completion commits them. After a failure the committer
commits the batches in the checkpoint, possibly again, with the same messages and batch id. Batch
ids are those of the checkpoints.
"""

from __future__ import annotations

import contextlib
import contextvars
import queue
import threading
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import cloudpickle
import pyarrow as pa

from firesteel.common.failpoints import Failpoint, reached
from firesteel.common.time_zones import in_zone
from firesteel.connectors import PythonSink, SinkWriter
from firesteel.connectors.python_sink import PythonCommit
from firesteel.errors import FiresteelError
from firesteel.operator import OperatorState, RuntimeContext, StreamOperator, TaskCancelled
from firesteel.plan.source_lines import dumps_without_lines
from taskexecutor.executor.columnar.jvm.session import session_zone
from taskexecutor.executor.columnar.schemas import to_spark
from taskexecutor.executor.connectors.python.data_source import (
    MESSAGE_SCHEMA,
    check_sink,
    user_code,
    writer_in,
)
from taskexecutor.executor.connectors.runtime import SinkRuntime
from taskexecutor.executor.connectors.writer_sink import SinkWriting, WriterSink
from taskexecutor.executor.job_threads import raise_in

if TYPE_CHECKING:
    from pyspark.sql.datasource import DataSourceStreamWriter

QUEUED_BATCHES = 4
_LOOK_S = 0.05  # interval at which a task that waits for write() checks for its cancellation
_CLOSE_S = 1.0  # for a write() that requests its next row, to end by itself
_INTERRUPT_S = 0.5  # for one that does not, before it is interrupted


class PythonSinkRuntime(WriterSink[PythonSink]):
    def analyze(self, schema: pa.Schema | None) -> pa.Schema:
        return check_sink(self.sink, schema)

    def operator(self) -> StreamOperator:
        return EpochWriting(self)

    def create_writer(self, context: RuntimeContext) -> SinkWriter:
        return EpochWriter(self.sink, context)


class EpochWriting(SinkWriting):
    """Emits the messages, a row each, for another operator to commit."""

    def prepare_barrier(self, checkpoint_id: int) -> None:
        self._end_epoch()

    def snapshot_state(self, checkpoint_id: int) -> None:
        """Stores nothing: what was prepared precedes the barrier."""

    def finish(self) -> None:
        self._end_epoch()

    def _end_epoch(self) -> None:
        self._prepare()
        with self.context.time("python"):
            self._commit_prepared()
        self._prepared = ()

    def _commit_prepared(self) -> None:
        for message in self._prepared:
            row = [
                pa.array([self.context.task.subtask], pa.int32()),
                pa.array([dumps_without_lines(message)], pa.binary()),
            ]
            self.output.emit(pa.RecordBatch.from_arrays(row, schema=MESSAGE_SCHEMA))


class EpochWriter(SinkWriter):
    def __init__(self, sink: PythonSink, context: RuntimeContext) -> None:
        schema = context.input_schemas[0]
        assert schema is not None, "analysis ensures that the schema is known"
        self._name = sink.name
        self._whole_input = sink.commit_interval_s is None  # one epoch for the whole input
        self._context = context
        self._schema = to_spark(schema)
        self._zone = session_zone(context)
        self._epoch: _Epoch | None = None

    def open(self) -> None:
        if self._whole_input:
            self._begin()  # in every subtask, even without rows

    def write(self, batch: pa.RecordBatch) -> None:
        (self._epoch or self._begin()).put(batch)

    def prepare(self) -> list[Any]:
        if self._epoch is None:
            return []
        message = self._epoch.end()
        self._epoch = None
        return [message]

    def close(self) -> None:
        epoch, self._epoch = self._epoch, None
        if epoch is not None:
            epoch.abandon()

    def _begin(self) -> _Epoch:
        writer = writer_in(self._context.output_schema)  # a copy for each epoch, as in Spark
        self._epoch = _Epoch(lambda batches: self._write(writer, batches), self._context)
        return self._epoch

    def _write(self, writer: DataSourceStreamWriter, batches: Iterator[pa.RecordBatch]) -> Any:
        from pyspark.sql.datasource import DataSourceStreamArrowWriter, WriterCommitMessage

        arrow = isinstance(writer, DataSourceStreamArrowWriter)
        # Not timed here: this is not the task's thread, whose wait is timed.
        with user_code(self._context, timed=False):
            message = writer.write(self._zoned(batches) if arrow else self._rows(batches))
        if not isinstance(message, WriterCommitMessage):
            raise FiresteelError(
                f"{self._name}: write() returned {type(message).__name__}; "
                "it must return a WriterCommitMessage"
            )
        return message

    def _zoned(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return (in_zone(batch, self._zone) for batch in batches)

    def _rows(self, batches: Iterator[pa.RecordBatch]) -> Iterator[Any]:
        from pyspark.sql.conversion import ArrowTableToRowsConversion

        for batch in batches:
            table = pa.Table.from_batches([batch])
            yield from ArrowTableToRowsConversion.convert(table, self._schema)


class _Abandoned(Exception):
    """Raised in `write` at its next row, when the task has ended before its input."""


class _Epoch:
    """One call of `write`, in a separate thread."""

    def __init__(
        self, write: Callable[[Iterator[pa.RecordBatch]], Any], context: RuntimeContext
    ) -> None:
        self._context = context
        self._queue: queue.Queue[pa.RecordBatch | None] = queue.Queue(QUEUED_BATCHES)
        self._abandoned = False
        self._result: Any = None
        self._failure: BaseException | None = None
        self._write = write
        name = f"write {context.operator_name} ({context.task.subtask + 1})"
        task = contextvars.copy_context()  # its names, for what it logs and prints
        self._thread = threading.Thread(target=task.run, args=(self._run,), name=name, daemon=True)
        self._thread.start()

    def put(self, batch: pa.RecordBatch | None) -> None:
        """Waits while the user's code is behind. Rows that it does not read are dropped, as in
        Spark.
        """
        while True:
            self._check()
            if not self._thread.is_alive():
                return
            with contextlib.suppress(queue.Full):
                self._queue.put(batch, timeout=_LOOK_S)
                return

    def end(self) -> Any:
        """Returns the result of `write`, or raises its error."""
        self.put(None)
        while self._thread.is_alive():
            self._thread.join(_LOOK_S)
            self._check()
        self._check()
        return self._result

    def abandon(self) -> None:
        """Ends the thread. If it never returns from native code, it stays, and the slot's process
        is replaced (taskexecutor.executor.job_threads).
        """
        self._abandoned = True
        with contextlib.suppress(queue.Full):
            self._queue.put_nowait(None)
        self._thread.join(_CLOSE_S)
        if self._thread.is_alive():
            raise_in(self._thread, TaskCancelled)
            self._thread.join(_INTERRUPT_S)

    def _check(self) -> None:
        if self._context.cancelled:
            raise TaskCancelled
        if not self._thread.is_alive() and self._failure is not None:
            raise self._failure

    def _run(self) -> None:
        try:
            self._result = self._write(self._batches())
        except BaseException as error:
            self._failure = error

    def _batches(self) -> Iterator[pa.RecordBatch]:
        while (batch := self._queue.get()) is not None:
            if self._abandoned:
                break
            yield batch
        if self._abandoned:
            raise _Abandoned("the task ended before its input")


class PythonCommitRuntime(SinkRuntime[PythonCommit]):
    def operator(self) -> StreamOperator:
        return PythonCommitting(self.sink.sink)


class _Batch(NamedTuple):
    checkpoint_id: int
    batch_id: int
    messages: list[bytes]  # in order


class PythonCommitting(StreamOperator):
    """Commits the messages of all writers, or aborts them when the task fails or is cancelled.
    Messages in a checkpoint are not aborted: the attempt that restores it commits them.
    """

    def __init__(self, sink: PythonSink) -> None:
        self._at_intervals = sink.commit_interval_s is not None
        self._writer: Any = None
        self._messages: list[tuple[int, bytes]] = []  # pickled, by subtask
        self._next_batch: list[int] = []  # operator list state: the id of the next batch
        self._in_checkpoints: list[_Batch] = []  # list state: uncommitted batches, in order
        self._committed = False  # everything is committed: the input has ended

    def initialize_state(self, state: OperatorState) -> None:
        self._next_batch = state.list_state("next_batch_id")
        self._in_checkpoints = state.list_state("batches")

    def open(self) -> None:
        self._writer = writer_in(self.context.input_schemas[0])
        self._commit_checkpoints(None)

    def process_batch(self, batch: pa.RecordBatch, input_index: int) -> None:
        for row in batch.to_pylist():
            self._messages.append((row["subtask"], row["message"]))

    def flush(self) -> None:
        if self._at_intervals and self._messages and not self.context.checkpoints:
            self._commit()

    def snapshot_state(self, checkpoint_id: int) -> None:
        if not self._messages:
            return
        batch_id = max(checkpoint_id, self._batch_id)
        messages = [message for _, message in self._in_order()]
        self._in_checkpoints.append(_Batch(checkpoint_id, batch_id, messages))
        self._next_batch[:] = [batch_id + 1]
        self._messages.clear()

    def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
        self._commit_checkpoints(checkpoint_id)

    def finish(self) -> None:
        if self.context.checkpoints:
            return  # the last checkpoint commits the rest
        if self.context.task.subtask == 0 and (self._messages or not self._at_intervals):
            self._commit()
        self._committed = True

    def _commit(self) -> None:
        with user_code(self.context):
            self._writer.commit(self._loaded(), self._batch_id)
        self._next_batch[:] = [self._batch_id + 1]
        self._messages.clear()

    def _commit_checkpoints(self, up_to: int | None) -> None:
        """Commits the batches of the checkpoints up to this one; None: of all checkpoints."""
        while self._in_checkpoints:
            batch = self._in_checkpoints[0]
            if up_to is not None and batch.checkpoint_id > up_to:
                return
            with user_code(self.context):
                messages = [cloudpickle.loads(message) for message in batch.messages]
                self._writer.commit(messages, batch.batch_id)
            reached(Failpoint.PYTHON_AFTER)
            del self._in_checkpoints[0]

    def close(self) -> None:
        writer, self._writer = self._writer, None
        if writer is None or self._committed:
            return
        if self._messages or not self.context.checkpoints:
            with user_code(self.context):
                writer.abort(self._loaded(), self._batch_id)

    @property
    def _batch_id(self) -> int:
        return self._next_batch[0] if self._next_batch else 0

    def _in_order(self) -> list[tuple[int, bytes]]:
        return sorted(self._messages, key=lambda item: item[0])

    def _loaded(self) -> list[Any]:
        return [cloudpickle.loads(message) for _, message in self._in_order()]
