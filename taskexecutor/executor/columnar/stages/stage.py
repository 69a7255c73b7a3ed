"""Operators that run on Spark: each maximal run of them in a chain is a stage, with one plan."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING

import pyarrow as pa

from firesteel.errors import FiresteelError
from firesteel.operator import Output, RuntimeContext, StreamOperator
from firesteel.operators import Spec
from firesteel.operators.aggregates import aggregate_of
from taskexecutor.executor.columnar.cached_plans import composed
from taskexecutor.executor.columnar.jvm.engine import SparkEngine, engine_of
from taskexecutor.executor.columnar.jvm.transfer import collect
from taskexecutor.executor.columnar.schemas import shown, to_arrow, to_spark
from taskexecutor.executor.timing.watermarks import MissingTime

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


class SparkStage(StreamOperator):
    """A group of operators as one plan, run in the task's job group."""

    _engine: SparkEngine

    def __init__(self, specs: Sequence[Spec], output_schema: pa.Schema | None) -> None:
        self._specs = tuple(specs)
        self._output_schema = output_schema  # None: taken from the first bundle's plan
        self._dtypes: list[tuple[str, str]] = []  # of the last bundle's plan

    def setup(self, context: RuntimeContext, output: Output) -> None:
        super().setup(context, output)
        self._engine = engine_of(context.spark)
        self._job_group = f"firesteel-{context.task.attempt_id}"
        self._description = f"{context.task.job_name}: {context.task.task_name_with_subtask}"

    def _cancelled(self) -> bool:
        return self.context.cancelled

    @contextmanager
    def _on_spark(self) -> Iterator[None]:
        with (
            self.context.time("spark"),
            self._engine.job_group(self._job_group, self._description, self._cancelled),
        ):
            yield

    def _run(self, frame: DataFrame) -> DataFrame:
        """Applies the group to `frame`, runs the plan, emits its rows, and returns its
        DataFrame.
        """
        meter = self.context.plan_meter
        with meter.planning:
            frame = composed.apply(frame, self._specs, cores=self._engine.cores)
            self._check_schema(frame)
        meter.made()
        assert self._output_schema is not None
        self.emit(collect(frame, self._output_schema, meter))
        return frame

    def emit(self, result: Generator[pa.RecordBatch, None, None]) -> None:
        with closing(result) as batches:
            for batch in batches:
                self._check_times(batch)
                self.output.emit(batch)

    def _show_plan(self, frame: DataFrame) -> None:
        if self.context.task.subtask == 0:  # one subtask is enough
            self.context.show_plan(lambda: composed.optimized_plan(frame))

    def _check_schema(self, frame: DataFrame) -> None:
        """Raises FiresteelError if the columns changed. A transform may build its plan from the
        data that it sees, but must keep its columns.
        """
        dtypes = frame.dtypes
        if dtypes == self._dtypes:
            return
        found = to_arrow(frame.schema)
        if self._output_schema is None:
            self._output_schema = found
        # Compared as Spark types, which ignore the nullability of nested parts.
        elif to_spark(found).simpleString() != to_spark(self._output_schema).simpleString():
            raise FiresteelError(
                f"{self.context.operator_name}: the transform's columns changed between bundles: "
                f"expected {shown(self._output_schema)}; got {shown(found)}"
            )
        self._dtypes = dtypes

    def _check_times(self, batch: pa.RecordBatch) -> None:
        aggregate = aggregate_of(self._specs)
        if aggregate is None or not aggregate.in_event_time:
            return
        starts = batch.column(batch.schema.get_field_index(composed.WINDOW_START))
        if starts.null_count:
            raise MissingTime(aggregate.time_column)
