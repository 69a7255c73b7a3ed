"""Columns of a plan that are columns of its leaf, or need no more than Arrow: constants, structs,
times as numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import pyarrow as pa

from taskexecutor.executor.spark.plans.row_observer import RowObserver

_TRANSPARENT = frozenset({"ColumnarToRowExec", "WholeStageCodegenExec", "InputAdapter"})
_CONSTANTS = {"string": pa.string(), "int": pa.int32(), "bigint": pa.int64()}


class LeafColumn(NamedTuple):
    reads: frozenset[str]  # names of the leaf's columns
    # The column, from the leaf's rows. A constant is a dictionary of one value.
    of: Callable[[pa.RecordBatch], pa.Array]


def leaf_columns(physical: Any) -> list[LeafColumn] | None:
    """The columns of a plan over `columns.rows.frame`; None unless there are some, all of them are
    such columns, and of all rows. An observer of rows may look at them.
    """
    projections: list[dict[int, Any]] = []  # what columns are, by the ids of their expressions
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
    found = [_made(each, projections, names) for each in _items(physical.output())]
    columns = [each for each in found if each is not None]
    return columns if columns and len(columns) == len(found) else None


def _made(
    expression: Any, projections: list[dict[int, Any]], names: Mapping[int, str]
) -> LeafColumn | None:
    """`projections`: those below the expression, from the top."""
    match _kind(expression):
        case "Alias":
            return _made(expression.child(), projections, names)
        case "AttributeReference" if not projections:
            return _as_it_is(names[expression.exprId().id()])
        case "AttributeReference":
            return _made(projections[0][expression.exprId().id()], projections[1:], names)
        case "UnixMicros":
            times = _made(expression.child(), projections, names)
            return None if times is None else _micros(times)
        case "Literal":
            return _constant(expression)
        case "CreateNamedStruct":
            values = [_made(each, projections, names) for each in _items(expression.valExprs())]
            parts = [each for each in values if each is not None]
            fields = [str(name) for name in expression.dataType().fieldNames()]
            return _struct(fields, parts) if len(parts) == len(values) else None
    return None


def _as_it_is(name: str) -> LeafColumn:
    return LeafColumn(frozenset({name}), lambda rows: rows.column(name))


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


def decoded(array: pa.Array) -> pa.Array:
    return array.dictionary_decode() if pa.types.is_dictionary(array.type) else array


def _items(seq: Any) -> list[Any]:
    return [seq.apply(index) for index in range(seq.size())]


def _kind(node: Any) -> str:
    return str(node.getClass().getSimpleName())
