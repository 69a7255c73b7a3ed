"""Refuses to use event time of rows that may be far behind the watermark.

A join that matches rows regardless of their times emits old rows. Its watermark is that of its
inputs, so a downstream operator with event time would drop these rows as late, visible only in a
metric. Joins with bounds in event time hold back their watermarks instead
(firesteel.plan.event_time).

In a batch, event time ends when all rows have arrived.
"""

from __future__ import annotations

from collections.abc import Iterable

from firesteel.errors import FiresteelError
from firesteel.operators import (
    ApplySpec,
    AsOfSpec,
    AssignWatermarksSpec,
    CustomSpec,
    JoinSpec,
    SourceSpec,
    Spec,
    TimeToLiveSpec,
    WindowAggregateSpec,
    WindowApplySpec,
    WindowTopNSpec,
)
from firesteel.plan.event_time import needed_times
from firesteel.plan.runtime_mode import is_bounded
from taskexecutor.executor.analysis.step import AnalysisStep, AnalyzedOutput, OldTimes


def time_advances(step: AnalysisStep, spec: Spec) -> bool:
    """Returns whether event time may advance downstream of the operator before its rows have
    ended.
    """
    match spec:
        case SourceSpec():
            # An unbounded source may become idle.
            return spec.watermarks is not None or not is_bounded(spec.source)
        case AssignWatermarksSpec():
            return True
        case ApplySpec():
            return False
        case _:
            return any(given.time_advances for given in step.inputs)


def old_times(step: AnalysisStep, spec: Spec) -> OldTimes | None:
    """Returns which times in the operator's rows may be far behind its watermark."""
    match spec:
        case (
            SourceSpec()
            | AssignWatermarksSpec()
            | ApplySpec()
            | CustomSpec()  # may emit its own watermarks
            | WindowAggregateSpec()
            | WindowApplySpec()
            | WindowTopNSpec()
        ):
            return None
        case JoinSpec() if not step.batch:
            return united([_of_join(step, spec), *(given.old_times for given in step.inputs)])
        case _:
            return united(given.old_times for given in step.inputs)


def _of_join(step: AnalysisStep, spec: JoinSpec) -> OldTimes | None:
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


def united(several: Iterable[OldTimes | None]) -> OldTimes | None:
    found = [one for one in several if one is not None]
    if len(found) < 2:
        return found[0] if found else None
    columns: set[str] = set()
    for one in found:
        if one.columns is None:
            return one
        columns |= one.columns
    return OldTimes(who=found[0].who, columns=frozenset(columns))


def check_event_time(step: AnalysisStep, spec: Spec) -> None:
    """Raises FiresteelError for an operator that would drop rows of a join as late."""
    for needed in needed_times(spec):
        old = step.inputs[needed.input].old_times
        if old is None:
            continue
        if old.columns is not None and needed.column.lower() not in old.columns:
            continue
        name = step.operator_name.removesuffix(" partial")
        column = needed.column or "time"
        effect = (
            f"it takes event time from the column {needed.column!r}, and would drop rows behind the"
            f" watermark as late: {old.who!r} joins rows with much older rows"
            if needed.column
            else f"its event-time timers would be due immediately for rows of {old.who!r},"
            " which joins rows with much older rows, behind the watermark"
        )
        raise FiresteelError(
            f"{name}: {effect}; use interval_join(...), which has bounds in event time, or, after"
            f" the join, .assign_timestamps_and_watermarks(Watermarks.bounded({column!r},"
            " max_out_of_orderness=...)) with the longest time between the two rows of a pair, or"
            " run the program as a batch"
        )
