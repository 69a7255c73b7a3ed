"""Spark operators after a task's input or a Python operator.

Input is gathered into bundles: everything that arrives while Spark is busy, up to a limit. The task
flushes before watermarks, at the end, and when its input runs dry: no row waits for later rows, and
no watermark overtakes a row.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import pyarrow as pa

from firesteel.common.config import Configuration, options
from firesteel.operator import Output, RuntimeContext
from firesteel.operators import Spec, TransformSpec
from firesteel.operators.aggregates import aggregate_of
from taskexecutor.executor.columnar import choose
from taskexecutor.executor.columnar.cached_plans import composed
from taskexecutor.executor.columnar.cached_plans.row_partials import (
    may_merge_by_row,
    row_partials,
)
from taskexecutor.executor.columnar.cached_plans.table_versions import pinned
from taskexecutor.executor.columnar.columns.sink import ColumnSink
from taskexecutor.executor.columnar.grouping.row_partials import RowPartials
from taskexecutor.executor.columnar.runners.bundle_plans import BundlePlans
from taskexecutor.executor.columnar.stages.stage import SparkStage
from taskexecutor.executor.timing.bundle_time import FIRST_ROWS, MOST_S, BundleLimit

_MOST_ROWS = 2**20  # of a bundle for another operator of the task

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


class After(NamedTuple):
    """The result of a stage over all rows together."""

    frame: DataFrame
    schema: pa.Schema  # of the emitted rows
    # computes them from the DataFrame's rows; None: emitted unchanged
    grouping: RowPartials | None = None


class SparkTransformStage(SparkStage):
    """One Catalyst plan, cached between bundles if that is sound."""

    def __init__(
        self,
        specs: Sequence[Spec],
        output_schema: pa.Schema | None,
        input_schema: pa.Schema | None = None,
    ) -> None:
        """`input_schema`: None uses the one that the context knows, or that of the first bundle."""
        super().__init__(specs, output_schema)
        self._input_schema = input_schema
        self._bundle: list[pa.RecordBatch] = []
        self._bundle_bytes = 0
        self._bundle_rows = 0
        self._limit: BundleLimit | None = None
        self._plans: BundlePlans | None = None
        self._by_row: BundlePlans | None = None  # of an aggregate: for bundles of few rows

    def setup(self, context: RuntimeContext, output: Output) -> None:
        super().setup(context, output)
        self._limit_bytes = Configuration(context.config).get(options.BUNDLE_BYTES)
        if context.chained and self._aggregate is None:
            self._limit = BundleLimit(first=FIRST_ROWS, least=1, most=_MOST_ROWS, target_s=MOST_S)

    def after(self, frame: DataFrame) -> After | None:
        """Applies the group to all rows together; returns None if it is meant for bundles."""
        if any(isinstance(spec, TransformSpec) and spec.per_bundle for spec in self._specs):
            return None
        *before, last = self._specs
        with pinned():
            rows = composed.apply(frame, before, cores=0)
            results = composed.apply(rows, [last], cores=0)
        schema = self._checked(results)
        aggregate = aggregate_of(self._specs)
        if aggregate is not None and not composed.by_row(rows, aggregate):
            given = row_partials(rows, aggregate, results)
            if given is not None and ColumnSink.groups(self._engine, given):
                return After(given.frame, schema, given.grouping)
        return After(results, schema)

    def process_batch(self, batch: pa.RecordBatch, input_index: int) -> None:
        if not batch.num_rows:
            return
        self._bundle.append(batch)
        self._bundle_bytes += batch.nbytes
        self._bundle_rows += batch.num_rows
        limit = self._limit
        if self._bundle_bytes >= self._limit_bytes or (limit and self._bundle_rows >= limit.size):
            self.flush()

    def flush(self) -> None:
        if not self._bundle:
            return
        bundle, rows = self._bundle, self._bundle_rows
        self._bundle, self._bundle_bytes, self._bundle_rows = [], 0, 0
        begun_s = self.context.busy_s
        if self._plans is None:
            self._plans = self._new_plans(bundle[0].schema)
            aggregate = aggregate_of(self._specs)
            if aggregate is not None and may_merge_by_row(aggregate):
                self._by_row = self._new_plans(bundle[0].schema, by_row=True)
        plans = self._prepared(bundle, self._plans)
        with plans.runner(bundle, self._planned) as runner:
            self._run(runner)
        if self._limit is not None:
            self._limit.took(self.context.busy_s - begun_s, rows)
        self._end_rows(plans.spark_schema)

    def _new_plans(self, given: pa.Schema, *, by_row: bool = False) -> BundlePlans:
        schema = self._input_schema or self.context.input_schemas[0] or given
        meter = self.context.plan_meter
        return BundlePlans(self._engine, schema, self._specs, meter, by_row=by_row)

    def _prepared(self, bundle: Sequence[pa.RecordBatch], plans: BundlePlans) -> BundlePlans:
        """Returns the plans to run the bundle with: `plans`, unless its rows need no grouping."""
        by_row = self._by_row
        if by_row is not None and not choose.leave_ungrouped(sum(map(len, bundle))):
            by_row.prepare(bundle, self._spark.job)
            if by_row.frame is not None:
                return by_row
        plans.prepare(bundle, self._spark.job)
        return plans

    def close(self) -> None:
        self._bundle = []
        for plans in (self._plans, self._by_row):
            if plans is not None:
                plans.close()
