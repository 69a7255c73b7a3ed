"""foreach_batch: passes the rows as DataFrames of the slot's Spark to a function of the program.

Rows are gathered while Spark is busy, up to the bundle limit: light traffic leads to small batches
with little delay, heavy traffic to large ones.

With checkpoints, the rows between two checkpoints are a batch, which is part of the state with its
id; until it is passed to the function, it is in a file. The function gets it when the checkpoint is
complete, or is restored, so that a batch id never stands for different rows. Batches are keyed
state, which is written to files and not into the metadata; their key is an arbitrary one of the
subtask's key groups.
"""

from __future__ import annotations

from itertools import count
from typing import NamedTuple

import pyarrow as pa

from firesteel.common.config import Configuration, options
from firesteel.common.failpoints import Failpoint, reached
from firesteel.common.key_groups import key_group
from firesteel.connectors import ForeachBatchSink
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


class ForeachBatchRuntime(SinkRuntime[ForeachBatchSink]):
    def analyze(self, schema: pa.Schema | None) -> None:
        # checks that Spark has types for all columns
        to_spark(known_schema("foreach_batch", schema))

    def operator(self) -> StreamOperator:
        return ForeachBatch(self.sink)


class _HeldBatch(NamedTuple):
    checkpoint_id: int
    key: int
    rows: pa.Buffer  # an Arrow IPC stream


class ForeachBatch(StreamOperator):
    def __init__(self, sink: ForeachBatchSink) -> None:
        self._sink = sink
        self._rows: list[pa.RecordBatch] = []
        self._size_bytes = 0
        self._way: BundleLoader | None = None
        self._next: list[int] = []  # operator list state: number of batches of this subtask
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
            batch_id, checkpoint_id = entry.namespace
            self._held[batch_id] = _HeldBatch(checkpoint_id, entry.key, pa.py_buffer(entry.value))

    def open(self) -> None:
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
        # Independent of the parallelism with which the state was restored.
        batch_id = checkpoint_id * task.max_parallelism + task.subtask
        groups = self._state.key_groups
        key = next(k for k in count() if key_group(k, task.max_parallelism) in groups)
        self._state.put(_BATCH, key, rows, namespace=(batch_id, checkpoint_id))
        self._held[batch_id] = _HeldBatch(checkpoint_id, key, rows.content)

    def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
        self._call_held(checkpoint_id)

    def _call_held(self, up_to: int | None) -> None:
        """Passes the batches of the checkpoints up to this one, or all, to the function."""
        for batch_id, held in sorted(self._held.items(), key=lambda item: item[0]):
            if up_to is not None and held.checkpoint_id > up_to:
                continue
            with pa.ipc.open_stream(held.rows) as reader:
                self._call(list(reader), batch_id)
            reached(Failpoint.BATCH_AFTER)
            del self._held[batch_id]
            self._state.remove(_BATCH, held.key, namespace=(batch_id, held.checkpoint_id))

    def _call(self, rows: list[pa.RecordBatch], batch_id: int) -> None:
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
