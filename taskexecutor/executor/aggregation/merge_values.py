"""Merges columns of any type: the first or last value by an order, lists and sets."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from taskexecutor.executor.aggregation.grouping import Groups, group, whole_numbers


def merge_any(column: pa.Array, groups: Groups) -> pa.Array:
    return column.take(pa.array(groups.first_rows()))


def merge_first(column: pa.Array, groups: Groups, order: pa.Array) -> pa.Array:
    return extreme_by_order(column, groups, order, least=True)


def merge_last(column: pa.Array, groups: Groups, order: pa.Array) -> pa.Array:
    return extreme_by_order(column, groups, order, least=False)


def extreme_by_order(column: pa.Array, groups: Groups, order: pa.Array, *, least: bool) -> pa.Array:
    """Per group, the value in the row whose `order` is least or greatest; rows without an order do
    not count, and a group of only such rows has null.
    """
    rows = np.flatnonzero(pc.is_valid(order).to_numpy(zero_copy_only=False))
    order_ranks = ranks(order.take(pa.array(rows)))
    codes = groups.codes[rows]
    sorted_rows = np.lexsort((order_ranks if least else -order_ranks, codes))
    sorted_codes = codes[sorted_rows]
    heads = (
        np.flatnonzero(np.concatenate(([True], sorted_codes[1:] != sorted_codes[:-1])))
        if len(rows)
        else sorted_rows
    )
    chosen = np.zeros(groups.count, np.int64)
    none = np.ones(groups.count, np.bool_)
    chosen[sorted_codes[heads]] = rows[sorted_rows[heads]]
    none[sorted_codes[heads]] = False
    return column.take(pa.array(chosen, mask=none))


def ranks(order: pa.Array) -> np.ndarray[Any, Any]:
    """Numbers in the order of the values. None of them is the least integer, whose negative would
    overflow.
    """
    if pa.types.is_nested(order.type):
        return _nested_ranks(order)
    numbers = whole_numbers(order)
    if numbers is not None and (not len(numbers) or numbers.min() > np.iinfo(np.int64).min):
        return numbers
    ranked: np.ndarray[Any, Any] = pc.rank(
        order, sort_keys="ascending", null_placement="at_end", tiebreaker="dense"
    ).to_numpy()
    return ranked.astype(np.int64)


def _nested_ranks(order: pa.Array) -> np.ndarray[Any, Any]:
    """Arrays and structs in Spark's order: element by element, null first, NaN last, a prefix
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
    lengths = pc.fill_null(pc.list_value_length(ordered), 0).to_numpy(zero_copy_only=False)
    sizes = np.bincount(groups.codes[by_group], weights=lengths, minlength=groups.count).astype(
        np.int64
    )
    return _lists(sizes, ordered.flatten(), column.type)


def merge_set(column: pa.Array, groups: Groups) -> pa.Array:
    merged = merge_list(column, groups)
    values = merged.flatten()
    if not len(values):
        return merged
    of_group = np.repeat(
        np.arange(groups.count), pc.list_value_length(merged).to_numpy(zero_copy_only=False)
    )
    distinct = group([pa.array(of_group), values])
    kept = np.sort(distinct.first_rows())
    sizes = np.bincount(of_group[kept], minlength=groups.count)
    return _lists(sizes, values.take(pa.array(kept)), column.type)


def _lists(sizes: np.ndarray[Any, Any], values: pa.Array, kind: pa.DataType) -> pa.Array:
    offsets = pa.array(np.concatenate(([0], np.cumsum(sizes))).astype(np.int32))
    return pa.ListArray.from_arrays(offsets, values).cast(kind)
