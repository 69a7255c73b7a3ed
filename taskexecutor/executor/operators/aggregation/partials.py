"""Merging partial results: one row per group out of many, column by column (the merges:
firesteel.plan.aggregates.split).

Numbers are merged by numpy in one pass over each column; what numpy has no type for, by Arrow.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from firesteel.errors import FiresteelError
from taskexecutor.executor.operators.aggregation.grouping import (
    Groups,
    group,
    one_group,
    whole_numbers,
)

ROWS = "_rows"


def merges_of(aggregates: Sequence[Any]) -> dict[str, str]:
    """Of all aggregates together, and of the number of rows."""
    return {name: how for item in aggregates for name, how in item.merge.items()} | {ROWS: "sum"}


def merge_partials(
    table: pa.Table, keys: Sequence[str], merges: Mapping[str, str]
) -> pa.RecordBatch:
    """One row per key: the key columns, then the merged ones. Rows come in no particular order.

    Raises FiresteelError where Spark would (overflow), and for types that cannot be merged.
    """
    columns = {name: single(table.column(name)) for name in (*keys, *merges)}
    groups = group([columns[key] for key in keys]) if keys else one_group(table.num_rows)
    schema = pa.schema([table.schema.field(name) for name in columns])
    if groups.count == table.num_rows:  # nothing meets
        return pa.RecordBatch.from_arrays(list(columns.values()), schema=schema)
    first = pa.array(groups.first_rows())
    merged = [columns[key].take(first) for key in keys]
    merged += [merge_column(how, columns[name], groups, columns) for name, how in merges.items()]
    return pa.RecordBatch.from_arrays(merged, schema=schema)


def merge_column(
    how: str, column: pa.Array, groups: Groups, columns: Mapping[str, pa.Array]
) -> pa.Array:
    """`columns` are all partial columns, unmerged."""
    kind, *others = how.split(":")
    try:
        merged = _MERGES[kind](column, groups, *(columns[other] for other in others))
        return merged if merged.type == column.type else merged.cast(column.type)
    except (pa.ArrowNotImplementedError, pa.ArrowInvalid) as error:
        raise FiresteelError(
            f"partial results of type {column.type} cannot be merged by {kind}: {error}"
        ) from error


def single(column: pa.ChunkedArray | pa.Array) -> pa.Array:
    if isinstance(column, pa.Array):
        return column
    if column.num_chunks == 1:
        return column.chunk(0)
    return column.combine_chunks() if column.num_chunks else pa.array([], column.type)


# -- numbers


def _sum(column: pa.Array, groups: Groups) -> pa.Array:
    if pa.types.is_floating(column.type):
        values, codes = _valid(column, groups)
        return _masked(np.bincount(codes, weights=values, minlength=groups.count), column, groups)
    if pa.types.is_duration(column.type):
        return _sum(column.view(pa.int64()), groups).view(column.type)
    if not pa.types.is_signed_integer(column.type):
        return _by_arrow("sum", column, groups)
    values, codes = _valid(column, groups)
    sums = np.zeros(groups.count, np.int64)
    np.add.at(sums, codes, values)
    largest = max(abs(int(values.min())), abs(int(values.max()))) if len(values) else 0
    if largest * len(values) >= 2**63:
        _check_overflow(sums, np.bincount(codes, weights=values, minlength=groups.count))
    return _masked(sums, column, groups)


def _check_overflow(sums: np.ndarray[Any, Any], doubles: np.ndarray[Any, Any]) -> None:
    """Sums wrap around silently; the same sums in doubles do not, and are off by far less than
    2^63.
    """
    if (np.abs(sums.astype(np.float64) - doubles) > 2.0**62).any():
        raise FiresteelError(
            "a sum is out of the range of BIGINT; sum decimals or doubles instead: sum(CAST(x AS DECIMAL(38, 0)))"
        )


def _minimum(column: pa.Array, groups: Groups) -> pa.Array:
    return _extreme(column, groups, least=True)


def _maximum(column: pa.Array, groups: Groups) -> pa.Array:
    return _extreme(column, groups, least=False)


def _extreme(column: pa.Array, groups: Groups, *, least: bool) -> pa.Array:
    kind = column.type
    if pa.types.is_nested(kind):
        return _ordered(column, groups, column, least=least)
    if pa.types.is_floating(kind):
        values, codes = _valid(column, groups)
        # fmin passes NaN by as long as there is anything else, maximum keeps it: NaN is the largest
        # number.
        found = np.full(groups.count, np.nan if least else -np.inf, values.dtype)
        with np.errstate(invalid="ignore"):
            (np.fmin if least else np.maximum).at(found, codes, values)
        return _masked(found, column, groups)
    if pa.types.is_boolean(kind):
        return _extreme(column.cast(pa.int8()), groups, least=least).cast(kind)
    storage = _storage(kind)
    if storage is None:
        return _by_arrow("min" if least else "max", column, groups)
    values, codes = _valid(column.view(storage) if storage != kind else column, groups)
    limits = np.iinfo(values.dtype)
    found = np.full(groups.count, limits.max if least else limits.min, values.dtype)
    (np.minimum if least else np.maximum).at(found, codes, values)
    merged = _masked(found, column, groups)
    return merged if storage == kind else merged.view(kind)


def _storage(kind: pa.DataType) -> pa.DataType | None:
    """The whole numbers that a type is kept in."""
    if pa.types.is_signed_integer(kind):
        return kind
    if pa.types.is_date32(kind):
        return pa.int32()
    if pa.types.is_timestamp(kind) or pa.types.is_time64(kind) or pa.types.is_duration(kind):
        return pa.int64()
    return None


def _bits(operation: np.ufunc, nothing: int) -> Callable[[pa.Array, Groups], pa.Array]:
    def merge(column: pa.Array, groups: Groups) -> pa.Array:
        values, codes = _valid(column, groups)
        found = np.full(groups.count, nothing, values.dtype)
        operation.at(found, codes, values)
        return _masked(found, column, groups)

    return merge


def _squares(squares: pa.Array, groups: Groups, counts: pa.Array, sums: pa.Array) -> pa.Array:
    """Chan, Golub, LeVeque: what lies between the parts' means adds to what lies within the parts."""
    n = counts.to_numpy(zero_copy_only=False).astype(np.float64)
    total = sums.fill_null(0.0).to_numpy(zero_copy_only=False)
    within = squares.fill_null(0.0).to_numpy(zero_copy_only=False)
    whole_n = np.bincount(groups.codes, weights=n, minlength=groups.count)
    whole_total = np.bincount(groups.codes, weights=total, minlength=groups.count)
    with np.errstate(invalid="ignore", divide="ignore"):
        apart = np.where(n > 0, total / n - (whole_total / whole_n)[groups.codes], 0.0)
        merged = np.bincount(
            groups.codes, weights=within + n * apart * apart, minlength=groups.count
        )
    return pa.array(merged, pa.float64(), mask=whole_n == 0)


