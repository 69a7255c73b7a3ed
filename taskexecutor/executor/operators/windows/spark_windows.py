"""Runs the function, or the aggregates, of windows that keep their rows, on Spark."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

import pyarrow as pa

from firesteel.common.logs import get_logger
from firesteel.errors import FiresteelError
from firesteel.operator import Output, RuntimeContext
from firesteel.operators import Spec, TransformSpec, WindowApplySpec
from firesteel.row_kind import INSERT, ROW_KIND
from taskexecutor.executor.columnar.cached_plans import composed
from taskexecutor.executor.columnar.cached_plans.table_versions import pinned
from taskexecutor.executor.columnar.cached_plans.windows_together import gets_windows_together
from taskexecutor.executor.columnar.runners.bundle_plans import BundlePlans
from taskexecutor.executor.columnar.runners.runner import TaskOnSpark
from taskexecutor.executor.columnar.schemas import to_arrow, to_spark
from taskexecutor.executor.operators.windows.fired_rows import window_field

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_log = get_logger(__name__)


class SparkWindows:
    """Runs a plan on Spark. The plan is cached if that is sound."""

    def __init__(self, spec: WindowApplySpec) -> None:
        self._spec = spec
        self._plans: BundlePlans | None = None

    def setup(self, context: RuntimeContext, output: Output) -> None:
        self._context = context
        self._output = output
        self._spark = TaskOnSpark(context)
        self._engine = self._spark.engine

    @cached_property
    def together(self) -> bool:
        """Whether rows of several windows may be run together, because the plan keeps the windows
        apart.
        """
        given, function = self._context.input_schemas[0], self._spec.function
        if function is None or given is None:
            return function is None
        window_columns = self._spec.window_columns
        fields = [field for field in given if field.name not in window_columns]
        fields += [window_field(name) for name in window_columns]
        leaf = composed.empty_frame(self._engine.session, to_spark(pa.schema(fields)))

        try:
            with self._context.time("spark"), self._context.plan_meter.planning, pinned():
                return gets_windows_together(self._planned, leaf, window_columns)
        except Exception as error:
            # If it is the program's error, the run of a window raises it again.
            _log.info("windows are computed one by one", error=repr(error))
            return False

    def run(self, table: pa.Table, kind: str = INSERT) -> None:
        """Emits the results of rows that have their window's columns. `kind` is the `row_kind` of
        results that may be retracted.
        """
        if self._plans is None:
            meter = self._context.plan_meter
            self._plans = BundlePlans(self._engine, table.schema, self._specs, meter, whole=True)
        batches = table.combine_chunks().to_batches()
        self._plans.prepare(batches, self._spark.job)
        with self._plans.runner(batches, self._planned) as runner:
            self._spark.run(runner, self._checked, lambda batch: self._emit(batch, kind))

    def _planned(self, leaf: DataFrame) -> DataFrame:
        return composed.window_result(leaf, self._spec)

    @property
    def _specs(self) -> list[Spec]:
        if self._spec.function is not None:
            return [TransformSpec(function=self._spec.function)]
        return [self._spec]

    def _checked(self, frame: DataFrame) -> pa.Schema:
        """Returns the schema of the results, without `row_kind`."""
        schema = self._context.output_schema
        if schema is None:
            return to_arrow(frame.schema)
        if self._spec.retracts:
            schema = schema.remove(schema.get_field_index(ROW_KIND))
        if frame.columns != schema.names:
            raise FiresteelError(
                f"{self._context.operator_name}: the function's columns changed between windows: "
                f"expected {', '.join(schema.names)}; got {', '.join(frame.columns)}"
            )
        return schema

    def _emit(self, batch: pa.RecordBatch, kind: str) -> None:
        if self._spec.retracts:
            batch = batch.append_column(ROW_KIND, pa.repeat(kind, batch.num_rows))
        self._output.emit(batch)

    def close(self) -> None:
        if self._plans is not None:
            self._plans.close()
