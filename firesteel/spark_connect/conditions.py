"""Join conditions of streaming queries: which columns are equal, and how far apart times are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from firesteel.plan.catalyst_plan import items, seq
from firesteel.spark_connect.catalyst import (
    Catalyst,
    delay_ms,
    is_window,
    is_window_column,
    kind,
    same,
)

# Rows that only one bound relates are kept for this long.
_EVER_US = 3_650 * 86_400_000_000
# In February and in July: an expression whose distance depends on the month is not a bound.
_PROBES_US = (1_770_700_000_000_000, 1_784_000_000_000_000)
# For how long Spark keeps rows after the watermark has passed a bound, in microseconds. Here, each
# bound is inclusive: an exclusive one is a microsecond closer.
_INCLUSIVE_US, _EXCLUSIVE_US = 1_000, 1
_COMPARISONS = ("GreaterThan", "GreaterThanOrEqual", "LessThan", "LessThanOrEqual")


class Bound(NamedTuple):
    """A distance of times, inclusive. Rows are kept for `kept_us` after the watermark has passed
    it.
    """

    distance_us: int
    kept_us: int = 0


@dataclass(frozen=True, kw_only=True)
class Between:
    """The right time is from `lower` to `upper` after the left one. The times are timestamps, or
    windows, whose times are their ends. One of them at least is an event time of the query; the
    other may be any expression if their equality is the only bound: then, `only_equal` is set.
    """

    left: Any
    right: Any
    lower: Bound
    upper: Bound
    only_equal: bool

    @property
    def open(self) -> bool:
        """Whether one of the bounds is missing."""
        return self.lower.distance_us == -_EVER_US or self.upper.distance_us == _EVER_US

    @property
    def equal(self) -> bool:
        return self.lower.distance_us == self.upper.distance_us == 0


@dataclass(frozen=True, kw_only=True)
class Condition:
    """A join condition, taken apart. `own` and `others` are the conjuncts that are neither
    equalities nor part of `between`; they must hold as well.
    """

    equal: list[tuple[Any, Any]]  # expressions of the left and of the right side
    between: Between | None
    own: tuple[list[Any], list[Any]]  # those that only refer to the left side, and to the right one
    others: list[Any]


class _Sides:
    def __init__(self, left: Sequence[Any], right: Sequence[Any]) -> None:
        self._ids = [{each.exprId().id() for each in side} for side in (left, right)]

    def of(self, expression: Any) -> int | None:
        """Returns 0 if the expression only refers to the left side, 1 to the right one."""
        ids = {each.exprId().id() for each in _references(expression)}
        found = [side for side, own in enumerate(self._ids) if ids and ids <= own]
        return found[0] if found else None


def condition_of(
    catalyst: Catalyst,
    conjuncts: Sequence[Any],
    left: Sequence[Any],
    right: Sequence[Any],
    *,
    filters: bool = True,
) -> Condition:
    """Takes the conjuncts of a join of two sides with these attributes apart. A single bound of the
    times is one of the `others` if there is an equality of a time, and the join `filters` by these.
    """
    sides = _Sides(left, right)
    equal: list[tuple[Any, Any]] = []
    own: tuple[list[Any], list[Any]] = ([], [])
    others: list[Any] = []
    bounding: list[Any] = []
    bounds = _Bounds(catalyst, sides)
    for conjunct in conjuncts:
        if kind(conjunct) in ("EqualTo", "EqualNullSafe"):
            one, other = items(conjunct.children())
            place = sides.of(one), sides.of(other)
            if place in ((0, 1), (1, 0)):
                pair = (one, other) if place == (0, 1) else (other, one)
                if kind(conjunct) == "EqualTo":
                    equal.append(pair)
                    bounds.same(*pair)
                else:
                    equal += catalyst.null_safe(*pair)
                continue
        if bounds.take(conjunct):
            bounding.append(conjunct)
            continue
        side = sides.of(conjunct)
        (others if side is None else own[side]).append(conjunct)
    between = bounds.between()
    if between is None or (between.open and filters):
        by_keys = _between_keys(catalyst, equal)
        if by_keys is not None:
            between, others = by_keys, [*others, *bounding]
    return Condition(equal=equal, between=between, own=own, others=others)


def _between_keys(catalyst: Catalyst, equal: Sequence[tuple[Any, Any]]) -> Between | None:
    """Returns the equality of an event time and of another key. As in Spark, the first event time
    of the left side counts, or else that of the right one.
    """
    for side in (0, 1):
        for pair in equal:
            if not _is_time(pair[side]):
                continue
            other = _time_of_key(catalyst, pair[1 - side], pair[side])
            left, right = (other, pair[1]) if side else (pair[0], other)
            bound = Bound(0)
            return Between(left=left, right=right, lower=bound, upper=bound, only_equal=True)
    return None


def _time_of_key(catalyst: Catalyst, key: Any, time: Any) -> Any:
    """Returns the time of a key that equals an event time, whose type it has. Windows that Spark
    Connect's `withColumn` adds are plain structs if they have no watermark.
    """
    if is_window(time) and not is_window_column(key):
        return catalyst.field(key, 1)
    return key


def conjuncts_of(expression: Any) -> list[Any]:
    match kind(expression):
        case "And":
            return [part for each in items(expression.children()) for part in conjuncts_of(each)]
        case "Literal" if expression.toString() == "true":
            return []
        case _:
            return [expression]


class _Bounds:
    def __init__(self, catalyst: Catalyst, sides: _Sides) -> None:
        self._catalyst = catalyst
        self._sides = sides
        self._times: tuple[Any, Any] | None = None
        self._lower: list[Bound] = []
        self._upper: list[Bound] = []
        self._equal = 0  # the number of equalities of the times

    def between(self) -> Between | None:
        if self._times is None:
            return None
        left, right = self._times
        return Between(
            left=left,
            right=right,
            # If two bounds have the same distance, the one that keeps rows for less time counts.
            lower=max(
                self._lower, key=lambda b: (b.distance_us, -b.kept_us), default=Bound(-_EVER_US)
            ),
            upper=min(self._upper, default=Bound(_EVER_US)),
            only_equal=len(self._lower) == self._equal == len(self._upper),
        )

    def same(self, left: Any, right: Any) -> None:
        """Takes the equality of two event times."""
        if _is_time(left) and _is_time(right) and self._are_times(left, right):
            self._lower.append(Bound(0))
            self._upper.append(Bound(0))
            self._equal += 1

    def take(self, conjunct: Any) -> bool:
        """Returns whether the conjunct bounds the distance of the two times, and nothing else."""
        name = kind(conjunct)
        if name == "Between":
            low = self._compare(conjunct.input(), conjunct.lower(), "GreaterThanOrEqual")
            high = self._compare(conjunct.input(), conjunct.upper(), "LessThanOrEqual")
            return low and high
        if name in _COMPARISONS:
            one, other = items(conjunct.children())
            return self._compare(one, other, name)
        return False

    def _compare(self, one: Any, other: Any, name: str) -> bool:
        places = self._sides.of(one), self._sides.of(other)
        if places not in ((0, 1), (1, 0)):
            return False
        times = [self._shifted(each) for each in (one, other)]
        if times[0] is None or times[1] is None:
            return False
        (first, first_us), (second, second_us) = times[0], times[1]
        greater = name.startswith("Greater")
        strict, kept_us = (0, _INCLUSIVE_US) if name.endswith("OrEqual") else (1, _EXCLUSIVE_US)
        # one + first_us  (> or <)  other + second_us
        if places == (0, 1):  # left > right + distance: right - left < -distance
            if not self._are_times(first, second):
                return False
            distance = first_us - second_us
            lower = not greater
        else:
            if not self._are_times(second, first):
                return False
            distance = second_us - first_us
            lower = greater
        if lower:
            self._lower.append(Bound(distance + strict, kept_us))
        else:
            self._upper.append(Bound(distance - strict, kept_us))
        return True

    def _are_times(self, left: Any, right: Any) -> bool:
        if self._times is None:
            self._times = left, right
        known_left, known_right = self._times
        return same(known_left, left) and same(known_right, right)

    def _shifted(self, expression: Any) -> tuple[Any, int] | None:
        """Returns the event time and the microseconds that the expression adds to it; None if it is
        another expression.
        """
        references = _references(expression)
        if len(references) != 1 or not _is_time(references[0]) or is_window(references[0]):
            return None
        (time,) = references
        shifts = {self._shift(expression, time, at_us) for at_us in _PROBES_US}
        (shift, *others) = shifts
        return None if shift is None or others else (time, shift)

    def _shift(self, expression: Any, time: Any, at_us: int) -> int | None:
        """Returns what a timestamp expression adds to an event time of this value."""
        value = self._catalyst.expressions.Literal(at_us, time.dataType())

        def put(each: Any) -> Any:
            if kind(each) == "AttributeReference":
                return value
            parts = items(each.children())
            return each.withNewChildren(seq(self._catalyst.jvm, map(put, parts))) if parts else each

        found = put(expression).eval(None)
        return found - at_us if isinstance(found, int) else None


def _is_time(expression: Any) -> bool:
    return kind(expression) == "AttributeReference" and delay_ms(expression) is not None


def _references(expression: Any) -> list[Any]:
    if kind(expression) == "AttributeReference":
        return [expression]
    found: dict[int, Any] = {}
    for child in items(expression.children()):
        for each in _references(child):
            found.setdefault(each.exprId().id(), each)
    return list(found.values())
