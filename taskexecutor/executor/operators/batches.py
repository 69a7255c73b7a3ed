"""Batches: the rows between two checkpoints, transformed and marked at the checkpoint."""

from __future__ import annotations

import pyarrow as pa

from firesteel.operator import OperatorState, Output, RuntimeContext, StreamOperator
from firesteel.operators.batches import BATCH, CHECKPOINT, BatchesSpec
from taskexecutor.executor.analysis.step import AnalysisStep, AnalyzedOutput
from taskexecutor.executor.columnar.jvm.engine import engine_of
from taskexecutor.executor.columnar.jvm.transfer import BundleLoader
from taskexecutor.executor.columnar.schemas import conform, to_arrow
from taskexecutor.executor.connectors.checks import known_schema
from taskexecutor.executor.connectors.spooled_rows import SpooledRows
from taskexecutor.executor.operators.registry import OperatorKind, alone


def analyze(step: AnalysisStep, spec: BatchesSpec) -> AnalyzedOutput:
    schema = known_schema(step.operator_name, step.input_schema)
    if spec.function is not None:
        schema = to_arrow(spec.function(step.frame().frame).schema)
    if spec.marks:
        schema = pa.schema([field.with_nullable(True) for field in schema])
        schema = schema.append(pa.field(BATCH, pa.int64()))
        schema = schema.append(pa.field(CHECKPOINT, pa.int64()))
    return AnalyzedOutput(schema=schema)


class Batches(StreamOperator):
    """Without a function, rows pass through as they arrive. With one, they wait in a file for the
    checkpoint, before which the results are emitted: a snapshot contains none of them.
    """

    def __init__(self, spec: BatchesSpec) -> None:
        self._spec = spec
        self._spooled: SpooledRows | None = None
        self._received = False  # rows, since the last checkpoint
        self._loader: BundleLoader | None = None
        self._next: list[int] = []  # operator list state: the number of batches

    def setup(self, context: RuntimeContext, output: Output) -> None:
        super().setup(context, output)
        if self._spec.function is not None:
            self._engine = engine_of(context.spark)

    def initialize_state(self, state: OperatorState) -> None:
        self._next = state.list_state("batches")

    def process_batch(self, batch: pa.RecordBatch, input_index: int) -> None:
        if not batch.num_rows:
            return
        self._received = True
        if self._spec.function is None:
            self._emit(batch)
            return
        if self._spooled is None:
            self._spooled = SpooledRows(self._schema_of(batch))
        self._spooled.write(batch)

    def prepare_barrier(self, checkpoint_id: int) -> None:
        self._end_batch(checkpoint_id)

    def finish(self) -> None:
        self._end_batch(None)

    def close(self) -> None:
        spooled, self._spooled = self._spooled, None
        if spooled is not None:
            spooled.discard()

    def _end_batch(self, checkpoint_id: int | None) -> None:
        spooled, self._spooled = self._spooled, None
        if spooled is not None:
            with pa.ipc.open_stream(spooled.finish().content) as reader:
                self._transform(list(reader))
        received, self._received = self._received, False
        if not self._spec.marks or (checkpoint_id is None and not received):
            return
        number = None
        if received:
            number = self._next[0] if self._next else 0
            self._next[:] = [number + 1]
        self.output.emit(self._mark(number, checkpoint_id))

    def _transform(self, rows: list[pa.RecordBatch]) -> None:
        assert self._spec.function is not None
        if self._loader is None:
            engine = self._engine
            self._loader = BundleLoader(engine.session, engine.bundles, self._schema_of(rows[0]))
        task = self.context.task
        with (
            self.context.time("spark"),
            self._engine.job_group(
                f"firesteel-{task.attempt_id}",
                f"{task.job_name}: {task.task_name_with_subtask}",
                lambda: self.context.cancelled,
            ),
            self._loader.dataframe(rows) as frame,
        ):
            table = self._spec.function(frame).toArrow()
        for batch in table.to_batches():
            self._emit(batch)

    def _emit(self, batch: pa.RecordBatch) -> None:
        if not self._spec.marks:
            schema = self.context.output_schema
            self.output.emit(batch if schema is None else conform(batch, schema))
            return
        nothing = pa.nulls(batch.num_rows, pa.int64())
        columns = [*batch.columns, nothing, nothing]
        names = [*batch.schema.names, BATCH, CHECKPOINT]
        marked = pa.RecordBatch.from_arrays(columns, names)
        self.output.emit(conform(marked, self._marked_schema()))

    def _mark(self, number: int | None, checkpoint_id: int | None) -> pa.RecordBatch:
        schema = self._marked_schema()
        nulls = [pa.nulls(1, field.type) for field in schema][:-2]
        last = [pa.array([value], pa.int64()) for value in (number, checkpoint_id)]
        return pa.RecordBatch.from_arrays([*nulls, *last], schema=schema)

    def _marked_schema(self) -> pa.Schema:
        schema = self.context.output_schema
        assert schema is not None, "the analysis has determined it"
        return schema

    def _schema_of(self, batch: pa.RecordBatch) -> pa.Schema:
        return self.context.input_schemas[0] or batch.schema


KINDS = (OperatorKind(BatchesSpec, analyze, alone(Batches)),)