def _valid(column: pa.Array, groups: Groups) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Values that are not null, with their codes."""
    if not column.null_count:
        return column.to_numpy(zero_copy_only=False), groups.codes
    valid = pc.is_valid(column).to_numpy(zero_copy_only=False)
    return column.drop_null().to_numpy(zero_copy_only=False), groups.codes[valid]


def _masked(values: np.ndarray[Any, Any], column: pa.Array, groups: Groups) -> pa.Array:
    """Null where a group has nothing but nulls."""
    if not column.null_count:
        return pa.array(values)
    valid = pc.is_valid(column).to_numpy(zero_copy_only=False)
    none = np.ones(groups.count, np.bool_)
    none[groups.codes[valid]] = False
    return pa.array(values, mask=none)


# -- what has no numbers


def _by_arrow(how: str, column: pa.Array, groups: Groups) -> pa.Array:
    table = pa.table({"code": groups.codes, "value": column})
    merged = table.group_by("code", use_threads=False).aggregate([("value", how)])
    order = np.empty(groups.count, np.int64)
    order[single(merged.column("code")).to_numpy(zero_copy_only=False)] = np.arange(groups.count)
    return single(merged.column(f"value_{how}")).take(pa.array(order))


def _any(column: pa.Array, groups: Groups) -> pa.Array:
    return column.take(pa.array(groups.first_rows()))


def _first(column: pa.Array, groups: Groups, order: pa.Array) -> pa.Array:
    return _ordered(column, groups, order, least=True)


def _last(column: pa.Array, groups: Groups, order: pa.Array) -> pa.Array:
    return _ordered(column, groups, order, least=False)


def _ordered(column: pa.Array, groups: Groups, order: pa.Array, *, least: bool) -> pa.Array:
    """The value of the row with the least or greatest `order` that is not null; null if there is no
    such row.
    """
    rows = np.flatnonzero(pc.is_valid(order).to_numpy(zero_copy_only=False))
    ranks = _ranks(order.take(pa.array(rows)))
    codes = groups.codes[rows]
    sorted_rows = np.lexsort((ranks if least else -ranks, codes))
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


def _ranks(order: pa.Array) -> np.ndarray[Any, Any]:
    """Numbers, none the least one, in the order of the values."""
    if pa.types.is_nested(order.type):
        return _nested_ranks(order)
    numbers = whole_numbers(order)
    if numbers is not None and (not len(numbers) or numbers.min() > np.iinfo(np.int64).min):
        return numbers
    ranks: np.ndarray[Any, Any] = pc.rank(
        order, sort_keys="ascending", null_placement="at_end", tiebreaker="dense"
    ).to_numpy()
    return ranks.astype(np.int64)


def _nested_ranks(order: pa.Array) -> np.ndarray[Any, Any]:
    """Arrays and structs as Spark orders them: part by part, null first, NaN last, a beginning
    before what it begins.
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


def _list(column: pa.Array, groups: Groups) -> pa.Array:
    by_group = np.argsort(groups.codes, kind="stable")
    ordered = column.take(pa.array(by_group))
    lengths = pc.fill_null(pc.list_value_length(ordered), 0).to_numpy(zero_copy_only=False)
    sizes = np.bincount(groups.codes[by_group], weights=lengths, minlength=groups.count).astype(
        np.int64
    )
    return _lists(sizes, ordered.flatten(), column.type)


def _set(column: pa.Array, groups: Groups) -> pa.Array:
    merged = _list(column, groups)
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


_MERGES: dict[str, Callable[..., pa.Array]] = {
    "sum": _sum,
    "min": _minimum,
    "max": _maximum,
    "any": _any,
    "list": _list,
    "set": _set,
    "bit_and": _bits(np.bitwise_and, -1),
    "bit_or": _bits(np.bitwise_or, 0),
    "bit_xor": _bits(np.bitwise_xor, 0),
    "first": _first,
    "last": _last,
    "m2": _squares,
}
