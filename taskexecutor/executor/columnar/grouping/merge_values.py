"""Merges columns of any type: the first or last value by an order, lists and sets."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from taskexecutor.executor.columnar.grouping.grouping import Groups, Ints, group, whole_numbers
from taskexecutor.executor.numbers import as_numpy


def merge_any(column: pa.Array, groups: Groups) -> pa.Array:
    return column.take(pa.array(groups.first_rows()))


def merge_first(column: pa.Array, groups: Groups, order: pa.Array) -> pa.Array:
    return extreme_by_order(column, groups, order, least=True)


def merge_last(column: pa.Array, groups: Groups, order: pa.Array) -> pa.Array:
    return extreme_by_order(column, groups, order, least=False)


def extreme_by_order(column: pa.Array, groups: Groups, order: pa.Array, *, least: bool) -> pa.Array:
    """Returns per group the value in the row whose `order` is least or greatest; the first row wins
    a tie. Rows with a null order are ignored; a group of only such rows has null.
    """
    if order.null_count:
        rows = np.flatnonzero(as_numpy(pc.is_valid(order)))
        order = order.take(pa.array(rows))
    else:
        rows = np.arange(len(order))
    rows = _extremes(order, groups, rows, least=least)[::-1]
    chosen = np.zeros(groups.count, np.int64)
    none = np.ones(groups.count, np.bool_)
    codes = groups.codes[rows]
    chosen[codes] = rows  # the last assignment stays, which is that of the first row
    none[codes] = False
    return column.take(pa.array(chosen, mask=none if none.any() else None))


def _extremes(order: pa.Array, groups: Groups, rows: Ints, *, least: bool) -> Ints:
    """Returns those of `rows` whose order is the least or greatest of their group, in order.
    `order` is that of `rows` and has no nulls.
    """
    if not pa.types.is_struct(order.type) or not order.type.num_fields:
        return rows[_of_extremes(ranks(order), groups, rows, least=least)]
    kept = np.arange(len(rows))
    for index in range(order.type.num_fields):  # few rows are left after the first field
        field = order.field(index)
        if len(kept) < len(field):
            field = field.take(pa.array(kept))
        kept = kept[_of_extremes(_field_ranks(field), groups, rows[kept], least=least)]
    return rows[kept]


def _of_extremes(ranked: Ints, groups: Groups, rows: Ints, *, least: bool) -> Ints:
    """Returns the indices into `rows` of the rows with the least or greatest rank of their
    group.
    """
    if groups.count == 1 and len(rows):
        return np.flatnonzero(ranked == (ranked.min() if least else ranked.max()))
    codes = groups.codes if len(rows) == len(groups.codes) else groups.codes[rows]
    limits = np.iinfo(np.int64)
    best = np.full(groups.count, limits.max if least else limits.min)
    (np.minimum if least else np.maximum).at(best, codes, ranked)
    return np.flatnonzero(ranked == best[codes])


def _field_ranks(field: pa.Array) -> Ints:
    """Ranks a struct's field; null is the least value."""
    if not field.null_count:
        return ranks(field)
    valid = np.flatnonzero(as_numpy(pc.is_valid(field)))
    ranked = np.zeros(len(field), np.int64)
    present = field.drop_null()
    found = _nested_ranks(present) if pa.types.is_nested(field.type) else _dense_ranks(present)
    ranked[valid] = found + 1
    return ranked


def ranks(order: pa.Array) -> Ints:
    """Returns numbers in the order of the values, which have no nulls."""
    if pa.types.is_nested(order.type):
        return _nested_ranks(order)
    numbers = whole_numbers(order)
    return numbers if numbers is not None else _dense_ranks(order)


def _dense_ranks(order: pa.Array) -> Ints:
    """Returns consecutive ranks from 0 on."""
    if pa.types.is_floating(order.type):  # NaN is last, and the two zeros are equal
        return np.unique(as_numpy(order), return_inverse=True)[1]
    ranked: np.ndarray[Any, Any] = as_numpy(
        pc.rank(order, sort_keys="ascending", tiebreaker="dense")
    )
    return ranked.astype(np.int64) - 1


def _nested_ranks(order: pa.Array) -> Ints:
    """Ranks arrays and structs in Spark's order: element by element, null first, NaN last, a prefix
    before the longer value.
    """
    keys = [_sortable(value) for value in order.to_pylist()]
    rank = {key: number for number, key in enumerate(sorted(set(keys)))}
    return np.array([rank[key] for key in keys], np.int64)


def _sortable(value: Any) -> tuple[Any, ...]:
    match value:
        case None:
            return ()
        case dict():
            return (tuple(map(_sortable, value.values())),)
        case list():
            return (tuple(map(_sortable, value)),)
        case float():
            return (math.isnan(value), 0.0 if math.isnan(value) else value)
        case _:
            return (value,)


def merge_list(column: pa.Array, groups: Groups) -> pa.Array:
    by_group = np.argsort(groups.codes, kind="stable")
    ordered = column.take(pa.array(by_group))
    lengths = as_numpy(pc.fill_null(pc.list_value_length(ordered), 0))
    sizes = np.bincount(groups.codes[by_group], weights=lengths, minlength=groups.count).astype(
        np.int64
    )
    return _lists(sizes, ordered.flatten(), column.type)


def merge_set(column: pa.Array, groups: Groups) -> pa.Array:
    merged = merge_list(column, groups)
    values = merged.flatten()
    if not len(values):
        return merged
    of_group = np.repeat(np.arange(groups.count), as_numpy(pc.list_value_length(merged)))
    distinct = group([pa.array(of_group), values])
    kept = np.sort(distinct.first_rows())
    sizes = np.bincount(of_group[kept], minlength=groups.count)
    return _lists(sizes, values.take(pa.array(kept)), column.type)


def _lists(sizes: np.ndarray[Any, Any], values: pa.Array, kind: pa.DataType) -> pa.Array:
    offsets = pa.array(np.concatenate(([0], np.cumsum(sizes))).astype(np.int32))
    return pa.ListArray.from_arrays(offsets, values).cast(kind)
