"""What a plan's conditions ask of its leaf's rows, for readers that leave out those parts of a file
of which the least and the greatest values show that no row is wanted.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from decimal import Decimal
from functools import reduce
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

_TRANSPARENT = frozenset({"ColumnarToRowExec", "WholeStageCodegenExec", "InputAdapter"})
_Compare = Callable[[Any, Any], Any]
_COMPARISONS: dict[str, tuple[_Compare, _Compare]] = {  # the same with its sides exchanged, too
    "LessThan": (operator.lt, operator.gt),
    "LessThanOrEqual": (operator.le, operator.ge),
    "GreaterThan": (operator.gt, operator.lt),
    "GreaterThanOrEqual": (operator.ge, operator.le),
    "EqualTo": (operator.eq, operator.eq),
}
_TIMES = {"timestamp": pa.timestamp("us", "UTC"), "timestamp_ntz": pa.timestamp("us")}
_INTEGERS = {"tinyint": pa.int8(), "smallint": pa.int16(), "int": pa.int32(), "bigint": pa.int64()}


def wanted_rows(physical: Any) -> pc.Expression | None:
    """For a plan over `columns.rows.frame`: true of each row that the condition over its leaf
    chooses, and maybe of others. None if that says nothing.

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


def _wanted(condition: Any) -> pc.Expression | None:
    kind = _kind(condition)
    if kind in ("And", "Or"):
        left, right = _wanted(condition.left()), _wanted(condition.right())
        if left is not None and right is not None:
            return left & right if kind == "And" else left | right
        return (left if right is None else right) if kind == "And" else None
    if kind in _COMPARISONS:
        compare, exchanged = _COMPARISONS[kind]
        column, value = condition.left(), condition.right()
        if _kind(column) == "Literal":
            column, value, compare = value, column, exchanged
        return _compared(column, [value], compare)
    if kind == "In":
        return _compared(condition.value(), _items(condition.list()), operator.eq)
    if kind == "StartsWith":
        return _compared(condition.left(), [condition.right()], operator.ge)
    return None


def _compared(column: Any, values: list[Any], compare: _Compare) -> pc.Expression | None:
    """Whether the column compares so with any of these values."""
    if _kind(column) != "AttributeReference" or any(_kind(each) != "Literal" for each in values):
        return None
    scalars = [_scalar(each) for each in values if each.value() is not None]
    if not scalars or None in scalars:
        return None
    field = pc.field(str(column.name()))
    return reduce(operator.or_, (compare(field, scalar) for scalar in scalars))


def _scalar(literal: Any) -> pa.Scalar | None:
    kind, value = str(literal.dataType().simpleString()), literal.value()
    if kind in _INTEGERS:
        return pa.scalar(int(value), _INTEGERS[kind])
    if kind == "string":  # in the order of its bytes
        return pa.scalar(str(value.toString()))
    if kind == "date":
        return pa.scalar(int(value), pa.int32()).cast(pa.date32())
    if kind in _TIMES:
        return pa.scalar(int(value), pa.int64()).cast(_TIMES[kind])
    if kind.startswith("decimal("):
        precision, scale = literal.dataType().precision(), literal.dataType().scale()
        return pa.scalar(Decimal(str(value.toString())), pa.decimal128(precision, scale))
    return None


def _items(seq: Any) -> list[Any]:
    return [seq.apply(index) for index in range(seq.size())]


def _kind(node: Any) -> str:
    return str(node.getClass().getSimpleName())
