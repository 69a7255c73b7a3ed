"""Analyzes windows: the columns of their rows, and the functions that they run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import pyarrow as pa

from firesteel.common.error_report import summary_of
from firesteel.errors import FiresteelError
from firesteel.operators import (
    DynamicSessionSpec,
    SessionSpec,
    WindowAggregateSpec,
    WindowApplySpec,
    WindowTopNSpec,
)
from firesteel.operators.assigners import SESSION_GAP
from firesteel.row_kind import ROW_KIND
from taskexecutor.executor.analysis.by_key import ByKey, KeyedFrame
from taskexecutor.executor.analysis.checks import check_order, check_window_columns
from taskexecutor.executor.analysis.random_numbers import Seed, check_seeds, is_repeatable
from taskexecutor.executor.analysis.row_by_row import AnyRows, RowByRow
from taskexecutor.executor.analysis.step import (
    BUNDLE,
    AnalysisStep,
    AnalyzedOutput,
    Frame,
    Retracting,
    Updating,
)
from taskexecutor.executor.columnar.cached_plans import composed
from taskexecutor.executor.columnar.schemas import to_arrow, to_spark
from taskexecutor.executor.operators.aggregates import (
    finished_schema,
    raise_for_expression,
)
from taskexecutor.executor.operators.columns import RANK, WINDOW_FIELDS, WINDOW_ID, with_kind

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def analyze_window_aggregate(step: AnalysisStep, spec: WindowAggregateSpec) -> AnalyzedOutput:
    schema = finished_schema(step)
    return AnalyzedOutput(
        schema=with_kind(schema) if spec.retracts else schema,
        retracting=Retracting.of_window(step.operator_name) if spec.retracts else None,
        updating=_for_late_records(step, spec),
    )


def analyze_window_apply(step: AnalysisStep, spec: WindowApplySpec) -> AnalyzedOutput:
    frame = step.frame().frame
    rows = to_arrow(frame.schema)
    check_window_columns(step, rows, spec.key_columns, spec.time_column)
    if isinstance(spec.window, DynamicSessionSpec):
        rows = rows.remove(rows.get_field_index(SESSION_GAP))
    window_fields = window_fields_of(spec)
    columns = [field for field in rows if field.name not in spec.window_columns]
    fired = composed.empty_frame(step.session, to_spark(pa.schema([*columns, *window_fields])))
    try:
        result = composed.window_result(fired, spec)
    except Exception as error:
        raise_for_expression(frame, spec.aggregates)
        if spec.function is not None:
            raise
        raise FiresteelError(f"{step.operator_name}: {summary_of(error)}") from error
    if spec.function is not None:
        check_seeds(
            step.operator_name,
            _checked(step, spec, fired, result),
            lambda: _checked(step, spec, fired, composed.window_result(fired, spec)),
            each_run="window that fires",
        )
    schema = to_arrow(result.schema)
    updating = _for_late_records(step, spec)
    if spec.fires_repeatedly:
        updating = step.updating(
            when="the results of a window again each time it fires (trigger)",
            instead="have the window drop its rows there (PurgingTrigger.of(trigger))",
        )
    return AnalyzedOutput(
        schema=with_kind(schema) if spec.retracts else schema,
        updating=updating,
        plan=composed.analyzed_plan(result, "Window"),
        sides={spec.late_tag: rows} if spec.late_tag else {},
        retracting=Retracting.of_window(step.operator_name) if spec.retracts else None,
        repeatable=is_repeatable(result),
    )


def _checked(
    step: AnalysisStep, spec: WindowApplySpec, fired: DataFrame, result: DataFrame
) -> set[Seed]:
    """Raises FiresteelError if the function relates rows that it must not. Returns the seeds that
    rows pass in it.
    """
    given = KeyedFrame(Frame(fired, BUNDLE), spec.key_columns)
    # Several sessions fire at the same time.
    by_time = [frozenset(spec.window_columns)]
    also = by_time if isinstance(spec.window, SessionSpec) else []
    checks: RowByRow
    if spec.across_keys or not (spec.key_columns or also):
        checks = AnyRows(step.operator_name, given.frame)
    else:
        checks = ByKey(step.operator_name, given, also=also)
    checks.check(result)
    return checks.seeds


def analyze_window_top_n(step: AnalysisStep, spec: WindowTopNSpec) -> AnalyzedOutput:
    schema = to_arrow(step.frame().frame.schema)
    check_window_columns(step, schema, spec.key_columns, spec.time_column)
    check_order("top_n", schema, spec.by, (RANK, ROW_KIND) if spec.retracts else (RANK,))
    window_columns = {field.name for field in WINDOW_FIELDS}
    fields = [field for field in schema if field.name not in window_columns]
    fields += [*WINDOW_FIELDS, pa.field(RANK, pa.int32())]
    if spec.retracts:
        fields.append(pa.field(ROW_KIND, pa.string()))
    return AnalyzedOutput(
        schema=pa.schema(fields),
        sides={spec.late_tag: schema} if spec.late_tag else {},
        retracting=Retracting.of_window(step.operator_name) if spec.retracts else None,
    )


def _for_late_records(
    step: AnalysisStep, spec: WindowAggregateSpec | WindowApplySpec
) -> Updating | None:
    if not spec.allowed_lateness_us:
        return None
    return step.updating(
        when="the row of a window again for late records (allowed_lateness)",
        instead="omit allowed_lateness there (side_output_late keeps late records)",
    )


def window_fields_of(spec: WindowApplySpec) -> Sequence[pa.Field]:
    if spec.window_columns == (WINDOW_ID,):
        return [pa.field(WINDOW_ID, pa.int64())]
    return WINDOW_FIELDS
