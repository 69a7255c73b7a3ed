"""Runs a plan of Spark over keys, values or rows, in the source or the sink itself."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import pyarrow as pa

from firesteel.errors import FiresteelError
from firesteel.operator import RuntimeContext
from firesteel.operators import TransformSpec
from taskexecutor.executor.columnar.cached_plans import composed
from taskexecutor.executor.columnar.jvm.engine import SparkEngine
from taskexecutor.executor.columnar.runners.bundle_plans import BundlePlans
from taskexecutor.executor.columnar.runners.runner import TaskOnSpark
from taskexecutor.executor.columnar.schemas import to_arrow, to_spark

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

Function = Callable[["DataFrame"], "DataFrame"]


class RecordPlan:
    """A cached plan: the calling thread runs it over batches of any size, without a Spark job."""

    def __init__(self, context: RuntimeContext, schema: pa.Schema, function: Function) -> None:
        """`schema` is that of the batches. `function` returns one row for each of their rows.
        Raises FiresteelError if the plan cannot be made.
        """
        self._on_spark = TaskOnSpark(context)
        engine = self._on_spark.engine
        with self._on_spark.job():
            self.schema = planned_schema(engine, schema, function)
            specs = [TransformSpec(function=function)]
            self._plans = BundlePlans(engine, schema, specs, context.plan_meter)
            self._plans.make()
        if self._plans.frame is None:
            raise FiresteelError(
                f"{context.operator_name}: the plan of its format cannot be cached; "
                "firesteel show --full gives the reason"
            )

    def run(self, batches: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
        """Returns one row for each row, in order."""
        with self._on_spark.local():
            results = list(self._plans.run(batches, self.schema, self._on_spark.job_group))
        if len(results) == 1:
            return results[0]
        return pa.concat_batches(results) if results else self.schema.empty_table().to_batches()[0]

    def close(self) -> None:
        self._plans.close()


def planned_schema(engine: SparkEngine, schema: pa.Schema, function: Function) -> pa.Schema:
    """Returns the columns of the plan's results. Raises the errors of Spark's analysis."""
    return to_arrow(function(composed.empty_frame(engine.session, to_spark(schema))).schema)
