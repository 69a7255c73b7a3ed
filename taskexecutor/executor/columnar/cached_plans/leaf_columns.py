"""Finds columns of a plan that are columns of its leaf, or that Arrow can compute: constants,
structs, times as numbers, widened integers, bits of integer comparisons; and columns that are equal
for all times of a second.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from taskexecutor.executor.columnar.cached_plans.observations import RowObserver
from taskexecutor.executor.columnar.grouping.columns import numbers_in
from taskexecutor.executor.columnar.jvm.engine import SparkEngine

_TRANSPARENT = frozenset({"ColumnarToRowExec", "WholeStageCodegenExec", "InputAdapter"})
_CONSTANTS = {"string": pa.string(), "int": pa.int32(), "bigint": pa.int64()}
_WIDER = {  # wider types of numbers, for all values
    "tinyint": {"smallint", "int", "bigint", "double"},
    "smallint": {"int", "bigint", "double"},
    "int": {"bigint", "double"},
    "bigint": {"double"},  # the nearest double, for Spark and for Arrow
}
_INTEGERS = frozenset({"tinyint", "smallint", "int", "bigint"})
_COMPARISONS: dict[str, tuple[np.ufunc, np.ufunc]] = {  # with its sides exchanged
    "LessThan": (np.less, np.greater),
    "LessThanOrEqual": (np.less_equal, np.greater_equal),
    "GreaterThan": (np.greater, np.less),
    "GreaterThanOrEqual": (np.greater_equal, np.less_equal),
    "EqualTo": (np.equal, np.equal),
}
_NUMBERS = {
    "smallint": pa.int16(),
    "int": pa.int32(),
    "bigint": pa.int64(),
    "double": pa.float64(),
}


class LeafColumn(NamedTuple):
    reads: frozenset[str]  # names of the leaf's columns
    # Returns the column from the leaf's rows. A constant is a dictionary of one value.
    of: Callable[[pa.RecordBatch], pa.Array]


class _Truth(NamedTuple):
    """Whether a condition is true, and not false or null."""

    reads: frozenset[str]
    of: Callable[[pa.RecordBatch], npt.NDArray[np.bool_]]


class BySecond(NamedTuple):
    """A column that the plan computes from a column of times, and that only depends on their
    seconds, not on fractions or other columns.
    """

    time: str


def leaf_columns(engine: SparkEngine, physical: Any) -> list[LeafColumn | BySecond | None] | None:
    """Returns the columns of a plan over `columns.rows.frame`, with None for other columns. Returns
    None unless there are some, for all rows. The plan may have an observer of rows.
    """
    projections: list[dict[int, Any]] = []  # expressions of columns, by expression id
    node = physical
    while _kind(node) != "BatchScanExec":
        if _kind(node) == "ProjectExec":
            projections.append({each.exprId().id(): each for each in _items(node.projectList())})
        elif _kind(node) not in _TRANSPARENT and not (
            _kind(node) == "FilterExec" and RowObserver.is_call(node.condition())
        ):
            return None
        node = node.child()
    names = {each.exprId().id(): str(each.name()) for each in _items(node.output())}
    return [
        _made(each, projections, names) or _by_second(engine, each, projections, names)
        for each in _items(physical.output())
    ] or None


def _by_second(
    engine: SparkEngine,
    expression: Any,
    projections: list[dict[int, Any]],
    names: Mapping[int, str],
) -> BySecond | None:
    if not projections:
        return None
    made = projections[0][expression.exprId().id()]
    if len(projections) > 1:
        made = made.child() if _kind(made) == "Alias" else made
        if _kind(made) != "AttributeReference":
            return None
        return _by_second(engine, made, projections[1:], names)
    found = engine.code.type("FiresteelTimeOfDayCache").timeOf(made)
    return None if found is None else BySecond(names[found.exprId().id()])


def _made(
    expression: Any, projections: list[dict[int, Any]], names: Mapping[int, str]
) -> LeafColumn | None:
    """`projections` are those below the expression, from the top."""
    match _kind(expression):
        case "Alias":
            return _made(expression.child(), projections, names)
        case "AttributeReference" if not projections:
            return _as_it_is(names[expression.exprId().id()])
        case "AttributeReference":
            return _made(projections[0][expression.exprId().id()], projections[1:], names)
        case "Cast" if _is_same_type(expression):
            return _made(expression.child(), projections, names)
        case "Cast":
            number = _made(expression.child(), projections, names)
            kind = expression.dataType().simpleString()
            if number is None or kind not in _WIDER.get(
                expression.child().dataType().simpleString(), ()
            ):
                return None
            return _wider(number, _NUMBERS[kind])
        case "UnixMicros":
            times = _made(expression.child(), projections, names)
            return None if times is None else _micros(times)
        case "Literal":
            return _constant(expression)
        case "If" | "BitwiseOr":
            return _bits(expression, projections, names)
        case "CreateNamedStruct":
            values = [_made(each, projections, names) for each in _items(expression.valExprs())]
            parts = [each for each in values if each is not None]
            fields = [str(name) for name in expression.dataType().fieldNames()]
            return _struct(fields, parts) if len(parts) == len(values) else None
    return None


def _is_same_type(cast: Any) -> bool:
    """Whether a cast only changes whether parts of a value may be null, or their metadata."""
    given, wanted = cast.child().dataType(), cast.dataType()
    return bool(given.catalogString() == wanted.catalogString())


def _as_it_is(name: str) -> LeafColumn:
    return LeafColumn(frozenset({name}), lambda rows: rows.column(name))


def _wider(number: LeafColumn, kind: pa.DataType) -> LeafColumn:
    return LeafColumn(number.reads, lambda rows: decoded(number.of(rows)).cast(kind, safe=False))


def _micros(times: LeafColumn) -> LeafColumn:
    return LeafColumn(times.reads, lambda rows: times.of(rows).view(pa.int64()))


def _constant(literal: Any) -> LeafColumn | None:
    kind = _CONSTANTS.get(literal.dataType().simpleString())
    if kind is None or literal.value() is None:
        return None
    value = literal.value()
    one = pa.array([str(value.toString()) if pa.types.is_string(kind) else int(value)], kind)

    def column(rows: pa.RecordBatch) -> pa.Array:
        return pa.DictionaryArray.from_arrays(pa.repeat(pa.scalar(0, pa.int32()), len(rows)), one)

    return LeafColumn(frozenset(), column)


def _struct(names: list[str], parts: list[LeafColumn]) -> LeafColumn:
    def column(rows: pa.RecordBatch) -> pa.Array:
        return pa.StructArray.from_arrays([decoded(part.of(rows)) for part in parts], names)

    return LeafColumn(frozenset().union(*(part.reads for part in parts)), column)


def _bits(
    expression: Any, projections: list[dict[int, Any]], names: Mapping[int, str]
) -> LeafColumn | None:
    """Recognizes `IF(condition, 1, 0) | IF(condition, 2, 0) | ...`, in which Spark may have folded
    constants into both branches.
    """
    # by condition: the value if it is true, and otherwise
    given: list[tuple[_Truth, int, int]] = []
    always = 0

    def add(part: Any) -> bool:
        nonlocal always
        if _kind(part) == "BitwiseOr":
            return add(part.left()) and add(part.right())
        if (number := _integer(part)) is not None:
            always |= number
            return True
        if _kind(part) != "If":
            return False
        met, other = _integer(part.trueValue()), _integer(part.falseValue())
        truth = _truth(part.predicate(), projections, names)
        if met is None or other is None or truth is None:
            return False
        given.append((truth, met, other))
        return True

    if expression.dataType().simpleString() != "int" or not add(expression):
        return None

    def column(rows: pa.RecordBatch) -> pa.Array:
        bits = np.full(len(rows), always, np.int32)
        for truth, met, other in given:
            bits |= np.where(truth.of(rows), np.int32(met), np.int32(other))
        return pa.Array.from_buffers(pa.int32(), len(bits), [None, pa.py_buffer(bits)])

    return LeafColumn(frozenset().union(*(truth.reads for truth, _, _ in given)), column)


def _truth(
    condition: Any, projections: list[dict[int, Any]], names: Mapping[int, str]
) -> _Truth | None:
    kind = _kind(condition)
    if kind in ("And", "Or"):
        left = _truth(condition.left(), projections, names)
        right = _truth(condition.right(), projections, names)
        if left is None or right is None:
            return None
        both = np.logical_and if kind == "And" else np.logical_or
        return _Truth(left.reads | right.reads, lambda rows: both(left.of(rows), right.of(rows)))
    if kind not in _COMPARISONS:
        return None
    column, limit = condition.left(), condition.right()
    compare, exchanged = _COMPARISONS[kind]
    if _kind(column) == "Literal":
        column, limit, compare = limit, column, exchanged
    number = _integer(limit)
    if number is None or column.dataType().simpleString() not in _INTEGERS:
        return None
    values = _made(column, projections, names)
    return None if values is None else _Truth(values.reads, _compared(values, compare, number))


def _compared(
    values: LeafColumn, compare: np.ufunc, number: int
) -> Callable[[pa.RecordBatch], npt.NDArray[np.bool_]]:
    def truth(rows: pa.RecordBatch) -> npt.NDArray[np.bool_]:
        column = decoded(values.of(rows))
        found: npt.NDArray[np.bool_] = compare(numbers_in(column), np.int64(number))
        if column.null_count:
            found &= column.is_valid().to_numpy(zero_copy_only=False)
        return found

    return truth


def _integer(literal: Any) -> int | None:
    """Returns the value of a constant integer."""
    if _kind(literal) != "Literal" or literal.dataType().simpleString() not in _INTEGERS:
        return None
    value = literal.value()
    return None if value is None else int(value)


def decoded(array: pa.Array) -> pa.Array:
    return array.dictionary_decode() if pa.types.is_dictionary(array.type) else array


def _items(seq: Any) -> list[Any]:
    return [seq.apply(index) for index in range(seq.size())]


def _kind(node: Any) -> str:
    return str(node.getClass().getSimpleName())
