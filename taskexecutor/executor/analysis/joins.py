"""Analyzes joins of two streams: their keys, their times and the columns of their results."""

from __future__ import annotations

import pyarrow as pa

from firesteel.errors import FiresteelError
from firesteel.operators import AsOfSpec, IntervalSpec, JoinSpec, SameWindowSpec
from firesteel.row_kind import ROW_KIND
from taskexecutor.executor.analysis.checks import (
    KeyedInput,
    check_keys,
    check_same_key_types,
    check_time_column,
)
from taskexecutor.executor.analysis.step import AnalysisStep, AnalyzedOutput, Retracting
from taskexecutor.executor.operators.joins.joined_columns import JoinedColumns, without_kind
from taskexecutor.executor.operators.joins.whole_join import joins_whole


def analyze_join(step: AnalysisStep, spec: JoinSpec) -> AnalyzedOutput:
    versioned = isinstance(spec.within, AsOfSpec)
    inputs = [_known(step, step.inputs[0]), _known(step, step.inputs[1], versions=versioned)]
    left, right = (without_kind(schema) for schema in inputs)
    check_keys(left, spec.left_keys)
    check_keys(right, spec.right_keys)
    check_same_key_types(
        step.operator_name,
        KeyedInput("the left stream", left, spec.left_keys),
        KeyedInput("the right one", right, spec.right_keys),
    )
    if isinstance(spec.within, IntervalSpec | SameWindowSpec | AsOfSpec):
        for schema, column in zip((left, right), spec.within.times.columns, strict=True):
            check_time_column(step, step.operator_name, column, schema, argument="times=")
    try:
        columns = JoinedColumns(spec, *inputs)
    except FiresteelError as error:
        raise FiresteelError(f"{step.operator_name}: {error}") from None
    if not columns.retracts:
        return AnalyzedOutput(schema=columns.schema)
    if joins_whole(spec, columns.schema):
        return AnalyzedOutput(schema=columns.schema, settled=True)
    return AnalyzedOutput(
        schema=columns.schema,
        retracting=Retracting(
            who=step.operator_name,
            because="an unmatched row is retracted when it is matched",
            instead='use how="inner" there, or a join in event time, which retracts no rows:'
            " interval_join(...), window_join(...)",
        ),
    )


def _known(step: AnalysisStep, given: AnalyzedOutput, *, versions: bool = False) -> pa.Schema:
    """`versions`: the program's own column `row_kind` marks deletions."""
    if given.schema is None:
        raise FiresteelError(
            f"{step.operator_name}: the schema of its input is unknown; declare it on the"
            " upstream operator"
        )
    if versions and ROW_KIND in given.schema.names:
        kind = given.schema.field(ROW_KIND).type
        if kind != pa.string():
            raise FiresteelError(
                f"{step.operator_name}: the column {ROW_KIND!r} of versions marks which of them are"
                f" deletions and must be a string, but is {kind}; rename it:"
                f" with_column_renamed({ROW_KIND!r}, ...)"
            )
    elif ROW_KIND in given.schema.names and not (given.retracting or given.settled):
        raise FiresteelError(
            f"{step.operator_name}: a joined stream has a column {ROW_KIND!r}, but its rows"
            f" are not changes; rename it: with_column_renamed({ROW_KIND!r}, ...)"
        )
    return given.schema
