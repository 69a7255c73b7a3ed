"""Windows of rows, on which Spark runs when they fire: `window.apply(...)`, and aggregates that
cannot be split.
"""

from __future__ import annotations

from contextlib import ExitStack, closing
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from firesteel.errors import FiresteelError
from firesteel.operator import Output, RuntimeContext
from firesteel.plan.specs import WindowApplySpec
from firesteel.row_kind import INSERT
from taskexecutor.executor.aggregation.grouping import Ints
from taskexecutor.executor.operators.windows.contents import (
    TIME,
    WINDOW_END,
    WINDOW_START,
    Combined,
    as_timestamps,
)
from taskexecutor.executor.operators.windows.kept_rows import KeptRows
from taskexecutor.executor.spark.jvm.engine import engine_of
from taskexecutor.executor.spark.plans import composed
from taskexecutor.executor.spark.schemas import to_arrow
from taskexecutor.executor.spark.transfer import BundleLoader, collect

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


class RowContents(KeptRows):
    """Rows as they arrived. `emit` gives them to Spark with their window's start and end as two
    more columns.

    A function sees one window at a time (of sessions: all that fire together), with all keys of
    this subtask.
    """

    combines = False

    def __init__(self, spec: WindowApplySpec) -> None:
        self._spec: WindowApplySpec = spec
        self.key_columns = spec.key_columns
        self.retracts = spec.retracts
        self.one_window_at_a_time = spec.function is not None
        self._way: BundleLoader | None = None

    def setup(self, context: RuntimeContext, output: Output) -> None:
        super().setup(context, output)
        self._engine = engine_of(context.spark)
        self._description = f"{context.task.job_name}: {context.task.task_name_with_subtask}"

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
        if self._way is None:
            self._way = BundleLoader(self._engine.session, self._engine.bundles, table.schema)
        meter = self._context.plan_meter
        meter.not_kept("windows of rows are planned when they fire")
        self._context.count_bundle(table.num_rows)
        group = f"firesteel-{self._context.task.attempt_id}"
        with (
            self._context.time("spark"),
            self._engine.job_group(group, self._description, lambda: self._context.cancelled),
            ExitStack() as loaded,
        ):
            with meter.converting:
                batches = table.combine_chunks().to_batches()
                rows = loaded.enter_context(self._way.dataframe(batches))
            with meter.planning:
                frame = composed.window_result(rows, self._spec, kind)
            meter.made()
            self._run(frame)

    def _run(self, frame: DataFrame) -> None:
        schema = self._context.output_schema or to_arrow(frame.schema)
        if frame.columns != schema.names:
            raise FiresteelError(
                f"{self._context.operator_name}: the function's columns changed between windows: "
                f"expected {', '.join(schema.names)}; got {', '.join(frame.columns)}"
            )
        with closing(collect(frame, schema, self._context.plan_meter)) as batches:
            for batch in batches:
                self._output.emit(batch)
