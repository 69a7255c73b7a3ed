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
from firesteel.operators import Spec
from taskexecutor.executor.analysis.step import AnalysisStep, AnalyzedOutput, OldTimes


def time_advances(step: AnalysisStep, spec: Spec) -> bool:
    """Returns whether event time may advance downstream of the operator before its rows have
    ended.
    """
    return spec.time_advances(any(given.time_advances for given in step.inputs))


def old_times(step: AnalysisStep, spec: Spec, output: AnalyzedOutput) -> OldTimes | None:
    """Returns which times in the operator's rows may be far behind its watermark. Those that it
    adds are in `output`.
    """
    if spec.sets_times:
        return None
    return united([output.old_times, *(given.old_times for given in step.inputs)])


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
    for needed in spec.needed_times:
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
