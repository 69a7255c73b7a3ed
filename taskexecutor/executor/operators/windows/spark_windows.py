"""Runs the function, or the aggregates, of windows that keep their rows, on Spark."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import ExitStack, closing
from functools import cached_property
from typing import TYPE_CHECKING

import pyarrow as pa
import structlog

from firesteel.errors import FiresteelError
from firesteel.operator import Output, RuntimeContext
from firesteel.operators import Spec, TransformSpec, WindowApplySpec
from firesteel.row_kind import INSERT, ROW_KIND
from taskexecutor.executor.columnar.cached_plans import composed
from taskexecutor.executor.columnar.cached_plans.table_versions import pinned
from taskexecutor.executor.columnar.cached_plans.windows_together import gets_windows_together
from taskexecutor.executor.columnar.jvm.engine import engine_of
from taskexecutor.executor.columnar.jvm.transfer import BundleLoader, collect
from taskexecutor.executor.columnar.runners.bundle_plans import BundlePlans
from taskexecutor.executor.columnar.schemas import to_arrow, to_spark
from taskexecutor.executor.operators.windows.fired_rows import window_field

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_log = structlog.get_logger(__name__)


class SparkWindows:
    """Runs a plan on Spark. The plan is cached if that is sound."""

    def __init__(self, spec: WindowApplySpec) -> None:
        self._spec = spec
        self._way: BundleLoader | None = None
        self._plans: BundlePlans | None = None

    def setup(self, context: RuntimeContext, output: Output) -> None:
        self._context = context
        self._output = output
        self._engine = engine_of(context.spark)
        self._description = f"{context.task.job_name}: {context.task.task_name_with_subtask}"
        self._job_group = f"firesteel-{context.task.attempt_id}"

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

        def result(frame: DataFrame) -> DataFrame:
            return composed.window_result(frame, self._spec)

        try:
            with self._context.time("spark"), self._context.plan_meter.planning, pinned():
                return gets_windows_together(result, leaf, window_columns)
        except Exception as error:
            # If it is the program's error, the run of a window raises it again.
            _log.info("windows are computed one by one", error=repr(error))
            return False

    def run(self, table: pa.Table, kind: str = INSERT) -> None:
        """Emits the results of rows that have their window's columns. `kind` is the `row_kind` of
        results that may be retracted.
        """
        engine, context = self._engine, self._context
        if self._plans is None:
            meter = context.plan_meter
            self._plans = BundlePlans(engine, table.schema, self._specs, meter, whole=True)
            self._way = BundleLoader(engine.session, engine.bundles, table.schema)
        plans, batches = self._plans, table.combine_chunks().to_batches()
        context.count_bundle(table.num_rows)
        plans.drop_if_outdated()
        suited = plans.suits(table.num_rows, table.nbytes)
        with context.time("spark"), ExitStack() as stack:
            if suited and plans.frame is not None:
                stack.enter_context(engine.cancelling(self._job_group, self._cancelled))
            else:
                stack.enter_context(
                    engine.job_group(self._job_group, self._description, self._cancelled)
                )
                if suited and plans.undecided:
                    plans.make()
            if suited and plans.frame is not None:
                schema = self._checked(plans.frame)
                self._emit(plans.run(batches, schema, self._job_group), kind)
                return
            assert self._way is not None
            with context.plan_meter.converting:
                frame = stack.enter_context(self._way.dataframe(batches))
            with context.plan_meter.planning:
                frame = composed.window_result(frame, self._spec)
            context.plan_meter.made()
            self._emit(collect(frame, self._checked(frame), context.plan_meter), kind)

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

    def _emit(self, results: Generator[pa.RecordBatch, None, None], kind: str) -> None:
        with closing(results) as batches:
            for batch in batches:
                if self._spec.retracts:
                    batch = batch.append_column(ROW_KIND, pa.repeat(kind, batch.num_rows))
                self._output.emit(batch)

    def _cancelled(self) -> bool:
        return self._context.cancelled

    def close(self) -> None:
        if self._plans is not None:
            self._plans.close()
