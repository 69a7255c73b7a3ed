"""Groups rows by key: the basis of merging partial results, matching keys and finding sessions.

A row's code is the number of its group. Integers in a dense range, the most frequent keys in
practice, need no hash table: their offset is their code.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from taskexecutor.executor.columnar.grouping.columns import numbers_in
from taskexecutor.executor.nested_keys import comparable
from taskexecutor.executor.numbers import as_numpy

Ints = np.ndarray[Any, np.dtype[np.int64]]

_DENSE = 4  # a range of up to this many times the rows is counted instead of hashed


@dataclass(frozen=True, slots=True)
class Groups:
    codes: Ints  # of each row, 0 <= code < count
    count: int

    def first_rows(self) -> Ints:
        """Returns the index of each group's first row."""
        if self.count == 1:
            return np.zeros(1, np.int64)
        rows = np.empty(self.count, np.int64)
        rows[self.codes[::-1]] = np.arange(len(self.codes) - 1, -1, -1)
        return rows


def group(columns: Sequence[pa.Array]) -> Groups:
    """Groups rows that are equal in all columns; nulls are equal. No group is empty."""
    codes, count = _codes(columns[0])
    for column in columns[1:]:
        more, more_count = _codes(column)
        if count * more_count >= 2**62:
            codes, count = _compact(codes, count)
        codes, count = codes * more_count + more, count * more_count
    return Groups(*_compact(codes, count))


def one_group(rows: int) -> Groups:
    return Groups(np.zeros(rows, np.int64), min(rows, 1))


def members(
    keys: Sequence[pa.Array], among: Sequence[pa.Array]
) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """Returns for each row of `keys` whether `among` contains an equal row."""
    groups = group(
        [pa.concat_arrays([mine, theirs]) for mine, theirs in zip(keys, among, strict=True)]
    )
    rows = len(keys[0])
    found = np.zeros(groups.count, np.bool_)
    found[groups.codes[rows:]] = True
    return found[groups.codes[:rows]]


class Sessions(NamedTuple):
    numbers: Ints  # session number of each row
    starts: Ints  # of each session
    ends: Ints


def sessions(codes: Ints, starts: Ints, ends: Ints) -> Sessions:
    """Merges the intervals of each code that touch or overlap."""
    if not len(codes):
        return Sessions(codes, starts, ends)
    first = int(starts.min())
    span = int(ends.max()) - first + 1
    if (int(codes.max()) + 1) * span >= 2**63:  # ranks of the times are smaller
        times, places = np.unique(np.concatenate((starts, ends)), return_inverse=True)
        numbers, starts, ends = sessions(codes, places[: len(codes)], places[len(codes) :])
        return Sessions(numbers, times[starts], times[ends])
    # Values ordered by code and then by time. The values of a code are greater than those of all
    # earlier codes, so one running maximum gives the latest end so far within each code.
    codes_begin = codes * span
    begin = codes_begin + (starts - first)
    order = np.argsort(begin)
    begin = begin[order]
    latest = np.maximum.accumulate((codes_begin + (ends - first))[order])
    begins = np.ones(len(order), np.bool_)
    begins[1:] = begin[1:] > latest[:-1]
    numbers = np.empty(len(order), np.int64)
    numbers[order] = np.cumsum(begins) - 1
    heads = np.flatnonzero(begins)
    tails = np.append(heads[1:], len(order)) - 1
    return Sessions(numbers, begin[heads] % span + first, latest[tails] % span + first)


def whole_numbers(column: pa.Array) -> Ints | None:
    """Returns the values of a column of integers, dates or times without nulls, or None for other
    columns. 64-bit columns are not copied.
    """
    if column.null_count:
        return None
    kind = column.type
    values: Ints | None = None
    if pa.types.is_signed_integer(kind):
        values = as_numpy(column).astype(np.int64, copy=False)
    elif pa.types.is_timestamp(kind) or pa.types.is_time64(kind) or pa.types.is_duration(kind):
        values = as_numpy(column.view(pa.int64()))
    elif pa.types.is_date32(kind):
        values = as_numpy(column.view(pa.int32())).astype(np.int64)
    return values


def _codes(column: pa.Array) -> tuple[Ints, int]:
    """Returns codes of one column and an exclusive upper bound. Some codes may not occur."""
    if not len(column):
        return np.empty(0, np.int64), 0
    if pa.types.is_dictionary(column.type):
        if not column.indices.null_count:
            return _codes_of_indices(column)
        column = column.dictionary_decode()
    numbers = whole_numbers(column)
    if numbers is not None:
        low, high = int(numbers.min()), int(numbers.max())
        if high - low < max(_DENSE * len(numbers), 1024):
            return (numbers - low if low else numbers), high - low + 1
    if pa.types.is_struct(column.type) and column.type.num_fields:
        return _codes_of_struct(column)
    if pa.types.is_nested(column.type):
        return _codes_of_nested(column)
    if pa.types.is_floating(column.type):
        column = _alike(column)
    encoded = column.dictionary_encode(null_encoding="encode")
    return as_numpy(encoded.indices).astype(np.int64), len(encoded.dictionary)


def _codes_of_indices(column: pa.DictionaryArray) -> tuple[Ints, int]:
    if len(column.dictionary) == 1:
        return np.zeros(len(column), np.int64), 1
    codes, count = _codes(column.dictionary)
    return codes[numbers_in(column.indices)], count


def _alike(column: pa.Array) -> pa.Array:
    """Normalises zeros and NaNs, which Spark considers equal whatever their bits."""
    values = as_numpy(column.fill_null(0)) + 0.0  # -0.0 + 0.0 is 0.0
    values[np.isnan(values)] = np.nan
    mask = as_numpy(column.is_null()) if column.null_count else None
    return pa.array(values, column.type, mask=mask)


def _codes_of_struct(column: pa.StructArray) -> tuple[Ints, int]:
    """Returns codes of structs, which are equal if all of their fields are. A null struct differs
    from a struct of nulls.
    """
    groups = group([*([column.is_null()] if column.null_count else []), *column.flatten()])
    return groups.codes, groups.count


def _codes_of_nested(column: pa.Array) -> tuple[Ints, int]:
    """Returns codes of lists and maps, which Arrow cannot hash."""
    numbers: dict[Any, int] = {}
    codes = [numbers.setdefault(comparable(value), len(numbers)) for value in column.to_pylist()]
    return np.array(codes, np.int64), len(numbers)


def _compact(codes: Ints, bound: int) -> tuple[Ints, int]:
    """Returns the same groups with consecutive codes."""
    if not len(codes):
        return codes, 0
    if bound > max(_DENSE * len(codes), 1024):
        unique, inverse = np.unique(codes, return_inverse=True)
        return inverse.astype(np.int64, copy=False), len(unique)
    occurs = np.zeros(bound, np.bool_)
    occurs[codes] = True
    count = int(np.count_nonzero(occurs))
    if count == bound:
        return codes, bound
    return (np.cumsum(occurs, dtype=np.int64) - 1)[codes], count
