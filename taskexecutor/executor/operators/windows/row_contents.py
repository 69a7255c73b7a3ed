"""Windows of rows, on which Spark runs when they fire: `window.apply(...)`, and aggregates that
cannot be split.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import ExitStack, closing
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import structlog

from firesteel.errors import FiresteelError
from firesteel.operator import Output, RuntimeContext
from firesteel.plan.specs import Spec, TransformSpec, WindowApplySpec
from firesteel.row_kind import INSERT, ROW_KIND
from taskexecutor.executor.aggregation.grouping import Ints
from taskexecutor.executor.operators.windows.contents import (
    TIME,
    WINDOW_END,
    WINDOW_START,
    Combined,
    as_timestamps,
)
from taskexecutor.executor.operators.windows.kept_rows import KeptRows
from taskexecutor.executor.spark.bundles.plans import BundlePlans
from taskexecutor.executor.spark.jvm.engine import engine_of
from taskexecutor.executor.spark.plans import composed
from taskexecutor.executor.spark.plans.table_versions import pinned
from taskexecutor.executor.spark.plans.windows_together import gets_windows_together
from taskexecutor.executor.spark.schemas import to_arrow, to_spark
from taskexecutor.executor.spark.transfer import BundleLoader, collect

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


_log = structlog.get_logger(__name__)


class RowContents(KeptRows):
    """Rows as they arrived. `emit` gives them to Spark with their window's start and end as two
    more columns.

    A function gets all windows that fire together, with all keys of this subtask, if its plan keeps
    windows apart (`windows_together`), else one window at a time (of sessions: all that fire
    together). The plan is kept if that is sound.
    """

    combines = False

    def __init__(self, spec: WindowApplySpec) -> None:
        self._spec: WindowApplySpec = spec
        self.key_columns = spec.key_columns
        self.retracts = spec.retracts
        self.with_all_keys = spec.function is not None
        self._together: bool | None = None  # None: not known yet
        self._way: BundleLoader | None = None
        self._plans: BundlePlans | None = None

    def setup(self, context: RuntimeContext, output: Output) -> None:
        super().setup(context, output)
        self._engine = engine_of(context.spark)
        self._description = f"{context.task.job_name}: {context.task.task_name_with_subtask}"
        self._job_group = f"firesteel-{context.task.attempt_id}"

    @property
    def one_window_at_a_time(self) -> bool:
        if self._together is None:
            self._together = self._get_together()
        return not self._together

    def _get_together(self) -> bool:
        given, function = self._context.input_schemas[0], self._spec.function
        if function is None or given is None:
            return function is None
        window_columns = (WINDOW_START, WINDOW_END)
        fields = [field for field in given if field.name not in window_columns]
        fields += [pa.field(name, TIME) for name in window_columns]
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

    def combined(self, table: pa.Table, windows: Ints, *, of_one_key: bool = False) -> Combined:
        if (windows[1:] >= windows[:-1]).all():
            return Combined(table, windows)
        order = np.argsort(windows, kind="stable")
        return Combined(table.take(pa.array(order)), windows[order])

    def emit(self, table: pa.Table, starts: Ints, ends: Ints, kind: str = INSERT) -> None:
        if not table.num_rows:
            return
        for name, times in ((WINDOW_START, starts), (WINDOW_END, ends)):
            if name in table.schema.names:  # the rows are results of other windows
                table = table.drop_columns([name])
            table = table.append_column(pa.field(name, TIME), as_timestamps(times))
        if self._plans is None:
            meter = self._context.plan_meter
            self._plans = BundlePlans(self._engine, table.schema, self._specs, meter, whole=True)
            self._way = BundleLoader(self._engine.session, self._engine.bundles, table.schema)
        self._context.count_bundle(table.num_rows)
        self._run(self._plans, table.combine_chunks().to_batches(), kind)

    @property
    def _specs(self) -> list[Spec]:
        if self._spec.function is not None:
            return [TransformSpec(function=self._spec.function)]
        return [self._spec]

    def _run(self, plans: BundlePlans, batches: list[pa.RecordBatch], kind: str) -> None:
        engine, context = self._engine, self._context
        plans.drop_if_outdated()
        rows = sum(batch.num_rows for batch in batches)
        suited = plans.suits(rows, sum(batch.nbytes for batch in batches))
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

    def _checked(self, frame: DataFrame) -> pa.Schema:
        """Of the results, without `row_kind`."""
        schema = self._context.output_schema
        if schema is None:
            return to_arrow(frame.schema)
        if self.retracts:
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
                if self.retracts:
                    batch = batch.append_column(ROW_KIND, pa.repeat(kind, batch.num_rows))
                self._output.emit(batch)

    def _cancelled(self) -> bool:
        return self._context.cancelled

    def close(self) -> None:
        if self._plans is not None:
            self._plans.close()
