"""Analyzes joins of two streams: their keys, their times and the columns of their results."""

from __future__ import annotations

import pyarrow as pa

from firesteel.errors import FiresteelError
from firesteel.operators import AsOfSpec, IntervalSpec, JoinSpec, SameWindowSpec, TimeToLiveSpec
from firesteel.row_kind import ROW_KIND
from taskexecutor.executor.analysis.checks import (
    KeyedInput,
    check_keys,
    check_same_key_types,
    check_time_column,
)
from taskexecutor.executor.analysis.step import AnalysisStep, AnalyzedOutput, OldTimes, Retracting
from taskexecutor.executor.operators.columns import without_kind
from taskexecutor.executor.operators.joins.joined_columns import JoinedColumns
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
    old = None if step.batch else _old_times(step, spec)
    if not columns.retracts:
        return AnalyzedOutput(schema=columns.schema, old_times=old)
    if joins_whole(spec, columns.schema):
        return AnalyzedOutput(schema=columns.schema, settled=True, old_times=old)
    return AnalyzedOutput(
        schema=columns.schema,
        old_times=old,
        retracting=Retracting(
            who=step.operator_name,
            because="an unmatched row is retracted when it is matched",
            instead='use how="inner" there, or a join in event time, which retracts no rows:'
            " interval_join(...), window_join(...)",
        ),
    )


def _old_times(step: AnalysisStep, spec: JoinSpec) -> OldTimes | None:
    left, right = step.inputs
    who = step.operator_name
    if isinstance(spec.within, AsOfSpec):
        return OldTimes(who=who, columns=_columns(right) - _columns(left))
    if not isinstance(spec.within, TimeToLiveSpec | None):
        return None
    if left.time_advances and right.time_advances:
        return OldTimes(who=who, columns=None)
    # While one input has no event time, the join's output has none. Once that input has ended, each
    # pair is emitted because a row of the other input has arrived.
    if left.time_advances:
        return OldTimes(who=who, columns=_columns(right) - _columns(left))
    if right.time_advances:
        return OldTimes(who=who, columns=_columns(left) - _columns(right))
    return None


def _columns(given: AnalyzedOutput) -> frozenset[str]:
    assert given.schema is not None, "the schemas of joined streams are known"
    return frozenset(name.lower() for name in given.schema.names)


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
