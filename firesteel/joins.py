"""Checks the arguments of joins while the program is built."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from firesteel.durations import Duration, duration_us, positive_us
from firesteel.errors import InvalidProgram
from firesteel.operators import (
    AsOfSpec,
    EventTimes,
    IntervalSpec,
    JoinSpec,
    SameWindowSpec,
    TimeToLiveSpec,
    TumblingSpec,
)
from firesteel.operators.joins import How
from firesteel.windowed_stream import time_column_of
from firesteel.windows import Tumbling, Window

On = str | Sequence[str] | Mapping[str, str]

# PySpark's spellings, without underscores.
_HOW: dict[str, How] = {
    "inner": "inner",
    **dict.fromkeys(("left", "leftouter"), "left"),
    **dict.fromkeys(("right", "rightouter"), "right"),
    **dict.fromkeys(("full", "fullouter", "outer"), "full"),
}


def join_spec(on: On, how: str, ttl: Duration | None) -> JoinSpec:
    """Returns the spec of `join`. Raises InvalidProgram."""
    left, right = _keys("join", on)
    chosen = _any_how("join", how)
    within = None
    if ttl is not None:
        within = TimeToLiveSpec(ttl_ms=-(-positive_us(ttl, "ttl of join()") // 1000))
    return JoinSpec(left_keys=left, right_keys=right, how=chosen, within=within)


def interval_join_spec(
    on: On, how: str, between: tuple[Duration, Duration], times: EventTimes
) -> JoinSpec:
    """Returns the spec of `interval_join`. Raises InvalidProgram."""
    left, right = _keys("interval_join", on)
    chosen = _any_how("interval_join", how)
    if not isinstance(between, tuple | list) or len(between) != 2:
        raise InvalidProgram(
            f"interval_join(between={between!r}): specify the minimum and maximum time from a row"
            ' of this stream to those of the other one, such as between=("-10 s", "1 min")'
        )
    lower_us, upper_us = (_signed_us(bound, "between of interval_join()") for bound in between)
    if lower_us > upper_us:
        raise InvalidProgram(
            f"interval_join(between={between!r}): the first must be the smaller one; swap the two"
        )
    within = IntervalSpec(times=times, lower_us=lower_us, upper_us=upper_us)
    return JoinSpec(left_keys=left, right_keys=right, how=chosen, within=within)


def as_of_join_spec(on: On, how: str, tolerance: Duration | None, times: EventTimes) -> JoinSpec:
    """Returns the spec of `as_of_join`. Raises InvalidProgram."""
    left, right = _keys("as_of_join", on)
    chosen = _known_how(how)
    if chosen not in ("inner", "left"):
        raise InvalidProgram(
            f'as_of_join(how={how!r}): allowed: "inner", "left"; a version that matches no row'
            " is not in the result"
        )
    tolerance_us = None
    if tolerance is not None:
        tolerance_us = positive_us(tolerance, "tolerance of as_of_join()")
    within = AsOfSpec(times=times, tolerance_us=tolerance_us)
    return JoinSpec(left_keys=left, right_keys=right, how=chosen, within=within)


def window_join_spec(on: On, window: Window, how: str, times: EventTimes) -> JoinSpec:
    """Returns the spec of `window_join`. Raises InvalidProgram."""
    left, right = _keys("window_join", on)
    chosen = _any_how("window_join", how)
    if not isinstance(window, Tumbling) or window.processing_time or window.on is not None:
        raise InvalidProgram(
            f"window_join(window={window!r}): it takes a Tumbling window in event time, without"
            ' on; name other event-time columns with window_join(..., times=("left", "right"))'
        )
    spec = window.spec()
    assert isinstance(spec, TumblingSpec)
    within = SameWindowSpec(times=times, window=spec)
    return JoinSpec(left_keys=left, right_keys=right, how=chosen, within=within)


def event_times(
    what: str, times: tuple[str, str] | None, time_columns: tuple[frozenset[str], frozenset[str]]
) -> EventTimes:
    """`times` are named by the program; `time_columns` are the event-time columns of both."""
    if times is not None:
        if (
            not isinstance(times, tuple | list)
            or len(times) != 2
            or not all(isinstance(name, str) and name for name in times)
        ):
            raise InvalidProgram(
                f"{what}(times={times!r}): name the event-time columns of this and of the other"
                ' stream, such as times=("at", "time")'
            )
        return EventTimes(columns=(times[0], times[1]))
    (left, left_us), (right, right_us) = (
        time_column_of(columns, f"{side} of {what}()", "times=('left', 'right')")
        for side, columns in zip(("the left stream", "the right stream"), time_columns, strict=True)
    )
    return EventTimes(columns=(left, right), shifts_us=(left_us, right_us))


def _signed_us(duration: Duration, what: str) -> int:
    """Converts a duration whose text may have a minus sign."""
    if isinstance(duration, str) and duration.lstrip().startswith("-"):
        return -duration_us(duration.lstrip()[1:], what)
    return duration_us(duration, what)


def _any_how(what: str, how: str) -> How:
    chosen = _known_how(how)
    if chosen is None:
        raise InvalidProgram(
            f'{what}(how={how!r}): allowed: "inner", "left", "right", "full"; for rows that have a'
            " match, or none, without the other stream's columns, add select(...) after these"
        )
    return chosen


def _known_how(how: str) -> How | None:
    return _HOW.get(how.lower().replace("_", "")) if isinstance(how, str) else None


def _keys(what: str, on: Any) -> tuple[tuple[str, ...], tuple[str, ...]]:
    pairs: list[tuple[Any, Any]]
    if isinstance(on, Mapping):
        pairs = list(on.items())
    else:
        pairs = [(name, name) for name in ((on,) if isinstance(on, str) else on or ())]
    if not pairs or not all(isinstance(name, str) and name for pair in pairs for name in pair):
        raise InvalidProgram(
            f'{what}(on={on!r}): name the columns to compare: on="id", on=["id", "day"],'
            ' or, if their names differ in the other stream, on={"seller": "id"}'
        )
    return tuple(left for left, _ in pairs), tuple(right for _, right in pairs)
