"""The partial half of aggregations, which Spark runs: their columns, and whether their expressions
resolve.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

import pyarrow as pa

from firesteel.column_names import same
from firesteel.common.error_report import summary_of
from firesteel.errors import FiresteelError
from firesteel.operators import (
    AggregateExpression,
    PartialWindowAggregateSpec,
)
from firesteel.row_kind import ROW_KIND
from taskexecutor.executor.analysis.checks import (
    check_window_columns,
)
from taskexecutor.executor.analysis.dropped_changes import given_once
from taskexecutor.executor.analysis.random_numbers import (
    is_repeatable,
)
from taskexecutor.executor.analysis.step import (
    AnalysisStep,
    AnalyzedOutput,
)
from taskexecutor.executor.columnar.cached_plans import composed
from taskexecutor.executor.columnar.grouping.retraction import kept_of
from taskexecutor.executor.columnar.jvm.conditions import condition_of
from taskexecutor.executor.columnar.schemas import spark_name, to_arrow
from taskexecutor.executor.operators.columns import WINDOW_FIELDS
from taskexecutor.executor.operators.dataframes import create_transform
from taskexecutor.executor.operators.registry import OperatorKind

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

# Parameters of Spark's conditions that name what an expression refers to.
_NAMES = ("objectName", "fieldName", "routineName", "functionName")


def _analyze(step: AnalysisStep, spec: PartialWindowAggregateSpec) -> AnalyzedOutput:
    frame = step.frame()
    check_window_columns(step, to_arrow(frame.frame.schema), spec.key_columns, spec.time_column)
    by_row = composed.by_row(frame.frame, spec)
    if by_row:
        _check_by_row(step, spec, frame.frame.columns)
    try:
        partial = composed.partial_window_aggregate(frame.frame, spec, cores=0)
        final = _final_schema(frame.frame, spec)
    except Exception as error:
        raise_for_expression(frame.frame, spec.aggregates)
        raise FiresteelError(f"{step.operator_name}: {summary_of(error)}") from error
    _check_merges(spec.aggregates, to_arrow(partial.schema), ordered=by_row)
    if step.inputs[0].retracting:
        _check_retractable(spec, given_once(partial), step.inputs[0].retracting.who)
    output = AnalyzedOutput.on_spark(frame.with_plan(partial))
    output.final = final
    output.repeatable = is_repeatable(frame.frame)  # the order of groups does not matter
    return output


def finished_schema(step: AnalysisStep) -> pa.Schema:
    """Returns the schema of the keyed half of an aggregate."""
    if step.inputs[0].final is None:
        raise FiresteelError(f"{step.operator_name}: an aggregate must follow its partial half")
    return step.inputs[0].final


def _check_by_row(
    step: AnalysisStep, spec: PartialWindowAggregateSpec, columns: Sequence[str]
) -> None:
    given = step.inputs[0]
    if ROW_KIND in columns and not (given.retracting or given.settled):
        raise FiresteelError(
            f"aggregate: the stream has a column {ROW_KIND!r}, but its rows are not changes; rename"
            f" it: with_column_renamed({ROW_KIND!r}, ...)"
        )
    if any(same(name, ROW_KIND) for name in (*spec.key_columns, *_names(spec.aggregates))):
        raise FiresteelError(
            f"aggregate: its results have their own column {ROW_KIND!r}, because they may"
            " be deleted; choose another name"
        )
    kept_of(spec.aggregates)


def _check_retractable(spec: PartialWindowAggregateSpec, once: dict[str, str], who: str) -> None:
    for item in spec.aggregates:
        for column in item.merge:
            if column in once:
                raise FiresteelError(
                    f"aggregate({item.sql!r}): the contribution of a row of {who!r} could not be"
                    f" retracted when the row is deleted: {once[column]}; remove that from the "
                    "expression"
                )


def _names(aggregates: Sequence[AggregateExpression]) -> list[str]:
    return [item.name for item in aggregates]


def _final_schema(frame: DataFrame, spec: PartialWindowAggregateSpec) -> pa.Schema:
    """Returns the columns and types of the finished windows, those of Spark's unsplit
    aggregation.
    """
    from pyspark.sql import functions as sql

    whole = frame.groupBy(*(composed.column(key) for key in spec.key_columns)).agg(
        *(sql.expr(item.whole).alias(item.name) for item in spec.aggregates)
    )
    fields = list(to_arrow(whole.schema))
    keys = len(spec.key_columns)
    times = list(WINDOW_FIELDS) if spec.window else []
    if spec.whole_windows:
        times = times[1:]  # the end is a key, which determines the start
    return pa.schema([*fields[:keys], *times, *fields[keys:]])


def raise_for_expression(frame: DataFrame, aggregates: Sequence[AggregateExpression]) -> None:
    """Raises FiresteelError for the first expression that Spark cannot resolve, if any."""
    from pyspark.sql import functions as sql

    for item in aggregates:
        for text in (item.whole, *item.partial.values()):
            try:
                frame.agg(sql.expr(text))
            except Exception as error:
                summary = summary_of(error)
                place = _place_of(error, item.sql)
                raise FiresteelError(
                    f"aggregate({item.sql!r}): {summary}" + (f"\n{place}" if place else "")
                ) from error


def _place_of(error: Exception, text: str) -> str:
    """Returns the text with a caret under the first name that Spark's error is about."""
    from firesteel.plan.aggregates.parse import point_at  # loads the SQL parser

    parameters = condition_of(error).parameters
    names = (name for key in _NAMES for name in re.findall(r"`([^`]+)`", parameters.get(key, "")))
    return next(filter(None, (point_at(text, name) for name in names)), "")


def _check_merges(
    aggregates: Sequence[AggregateExpression], partial: pa.Schema, *, ordered: bool
) -> None:
    """Raises FiresteelError for partial results whose types only Spark can order or add. `ordered`:
    those of min and max are sorted.
    """
    for item in aggregates:
        for name, how in item.merge.items():
            kind = partial.field(name).type
            if not _is_mergeable(how, kind) or (
                ordered and how in ("min", "max") and pa.types.is_nested(kind)
            ):
                raise FiresteelError(
                    f"aggregate({item.sql!r}): partial results of type {spark_name(kind)} cannot "
                    "be merged; cast the value to a number, a string or a time, or use "
                    "window(...).apply(function)"
                )


def _is_mergeable(how: str, kind: pa.DataType) -> bool:
    if how in ("min", "max"):
        return not (pa.types.is_null(kind) or pa.types.is_interval(kind))
    return how != "sum" or any(is_summable(kind) for is_summable in _SUMMABLE)


_SUMMABLE = (
    pa.types.is_signed_integer,
    pa.types.is_floating,
    pa.types.is_decimal,
    pa.types.is_duration,
)


KINDS = (OperatorKind(PartialWindowAggregateSpec, _analyze, create_transform),)
