"""foreach_batch: a function of the program gets the rows as DataFrames of the slot's Spark.

Rows are gathered while Spark is busy, up to the bundle limit: light traffic makes small batches
soon, heavy traffic large ones.
"""

from __future__ import annotations

import pyarrow as pa

from firesteel.common.config import Configuration, options
from firesteel.connectors import ForeachBatchSink
from firesteel.elements import Watermark
from firesteel.operator import OperatorState, Output, RuntimeContext, StreamOperator
from taskexecutor.executor.connectors.checks import known_schema
from taskexecutor.executor.connectors.runtime import SinkRuntime
from taskexecutor.executor.spark.jvm.engine import engine_of
from taskexecutor.executor.spark.schemas import to_spark
from taskexecutor.executor.spark.transfer import BundleLoader


class ForeachBatchRuntime(SinkRuntime[ForeachBatchSink]):
    def analyze(self, schema: pa.Schema | None) -> None:
        to_spark(known_schema("foreach_batch", schema))  # Spark has types for all columns

    def operator(self) -> StreamOperator:
        return ForeachBatch(self.sink)


class ForeachBatch(StreamOperator):
    not_checkpointed = "its batch ids are not part of checkpoints"

    def __init__(self, sink: ForeachBatchSink) -> None:
        self._sink = sink
        self._rows: list[pa.RecordBatch] = []
        self._size_bytes = 0
        self._way: BundleLoader | None = None
        self._next: list[int] = []  # operator list state: how many batches this subtask has had

    def setup(self, context: RuntimeContext, output: Output) -> None:
        super().setup(context, output)
        self._limit_bytes = Configuration(context.config).get(options.BUNDLE_BYTES)
        self._engine = engine_of(context.spark)

    def initialize_state(self, state: OperatorState) -> None:
        self._next = state.list_state("batches")

    def process_batch(self, batch: pa.RecordBatch, input_index: int) -> None:
        if not batch.num_rows:
            return
        self._rows.append(batch)
        self._size_bytes += batch.nbytes
        if self._size_bytes >= self._limit_bytes:
            self.flush()

    def process_watermark(self, watermark: Watermark) -> None:
        """Nothing follows a sink, and what is gathered may stay together."""

    def flush(self) -> None:
        if not self._rows:
            return
        rows, self._rows, self._size_bytes = self._rows, [], 0
        if self._way is None:
            self._way = BundleLoader(
                self._engine.session,
                self._engine.bundles,
                self.context.input_schemas[0] or rows[0].schema,
            )
        task = self.context.task
        count = self._next[0] if self._next else 0
        description = f"{task.job_name}: {task.task_name_with_subtask}"
        with (
            self.context.time("spark"),
            self._engine.job_group(
                f"firesteel-{task.attempt_id}", description, lambda: self.context.cancelled
            ),
            self._way.dataframe(rows) as frame,
        ):
            self._sink.function(frame, count * task.parallelism + task.subtask)
        self._next[:] = [count + 1]

    def finish(self) -> None:
        self.flush()

    def close(self) -> None:
        self._rows = []
