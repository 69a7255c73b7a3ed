"""Recognises the plans of Spark's `window()` and `session_window()`, so that Firesteel computes
the windows itself.

Spark's analyzer replaces `window(time, ...)` by arithmetic on microseconds: in a projection for
tumbling windows, and in an `Expand`, which repeats each row, for sliding ones. A projection gives
each row its session: from its time until the gap later. The rows without a time are filtered.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Any

from py4j.java_gateway import get_field

from firesteel.operators import SessionSpec, SlidingSpec, TumblingSpec
from firesteel.plan.catalyst_plan import items
from firesteel.spark_connect.catalyst import (
    Catalyst,
    children,
    is_attribute,
    is_harmless,
    kind,
    output,
    same,
)
from firesteel.spark_connect.conditions import conjuncts_of

_TIME = r"(?P<time>precisetimestampconversion\(.+?, TimestampType, LongType\))"
_SINCE = r"(?P<since>\((?P=time) - (?P<offset>-?\d+)\) % (?P<slide>\d+))"
_START = (
    rf"(?P<start>\(\({_TIME} - CASE WHEN \(\({_SINCE}\) < (?:cast\(0 as bigint\)|0)\)"
    r" THEN \(\((?P=since)\) \+ (?P=slide)\) ELSE \((?P=since)\) END\) - (?P<back>-?\d+)\))"
)
# As Spark shows it: TimeWindowing in org.apache.spark.sql.catalyst.analysis.
_WINDOW = re.compile(
    rf"named_struct\(start, knownnullable\(precisetimestampconversion\({_START}, LongType,"
    r" TimestampType\)\), end, knownnullable\(precisetimestampconversion\(\((?P=start) \+"
    r" (?P<size>\d+)\), LongType, TimestampType\)\)\)"
)


@dataclass(frozen=True, kw_only=True)
class TimeWindow:
    """A window as `spec` over the column `time`, an attribute of `plan`.

    `filtered` has the columns of the plan in which Spark computes the window, except the window.
    `plan` may also have rows without a time, if nothing fails because of them.
    """

    spec: TumblingSpec | SlidingSpec | SessionSpec
    time: Any
    plan: Any
    filtered: Any


def time_window(catalyst: Catalyst, plan: Any, window: Any) -> TimeWindow | None:
    """Returns the window that is the attribute `window` of the plan; None unless Spark computes it
    below nodes that pass it on, from a timestamp with a time zone.
    """
    if kind(plan) == "Project":
        columns = items(plan.projectList())
        (made,) = (each for each in columns if same(each.toAttribute(), window))
        rest = [each for each in columns if each is not made]
        if any(each.references().contains(window) for each in rest):
            return None
        (below,) = children(plan)
        if kind(made) == "Alias" and not is_attribute(made.child()):
            if window.metadata().contains("spark.sessionWindow"):
                return _session(catalyst, made.child(), rest, below)
            return _tumbling(catalyst, made.child(), rest, below)
        source = made.child() if kind(made) == "Alias" else window
        if any(each.references().contains(source) for each in rest):
            return None
        found = time_window(catalyst, below, source)
        if found is None:
            return None
        filtered = _with_time(catalyst, rest, found.time, found.filtered)
        plan = filtered
        if all(map(is_harmless, rest)):
            plan = _with_time(catalyst, rest, found.time, found.plan)
        return replace(found, plan=plan, filtered=filtered)
    if kind(plan) == "Filter":
        (below,) = children(plan)
        if kind(below) == "Expand":
            return _sliding(catalyst, below, window, conjuncts_of(plan.condition()))
    return _sliding(catalyst, plan, window, []) if kind(plan) == "Expand" else None


def window_size_us(plan: Any, window: Any) -> int | None:
    """Returns the size of a window that is an attribute of the plan; None unless Spark computes it
    below nodes that pass it on.
    """
    made: list[Any] = []
    if kind(plan) == "Project":
        aliases = (each for each in items(plan.projectList()) if kind(each) == "Alias")
        made = [each.child() for each in aliases if same(each.toAttribute(), window)]
        if made and is_attribute(made[0]):
            window, made = made[0], []
    elif kind(plan) == "Expand":
        places = [index for index, each in enumerate(output(plan)) if same(each, window)]
        made = [items(each)[place] for each in items(plan.projections()) for place in places]
    if made:
        matches = [_WINDOW.fullmatch(each.toString()) for each in made]
        sizes = {each["size"] if each else None for each in matches}
        size = sizes.pop() if len(sizes) == 1 else None
        return int(size) if size else None
    below = children(plan)
    return window_size_us(below[0], window) if len(below) == 1 else None


def _tumbling(catalyst: Catalyst, made: Any, rest: list[Any], below: Any) -> TimeWindow | None:
    found = _WINDOW.fullmatch(made.toString())
    if found is None or found["back"] != "0" or found["slide"] != found["size"]:
        return None
    spec = TumblingSpec(size_us=int(found["size"]), offset_us=int(found["offset"]))
    return _on(catalyst, spec, made, rest, below)


def _session(catalyst: Catalyst, made: Any, rest: list[Any], below: Any) -> TimeWindow | None:
    start, end = items(made.valExprs())
    time, later = start.child().child(), end.child().child().child()
    gap_us = _gap_us(time, later)
    if kind(time) != "AttributeReference" or time.dataType().typeName() != "timestamp":
        return None
    if gap_us is None:
        return None
    return _window(catalyst, SessionSpec(gap_us=gap_us), time, rest, below, time)


def _gap_us(time: Any, later: Any) -> int | None:
    """Returns the length of the interval between two expressions, if it is always equally long."""
    while kind(later) == "Cast":
        later = later.child()
    if kind(later) != "TimestampAddInterval":
        return None
    start, interval = children(later)
    if not start.semanticEquals(time) or not interval.foldable():
        return None
    if interval.dataType().typeName() != "interval":
        return None
    value = interval.eval(None)
    gap_us = int(get_field(value, "microseconds"))
    is_constant = get_field(value, "months") == get_field(value, "days") == 0
    return gap_us if is_constant and gap_us > 0 else None


def _sliding(
    catalyst: Catalyst, expand: Any, window: Any, conditions: list[Any]
) -> TimeWindow | None:
    """`conditions`: of a filter above."""
    columns = output(expand)
    (place,) = (index for index, each in enumerate(columns) if same(each, window))
    rest = [each for index, each in enumerate(columns) if index != place]
    made, matches = [], []
    for projection in map(items, items(expand.projections())):
        made.append(projection.pop(place))
        matches.append(_WINDOW.fullmatch(made[-1].toString()))
        if not all(
            kind(one) == "AttributeReference" and same(one, other)
            for one, other in zip(projection, rest, strict=True)
        ):
            return None
    first = matches[0]
    if first is None:
        return None
    size_us, slide_us = int(first["size"]), int(first["slide"])
    steps = [int(each["back"]) // slide_us for each in matches if each is not None]
    alike = {each and each.group("time", "offset", "slide", "size") for each in matches}
    if len(alike) > 1 or steps != list(range(-(-size_us // slide_us))):
        return None
    time = _time_of(made[0])
    if any(not _is_expected(each, time, window) for each in conditions):
        return None
    spec = SlidingSpec(size_us=size_us, slide_us=slide_us, offset_us=int(first["offset"]))
    (below,) = children(expand)
    return _on(catalyst, spec, made[0], rest, below)


def _on(
    catalyst: Catalyst, spec: TumblingSpec | SlidingSpec, made: Any, rest: list[Any], below: Any
) -> TimeWindow:
    given = time = _time_of(made)
    if kind(time) != "AttributeReference":
        time = catalyst.named(time, "time_of_window")
    return _window(catalyst, spec, time, rest, below, given)


def _window(
    catalyst: Catalyst,
    spec: TumblingSpec | SlidingSpec | SessionSpec,
    time: Any,
    rest: list[Any],
    below: Any,
    given: Any,
) -> TimeWindow:
    """`time` is the column of the time, which is `given` where Spark filters it."""
    filtered = plan = _with_time(catalyst, rest, time, below)
    if all(map(is_harmless, (*rest, time))):
        plan = _with_time(catalyst, rest, time, _without_filter(catalyst, below, given))
    return TimeWindow(spec=spec, time=time.toAttribute(), plan=plan, filtered=filtered)


def _with_time(catalyst: Catalyst, columns: list[Any], time: Any, below: Any) -> Any:
    """Returns the plan with these columns, and the time of the window."""
    known = any(same(each.toAttribute(), time.toAttribute()) for each in columns)
    return catalyst.project(columns if known else [*columns, time], below)


def _without_filter(catalyst: Catalyst, plan: Any, time: Any) -> Any:
    """Returns the plan with the rows that have no time, if nothing above Spark's filter fails
    because of them: the aggregate leaves them out.
    """
    if kind(plan) == "Project" and all(map(is_harmless, items(plan.projectList()))):
        (below,) = children(plan)
        return plan.withNewChildren(catalyst.seq([_without_filter(catalyst, below, time)]))
    if kind(plan) == "Filter" and _is_not_null(plan.condition(), time):
        return children(plan)[0]
    return plan


def _time_of(made: Any) -> Any:
    """Returns the expression of the time, a part of that of a window."""
    start = items(made.valExprs())[0].child().child()
    return start.left().left().child()


def _is_expected(condition: Any, time: Any, window: Any) -> bool:
    """Whether Spark's analyzer adds the condition for sliding windows."""
    start, end = f"{window.toString()}.start", f"{window.toString()}.end"
    texts = (
        *(f"isnotnull({bound})" for bound in (start, end)),
        f"({time.toString()} >= {start})",
        f"({time.toString()} < {end})",
    )
    return _is_not_null(condition, time) or condition.toString() in texts


def _is_not_null(condition: Any, expression: Any) -> bool:
    return kind(condition) == "IsNotNull" and bool(condition.child().semanticEquals(expression))
