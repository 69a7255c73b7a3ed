"""Merges columns: sums, extremes, bits and squared deviations of numbers, dates and times; the
first or last value by an order, lists and sets of any type.

Merges of numbers take one NumPy pass over each column, or use Arrow for types that NumPy lacks.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from firesteel.errors import FiresteelError
from taskexecutor.executor.columnar.grouping.columns import as_array
from taskexecutor.executor.columnar.grouping.grouping import Groups, Ints, group, whole_numbers
from taskexecutor.executor.numbers import as_numpy

_DIGITS = 38  # of Spark's largest decimal
_REPEATED = 4  # texts are compared once each if they occur this many times on average


def merge_sum(column: pa.Array, groups: Groups) -> pa.Array:
    if pa.types.is_floating(column.type):
        values, codes = _valid(column, groups)
        return _masked(np.bincount(codes, weights=values, minlength=groups.count), column, groups)
    if pa.types.is_duration(column.type):
        return merge_sum(column.view(pa.int64()), groups).view(column.type)
    if pa.types.is_decimal(column.type):
        return sum_of_decimals(column, groups, column.type)
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
    """Raises FiresteelError if an integer sum overflowed, which happens silently. The same sums in
    doubles do not wrap around, and their error is far below 2^63.
    """
    if (np.abs(sums.astype(np.float64) - doubles) > 2.0**62).any():
        raise FiresteelError(
            "a sum is out of the range of BIGINT; sum decimals or doubles instead: "
            "sum(CAST(x AS DECIMAL(38, 0)))"
        )


def sum_of_decimals(column: pa.Array, groups: Groups, kind: pa.DataType) -> pa.Array:
    """Sums decimals with the result type `kind`. Arrow's sums wrap around silently, or exceed the
    digits of their type. Therefore the sums are computed with room for all digits, which are
    counted at the end.
    """
    if column.type.precision + len(str(len(column))) > _DIGITS:
        column = column.cast(pa.decimal256(2 * _DIGITS, kind.scale))
    try:
        return _by_arrow("sum", column, groups).cast(kind)
    except pa.ArrowInvalid as error:
        raise FiresteelError(
            f"a sum is out of the range of DECIMAL({kind.precision}, {kind.scale}): {error}; sum "
            "doubles instead: sum(CAST(x AS DOUBLE))"
        ) from error


def merge_min(column: pa.Array, groups: Groups) -> pa.Array:
    return _extreme(column, groups, least=True)


def merge_max(column: pa.Array, groups: Groups) -> pa.Array:
    return _extreme(column, groups, least=False)


def _extreme(column: pa.Array, groups: Groups, *, least: bool) -> pa.Array:
    kind = column.type
    if pa.types.is_nested(kind):
        return extreme_by_order(column, groups, column, least=least)
    if pa.types.is_floating(kind):
        values, codes = _valid(column, groups)
        # As in Spark, NaN is the largest number: fmin ignores it unless there is no other value,
        # and maximum returns it.
        found = np.full(groups.count, np.nan if least else -np.inf, values.dtype)
        with np.errstate(invalid="ignore"):
            (np.fmin if least else np.maximum).at(found, codes, values)
        return _masked(found, column, groups)
    if pa.types.is_boolean(kind):
        return _extreme(column.cast(pa.int8()), groups, least=least).cast(kind)
    storage = _storage(kind)
    if storage is None and (pa.types.is_string(kind) or pa.types.is_binary(kind)):
        return _extreme_text(column, groups, least=least)
    if storage is None:
        return _by_arrow("min" if least else "max", column, groups)
    values, codes = _valid(column.view(storage) if storage != kind else column, groups)
    limits = np.iinfo(values.dtype)
    found = np.full(groups.count, limits.max if least else limits.min, values.dtype)
    (np.minimum if least else np.maximum).at(found, codes, values)
    merged = _masked(found, column, groups)
    return merged if storage == kind else merged.view(kind)


def _extreme_text(column: pa.Array, groups: Groups, *, least: bool) -> pa.Array:
    """Ranks the distinct texts, if there are few, and compares the ranks."""
    encoded = column.dictionary_encode()
    texts = encoded.dictionary
    if not len(texts) or len(texts) * _REPEATED > len(column):
        return _by_arrow("min" if least else "max", column, groups)
    order = pc.sort_indices(texts)
    places = np.empty(len(texts), np.int64)
    places[as_numpy(order)] = np.arange(len(texts))
    ranked = pa.array(places).take(encoded.indices)
    return texts.take(order).take(_extreme(ranked, groups, least=least))


def _storage(kind: pa.DataType) -> pa.DataType | None:
    """Returns the integer type that stores values of this type."""
    if pa.types.is_signed_integer(kind):
        return kind
    if pa.types.is_date32(kind):
        return pa.int32()
    if pa.types.is_timestamp(kind) or pa.types.is_time64(kind) or pa.types.is_duration(kind):
        return pa.int64()
    return None


def merge_bits(operation: np.ufunc, neutral: int) -> Callable[[pa.Array, Groups], pa.Array]:
    def merge(column: pa.Array, groups: Groups) -> pa.Array:
        values, codes = _valid(column, groups)
        found = np.full(groups.count, neutral, values.dtype)
        operation.at(found, codes, values)
        return _masked(found, column, groups)

    return merge


def merge_squares(squares: pa.Array, groups: Groups, counts: pa.Array, sums: pa.Array) -> pa.Array:
    """Merges squared deviations from the mean by the method of Chan, Golub and LeVeque: the
    deviations within the parts, plus those of the parts' means.
    """
    n = as_numpy(counts).astype(np.float64)
    total = as_numpy(sums.fill_null(0.0))
    within = as_numpy(squares.fill_null(0.0))
    whole_n = np.bincount(groups.codes, weights=n, minlength=groups.count)
    whole_total = np.bincount(groups.codes, weights=total, minlength=groups.count)
    with np.errstate(invalid="ignore", divide="ignore"):
        between = np.where(n > 0, total / n - (whole_total / whole_n)[groups.codes], 0.0)
        merged = np.bincount(
            groups.codes, weights=within + n * between * between, minlength=groups.count
        )
    return pa.array(merged, pa.float64(), mask=whole_n == 0)


def _valid(column: pa.Array, groups: Groups) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Returns the values that are not null, and their groups' codes."""
    if not column.null_count:
        return as_numpy(column), groups.codes
    valid = as_numpy(pc.is_valid(column))
    return as_numpy(column.drop_null()), groups.codes[valid]


def _masked(values: np.ndarray[Any, Any], column: pa.Array, groups: Groups) -> pa.Array:
    """Returns the merged values, with null for groups that only have nulls."""
    if not column.null_count:
        return pa.array(values)
    valid = as_numpy(pc.is_valid(column))
    none = np.ones(groups.count, np.bool_)
    none[groups.codes[valid]] = False
    return pa.array(values, mask=none)


def _by_arrow(how: str, column: pa.Array, groups: Groups) -> pa.Array:
    table = pa.table({"code": groups.codes, "value": column})
    merged = table.group_by("code", use_threads=False).aggregate([("value", how)])
    order = np.empty(groups.count, np.int64)
    order[as_numpy(as_array(merged.column("code")))] = np.arange(groups.count)
    return as_array(merged.column(f"value_{how}")).take(pa.array(order))


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
