"""foreach_batch: passes the rows as DataFrames of the slot's Spark to a function of the program.

Rows are gathered while Spark is busy, up to the bundle limit: light traffic leads to small batches
with little delay, heavy traffic to large ones.

With checkpoints, the rows between two checkpoints are a batch, which is part of the state with its
id; until it is passed to the function, it is in a file. The function gets it when the checkpoint is
complete, or is restored, so that a batch id never stands for different rows. Batches are keyed
state, which is written to files and not into the metadata; their key is an arbitrary one of the
subtask's key groups.

A restored batch may have been passed to the function before. With a directory of completed
batches, the sink records there the mark of each batch once the function has returned, and skips
restored batches that are recorded. A mark is never reused, unlike an id.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import count
from typing import Any, NamedTuple

import pyarrow as pa

from firesteel.common.checkpoints.storage import CheckpointStorage
from firesteel.common.config import Configuration, options
from firesteel.common.failpoints import Failpoint, reached
from firesteel.common.key_groups import key_group
from firesteel.connectors import ForeachBatchSink, ForeachRowsSink
from firesteel.elements import Watermark
from firesteel.operator import OperatorState, Output, RuntimeContext, StreamOperator
from firesteel.plan.deferred_columns import made_anew
from taskexecutor.executor.columnar.jvm.engine import engine_of
from taskexecutor.executor.columnar.jvm.transfer import BundleLoader
from taskexecutor.executor.columnar.schemas import to_spark
from taskexecutor.executor.connectors.checks import known_schema
from taskexecutor.executor.connectors.runtime import SinkRuntime
from taskexecutor.executor.connectors.spooled_rows import SpooledRows
from taskexecutor.executor.state import TaskOperatorState

_BATCH = "batch"  # the keyed state
_COMPLETED = "completed-batches-"  # the prefix of a subtask's file of marks
_MARKS = 1_000  # kept in a file; far more than there can be batches in one checkpoint


class ForeachBatchRuntime(SinkRuntime[ForeachBatchSink]):
    def analyze(self, schema: pa.Schema | None) -> None:
        # checks that Spark has types for all columns
        to_spark(known_schema("foreach_batch", schema))

    def operator(self) -> StreamOperator:
        return ForeachBatch(self.sink)


class ForeachRowsRuntime(SinkRuntime[ForeachRowsSink]):
    def analyze(self, schema: pa.Schema | None) -> None:
        to_spark(known_schema("foreach", schema))

    def operator(self) -> StreamOperator:
        return ForeachRows(self.sink)


class _HeldBatch(NamedTuple):
    checkpoint_id: int
    key: int
    namespace: tuple[Any, ...]
    rows: pa.Buffer  # an Arrow IPC stream
    mark: str = ""


class CompletedBatches:
    """The marks of batches for which the function has returned. Each subtask has a file."""

    def __init__(self, directory: str, subtask: int) -> None:
        self._storage = CheckpointStorage(directory, option="checkpointLocation")
        self._file = f"{_COMPLETED}{subtask}"
        self._marks: list[str] = []
        for file in self._storage.files():
            if file.startswith(_COMPLETED) and not file.endswith(".part"):
                self._marks += json.loads(self._storage.read_unchecked(file))["marks"]

    def __contains__(self, mark: str) -> bool:
        return mark in self._marks

    def add(self, mark: str) -> None:
        self._marks = [*self._marks, mark][-_MARKS:]
        content = json.dumps({"version": 1, "marks": self._marks}).encode()
        self._storage.write(self._file, [content])


class ForeachBatch(StreamOperator):
    def __init__(self, sink: ForeachBatchSink | ForeachRowsSink) -> None:
        self._sink = sink
        self._rows: list[pa.RecordBatch] = []
        self._size_bytes = 0
        self._way: BundleLoader | None = None
        # Operator list state: the number of batches of this subtask.
        self._next: list[int] = []
        self._completed: CompletedBatches | None = None
        self._spooled: SpooledRows | None = None  # the batch of the next checkpoint
        # By batch id: batches in checkpoints that are not passed to the function yet.
        self._held: dict[int, _HeldBatch] = {}

    def setup(self, context: RuntimeContext, output: Output) -> None:
        super().setup(context, output)
        self._limit_bytes = Configuration(context.config).get(options.BUNDLE_BYTES)
        self._engine = engine_of(context.spark)

    def initialize_state(self, state: OperatorState) -> None:
        self._next = state.list_state("batches")
        assert isinstance(state, TaskOperatorState)
        self._state = state.keyed
        for entry in self._state.entries(_BATCH):
            batch_id, checkpoint_id, *mark = entry.namespace
            self._held[batch_id] = _HeldBatch(
                checkpoint_id, entry.key, entry.namespace, pa.py_buffer(entry.value), *mark
            )

    def open(self) -> None:
        if self._sink.completed:
            self._completed = CompletedBatches(self._sink.completed, self.context.task.subtask)
        self._call_held(None)

    def process_batch(self, batch: pa.RecordBatch, input_index: int) -> None:
        if not batch.num_rows:
            return
        if self.context.checkpoints:
            if self._spooled is None:
                self._spooled = SpooledRows(self._schema_of(batch))
            self._spooled.write(batch)
            return
        self._rows.append(batch)
        self._size_bytes += batch.nbytes
        if self._size_bytes >= self._limit_bytes:
            self.flush()

    def process_watermark(self, watermark: Watermark) -> None:
        """Does nothing: a sink has no consumers, and gathered rows may stay together."""

    def flush(self) -> None:
        if not self._rows:
            return
        rows, self._rows, self._size_bytes = self._rows, [], 0
        number = self._next[0] if self._next else 0
        task = self.context.task
        self._call(rows, number * task.parallelism + task.subtask)
        self._next[:] = [number + 1]

    def snapshot_state(self, checkpoint_id: int) -> None:
        if self._spooled is None:
            return
        rows = self._spooled.finish()
        self._spooled = None
        task = self.context.task
        if self._sink.consecutive:
            batch_id = self._next[0] if self._next else 0
            self._next[:] = [batch_id + 1]
        else:  # independent of the parallelism with which the state was restored
            batch_id = checkpoint_id * task.max_parallelism + task.subtask
        mark = f"{task.attempt_id}-{checkpoint_id}"
        namespace = (batch_id, checkpoint_id, mark)
        groups = self._state.key_groups
        key = next(k for k in count() if key_group(k, task.max_parallelism) in groups)
        self._state.put(_BATCH, key, rows, namespace=namespace)
        self._held[batch_id] = _HeldBatch(checkpoint_id, key, namespace, rows.content, mark)

    def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
        self._call_held(checkpoint_id)

    def _call_held(self, up_to: int | None) -> None:
        """Passes the batches of the checkpoints up to this one, or all, to the function."""
        for batch_id, held in sorted(self._held.items(), key=lambda item: item[0]):
            if up_to is not None and held.checkpoint_id > up_to:
                continue
            if self._completed is None or held.mark not in self._completed:
                with pa.ipc.open_stream(held.rows) as reader:
                    self._call(list(reader), batch_id)
                reached(Failpoint.BATCH_AFTER)
                if self._completed is not None:
                    self._completed.add(held.mark)
            del self._held[batch_id]
            self._state.remove(_BATCH, held.key, namespace=held.namespace)

    def _call(self, rows: Sequence[pa.RecordBatch], batch_id: int) -> None:
        assert isinstance(self._sink, ForeachBatchSink)
        if self._way is None:
            self._way = BundleLoader(
                self._engine.session, self._engine.bundles, self._schema_of(rows[0])
            )
        task = self.context.task
        description = f"{task.job_name}: {task.task_name_with_subtask}"
        with (
            self.context.time("spark"),
            self._engine.job_group(
                f"firesteel-{task.attempt_id}", description, lambda: self.context.cancelled
            ),
            self._way.dataframe(rows) as frame,
            made_anew(),
        ):
            self._sink.function(frame, batch_id)

    def _schema_of(self, batch: pa.RecordBatch) -> pa.Schema:
        return self.context.input_schemas[0] or batch.schema

    def finish(self) -> None:
        self.flush()

    def close(self) -> None:
        self._rows = []
        spooled, self._spooled = self._spooled, None
        if spooled is not None:
            spooled.discard()


class ForeachRows(ForeachBatch):
    """Passes the rows of each batch to a function, without Spark."""

    def _call(self, rows: Sequence[pa.RecordBatch], batch_id: int) -> None:
        from pyspark.sql.conversion import ArrowTableToRowsConversion

        assert isinstance(self._sink, ForeachRowsSink)
        table = pa.Table.from_batches(rows, self._schema_of(rows[0]))
        rows_of_batch = ArrowTableToRowsConversion.convert(table, to_spark(table.schema))
        epoch, partition = divmod(batch_id, self.context.task.max_parallelism)
        with self.context.time("python"):
            self._sink.function(rows_of_batch, partition, epoch)
