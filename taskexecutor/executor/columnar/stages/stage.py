"""Operators that run on Spark: each maximal run of them in a chain is a stage, with one plan."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import closing
from typing import TYPE_CHECKING

import pyarrow as pa

from firesteel.errors import FiresteelError
from firesteel.operator import Output, RuntimeContext, StreamOperator
from firesteel.operators import PartialWindowAggregateSpec, SlidingSpec, Spec, TumblingSpec
from firesteel.operators.aggregates import aggregate_of
from taskexecutor.executor.columnar.cached_plans import composed
from taskexecutor.executor.columnar.grouping.whole_windows import whole_windows
from taskexecutor.executor.columnar.jvm.engine import SparkEngine
from taskexecutor.executor.columnar.runners.runner import Runner, TaskOnSpark
from taskexecutor.executor.columnar.schemas import conform, shown, to_arrow, to_spark
from taskexecutor.executor.timing.watermarks import MissingTime

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType


class SparkStage(StreamOperator):
    """A group of operators as one plan, run in the task's job group."""

    _engine: SparkEngine

    def __init__(self, specs: Sequence[Spec], output_schema: pa.Schema | None) -> None:
        self._specs = tuple(specs)
        self._output_schema = output_schema  # None: taken from the first bundle's plan
        self._dtypes: list[tuple[str, str]] = []  # of the last bundle's plan
        self._aggregate = aggregate_of(self._specs)
        self._emitted = False  # rows, since `_end_rows`
        self._without_rows: pa.RecordBatch | None = None  # see `_end_rows`

    def setup(self, context: RuntimeContext, output: Output) -> None:
        super().setup(context, output)
        self._spark = TaskOnSpark(context)
        self._engine = self._spark.engine

    def _run(self, runner: Runner) -> None:
        """Runs a bundle and emits its results."""
        self._spark.run(runner, self._checked, self._emit)

    def _end_rows(self, schema: StructType) -> None:
        """Called after a bundle or a split, whose rows have this schema. If no row of it is left,
        emits what an aggregate without groups has of no rows.
        """
        emitted, self._emitted = self._emitted, False
        aggregate = self._aggregate
        if emitted or aggregate is None or not aggregate.without_groups:
            return
        if self._without_rows is None:
            with self._spark.job():
                frame = composed.empty_frame(self._engine.session, schema)
                rows = composed.apply(frame, self._specs[:-1], cores=0)
                frame = composed.partial_without_rows(rows, aggregate)
                (batch,) = frame.toArrow().combine_chunks().to_batches()
                self._without_rows = conform(batch, self._checked(frame))
        self.output.emit(self._without_rows)

    def _planned(self, leaf: DataFrame) -> DataFrame:
        """Returns the results of the group over `leaf`, for a Spark job."""
        return composed.apply(leaf, self._specs, cores=self._engine.cores)

    def emit(self, result: Generator[pa.RecordBatch, None, None]) -> None:
        with closing(result) as batches:
            for batch in batches:
                self._emit(batch)

    def _emit(self, batch: pa.RecordBatch) -> None:
        self._emitted = self._emitted or batch.num_rows > 0
        if self._aggregate is not None and self._aggregate.in_event_time:
            batch = _in_windows(batch, self._aggregate)
        self.output.emit(batch)

    def _checked(self, frame: DataFrame) -> pa.Schema:
        """Returns the schema of the results. Raises FiresteelError if the columns changed. A
        transform may build its plan from the data that it sees, but must keep its columns.
        """
        dtypes = frame.dtypes
        if self._output_schema is not None and dtypes == self._dtypes:
            return self._output_schema
        schema = to_arrow(frame.schema)
        if self._output_schema is None:
            self._output_schema = schema
        # Compared as Spark types, which ignore the nullability of nested parts.
        elif to_spark(schema).simpleString() != to_spark(self._output_schema).simpleString():
            raise FiresteelError(
                f"{self.context.operator_name}: the transform's columns changed between bundles: "
                f"expected {shown(self._output_schema)}; got {shown(schema)}"
            )
        self._dtypes = dtypes
        return self._output_schema


def _in_windows(batch: pa.RecordBatch, aggregate: PartialWindowAggregateSpec) -> pa.RecordBatch:
    """Returns partial rows as the keyed half expects them. Raises MissingTime if it must not get
    rows without a time.
    """
    window, start = aggregate.window, composed.WINDOW_START
    if not aggregate.whole_windows:
        if batch.column(batch.schema.get_field_index(start)).null_count:
            raise MissingTime(aggregate.time_column)
        return batch
    assert isinstance(window, TumblingSpec | SlidingSpec)
    return whole_windows(
        batch,
        window,
        start=start,
        end=composed.WINDOW_END,
        keys=aggregate.key_columns,
        merges=aggregate.merges | {composed.ROWS: "sum"},
    )
