"""What a plan's conditions ask of its leaf's rows, for readers that leave out those parts of a file
of which the least and the greatest values show that no row is wanted.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any, NamedTuple, TypeAlias

_TRANSPARENT = frozenset({"ColumnarToRowExec", "WholeStageCodegenExec", "InputAdapter"})
_INTEGERS = frozenset({"tinyint", "smallint", "int", "bigint"})
_EPOCHS = {"timestamp": datetime(1970, 1, 1, tzinfo=UTC), "timestamp_ntz": datetime(1970, 1, 1)}


class Bounds(NamedTuple):
    """Of a column's values in some rows: integers, texts, dates, times or decimals. None: there are
    no values.
    """

    least: Any
    greatest: Any


# Whether some row may be wanted, by the bounds of the columns that are known.
MayBeWanted: TypeAlias = Callable[[Mapping[str, Bounds]], bool]

_Test = Callable[[Bounds, Any], bool]


def _less(bounds: Bounds, value: Any) -> bool:
    return bool(bounds.least < value)


def _at_most(bounds: Bounds, value: Any) -> bool:
    return bool(bounds.least <= value)


def _greater(bounds: Bounds, value: Any) -> bool:
    return bool(bounds.greatest > value)


def _at_least(bounds: Bounds, value: Any) -> bool:
    return bool(bounds.greatest >= value)


def _equal(bounds: Bounds, value: Any) -> bool:
    return bool(bounds.least <= value <= bounds.greatest)


_COMPARISONS: dict[str, tuple[_Test, _Test]] = {  # the same with its sides exchanged, too
    "LessThan": (_less, _greater),
    "LessThanOrEqual": (_at_most, _at_least),
    "GreaterThan": (_greater, _less),
    "GreaterThanOrEqual": (_at_least, _at_most),
    "EqualTo": (_equal, _equal),
}


def wanted_rows(physical: Any) -> MayBeWanted | None:
    """For a plan over `columns.rows.frame`: by the condition over its leaf. None if that says
    nothing.

    Numbers with a fraction say nothing: the statistics of files do not know of NaN, which is
    greater than all others to Spark.
    """
    condition = _over_leaf(physical, None)
    return None if condition is None else _wanted(condition)


def _over_leaf(node: Any, condition: Any) -> Any:
    """The condition of the filter right over the leaf, if there is one."""
    kind = _kind(node)
    if kind == "BatchScanExec":
        return condition
    if kind == "FilterExec":
        condition = node.condition()
    elif kind not in _TRANSPARENT:
        condition = None
    found = (_over_leaf(child, condition) for child in _items(node.children()))
    return next((each for each in found if each is not None), None)


def _wanted(condition: Any) -> MayBeWanted | None:
    kind = _kind(condition)
    if kind in ("And", "Or"):
        left, right = _wanted(condition.left()), _wanted(condition.right())
        if left is not None and right is not None:
            return _both(left, right) if kind == "And" else _either(left, right)
        return (left if right is None else right) if kind == "And" else None
    if kind in _COMPARISONS:
        test, exchanged = _COMPARISONS[kind]
        column, value = condition.left(), condition.right()
        if _kind(column) == "Literal":
            column, value, test = value, column, exchanged
        return _compared(column, [value], test)
    if kind == "In":
        return _compared(condition.value(), _items(condition.list()), _equal)
    if kind == "StartsWith":
        return _compared(condition.left(), [condition.right()], _begins)
    return None


def _both(left: MayBeWanted, right: MayBeWanted) -> MayBeWanted:
    return lambda bounds: left(bounds) and right(bounds)


def _either(left: MayBeWanted, right: MayBeWanted) -> MayBeWanted:
    return lambda bounds: left(bounds) or right(bounds)


def _begins(bounds: Bounds, start: str) -> bool:
    return bool(bounds.greatest >= start and bounds.least[: len(start)] <= start)


def _compared(column: Any, literals: list[Any], test: _Test) -> MayBeWanted | None:
    """Whether the column compares so with any of these constants."""
    if _kind(column) != "AttributeReference" or any(_kind(each) != "Literal" for each in literals):
        return None
    values = [_value(each) for each in literals if each.value() is not None]
    if not values or None in values:
        return None
    name = str(column.name())

    def may_be_wanted(known: Mapping[str, Bounds]) -> bool:
        bounds = known.get(name)
        if bounds is None:
            return True
        if bounds.least is None:
            return False
        try:
            return any(test(bounds, value) for value in values)
        except TypeError:  # a file has other values than it says
            return True

    return may_be_wanted


def _value(literal: Any) -> Any:
    """None if there is no such value here."""
    kind, value = str(literal.dataType().simpleString()), literal.value()
    try:
        if kind in _INTEGERS:
            return int(value)
        if kind == "string":  # compared by their characters as by the bytes of their UTF-8
            return str(value.toString())
        if kind == "date":
            return date(1970, 1, 1) + timedelta(days=int(value))
        if kind in _EPOCHS:
            return _EPOCHS[kind] + timedelta(microseconds=int(value))
        if kind.startswith("decimal("):
            return Decimal(str(value.toString()))
    except OverflowError:  # Spark's years are more
        return None
    return None


def _items(seq: Any) -> list[Any]:
    return [seq.apply(index) for index in range(seq.size())]


def _kind(node: Any) -> str:
    return str(node.getClass().getSimpleName())
