"""Groups rows by key and pane, or part of a session, and merges each row's contributions to the
partial results.

A row's contribution is a partial result, so it merges in the same way. Lists of distinct values are
made here: a pair of a group and a value is looked up once for all lists with different conditions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from taskexecutor.executor.columnar.grouping.columns import numbers_in
from taskexecutor.executor.columnar.grouping.dense_partials import as_keys
from taskexecutor.executor.columnar.grouping.grouping import (
    Groups,
    Ints,
    group,
    one_group,
    whole_numbers,
)
from taskexecutor.executor.columnar.grouping.merge_columns import sum_of_decimals
from taskexecutor.executor.columnar.grouping.merging import merge_column
from taskexecutor.executor.numbers import as_numpy

_DENSE = 16  # a range of up to this many times the numbers is marked instead of sorted
_TABLE = 2  # maximum size of a table of all combinations of conditions, per row


@dataclass(frozen=True, slots=True)
class Values:
    """Values that are collected into lists."""

    column: int  # index; null in rows that do not count
    lists: tuple[tuple[str, int], ...]  # names, and the bit of each condition
    bits: int | None  # index of the column of bits; None: all values count for all lists


@dataclass(frozen=True, slots=True, kw_only=True)
class RowPartials:
    """Describes the columns of the rows: keys, the time in microseconds if there are panes or
    sessions, the part of the session if `in_parts`, and others that are identified by index.
    """

    # of the result: keys, start and end of the pane or session, partial columns, row count
    schema: pa.Schema
    keys: int  # number of key columns
    pane_us: int  # 0 without panes; of sessions: the intervals that divide them
    offset_us: int  # of the panes
    gap_us: int = 0  # of the sessions; 0: there are none
    in_parts: bool = False  # a column divides the sessions
    merges: Mapping[str, str]  # of the partial columns except the row count
    # Partial columns and the indices of their source columns. Each row counts 1 for partial columns
    # that are listed nowhere.
    plain: tuple[tuple[str, int], ...]
    values: tuple[Values, ...]
    present: tuple[tuple[str, int], ...] = ()  # counts of rows with a value in a column
    counts: tuple[tuple[str, int], ...] = ()  # counts of rows that meet a condition, by its bit
    bits: int | None = None  # index of the column of these bits

    def grouped(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Returns one row per key and pane, or part of a session."""
        by = rows.columns[: self.keys]
        if self.in_parts:
            by.append(rows.column(self.keys + 1))
        elif self.pane_us:
            by.append(self._panes(rows.column(self.keys)))
        groups = group(by) if by else one_group(rows.num_rows)
        first = pa.array(groups.first_rows())
        result = [column.take(first) for column in by]
        if self.gap_us:
            times = rows.column(self.keys)
            start, last = (merge_column(how, times, groups, {}) for how in ("min", "max"))
            result[-1:] = [start, pc.add(last, self.gap_us)]
        elif self.pane_us:
            start = pc.add(pc.multiply(result.pop(), self.pane_us), self.offset_us)
            result += [start, pc.add(start, self.pane_us)]
        names = self.schema.names[len(result) :]
        columns = {name: rows.column(place) for name, place in self.plain}
        made = {name: each for values in self.values for name, each in _sets(rows, values, groups)}
        for name, column in columns.items():
            if self.merges[name] == "list":
                made[name] = _all_values(column, groups)
        counts = pa.array(np.bincount(groups.codes, minlength=groups.count))
        for name, place in self.present:
            made[name] = _present(rows.column(place), groups, counts)
        if self.bits is not None:
            made |= _met(numbers_in(rows.column(self.bits)), self.counts, groups)
        for name in names:
            if name in made:
                result.append(made[name])
            elif name in columns:
                result.append(self._merged(name, columns, groups))
            else:
                result.append(counts)
        arrays = [
            _of_type(array, kind) for array, kind in zip(result, self.schema.types, strict=True)
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)

    def _merged(self, name: str, columns: Mapping[str, pa.Array], groups: Groups) -> pa.Array:
        column, kind = columns[name], self.schema.field(name).type
        # it has more digits than the rows
        if self.merges[name] == "sum" and pa.types.is_decimal(kind):
            return sum_of_decimals(column, groups, kind)
        return merge_column(self.merges[name], column, groups, columns)

    def _panes(self, times_us: pa.Array) -> pa.Array:
        """Returns the pane number of each time; null where the event time is null."""
        nulls = times_us.is_null() if times_us.null_count else None
        times = as_numpy(times_us.fill_null(0) if nulls is not None else times_us)
        panes = (times - self.offset_us if self.offset_us else times) // self.pane_us
        mask = as_numpy(nulls) if nulls is not None else None
        return pa.array(panes, mask=mask)


def _of_type(array: pa.Array, kind: pa.DataType) -> pa.Array:
    if pa.types.is_dictionary(array.type):
        array = array.dictionary_decode()
    return array if array.type == kind else array.cast(kind)


def _present(column: pa.Array, groups: Groups, counts: pa.Array) -> pa.Array:
    """Counts the rows of each group that have a value. `counts` are the sizes of the groups."""
    if not column.null_count:
        return counts
    valid = as_numpy(column.is_valid())
    return pa.array(np.bincount(groups.codes[valid], minlength=groups.count))


def _met(
    bits: Ints, wanted: Sequence[tuple[str, int]], groups: Groups
) -> Iterator[tuple[str, pa.Array]]:
    """Counts the rows of each group that have each bit."""
    width = max(bit for _, bit in wanted) + 1
    if groups.count << width <= _TABLE * len(bits):  # one pass for all bits
        table = np.bincount(groups.codes << width | bits, minlength=groups.count << width)
        table = table.reshape(groups.count, 1 << width)
        for name, bit in wanted:
            with_bit = np.flatnonzero(np.arange(1 << width) & 1 << bit)
            yield name, pa.array(table[:, with_bit].sum(axis=1))
        return
    for name, bit in wanted:
        codes = groups.codes[(bits & 1 << bit) != 0]
        yield name, pa.array(np.bincount(codes, minlength=groups.count))


def _sets(rows: pa.RecordBatch, values: Values, groups: Groups) -> list[tuple[str, pa.Array]]:
    """Returns the distinct values of each group, once per list."""
    column = rows.column(values.column)
    codes = groups.codes
    bits = as_numpy(rows.column(values.bits)) if values.bits is not None else None
    if column.null_count:
        valid = np.flatnonzero(as_numpy(column.is_valid()))
        column, codes = column.drop_null(), codes[valid]
        bits = bits[valid] if bits is not None else None
    width = max(bit for _, bit in values.lists) + 1 if bits is not None else 0
    distinct = _distinct(column, groups.count << width)
    triples = codes * distinct.span + distinct.numbers
    if bits is not None:
        triples <<= width
        triples |= bits
    triples = _ordered(triples, (groups.count * distinct.span) << width)
    pairs = triples >> width if bits is not None else triples
    heads = np.flatnonzero(np.concatenate(([True], pairs[1:] != pairs[:-1]))[: len(pairs)])
    pairs = pairs[heads]
    of_group = pairs // max(distinct.span, 1)
    numbers = pairs - of_group * distinct.span
    if bits is None:
        every = _list(of_group, groups.count, distinct.values(numbers))
        return [(name, every) for name, _ in values.lists]
    met = np.bitwise_or.reduceat(triples, heads) if len(heads) else triples
    made: dict[int, pa.Array] = {}
    for _, bit in values.lists:
        if bit not in made:
            chosen = np.flatnonzero((met & (1 << bit)) != 0)
            made[bit] = _list(of_group[chosen], groups.count, distinct.values(numbers[chosen]))
    return [(name, made[bit]) for name, bit in values.lists]


def _ordered(numbers: Ints, bound: int) -> Ints:
    """Returns the numbers, which are less than `bound`, in ascending order, with or without
    duplicates.
    """
    if bound > _DENSE * len(numbers):
        return np.sort(numbers)  # much faster than marking them
    occurs = np.zeros(bound, np.bool_)
    occurs[numbers] = True
    return np.flatnonzero(occurs)


class _Distinct(NamedTuple):
    """Numbers assigned to values."""

    numbers: Ints  # of the values, from 0 on
    span: int  # exclusive upper bound
    values: Callable[[Ints], pa.Array]  # of numbers


def _distinct(column: pa.Array, count: int) -> _Distinct:
    """Numbers the values. `count` times the span must fit into 64 bits."""
    numbers = whole_numbers(column)
    if numbers is not None and len(numbers):
        low = int(numbers.min())
        span = int(numbers.max()) - low + 1
        if count * span < 2**62:
            return _Distinct(numbers - low, span, lambda each: as_keys(each + low, column.type))
    groups = group([column])
    first = column.take(pa.array(groups.first_rows()))
    return _Distinct(groups.codes, groups.count, lambda each: first.take(pa.array(each)))


def _all_values(column: pa.Array, groups: Groups) -> pa.Array:
    """Returns the values of each group in the order of the rows, without nulls."""
    codes = groups.codes
    if column.null_count:
        valid = np.flatnonzero(as_numpy(column.is_valid()))
        column, codes = column.take(pa.array(valid)), codes[valid]
    order = np.argsort(codes, kind="stable")
    return _list(codes[order], groups.count, column.take(pa.array(order)))


def _list(of_group: Ints, count: int, values: pa.Array) -> pa.Array:
    sizes = np.bincount(of_group, minlength=count)
    offsets = np.zeros(count + 1, np.int32)
    np.cumsum(sizes, out=offsets[1:])
    return pa.ListArray.from_arrays(pa.array(offsets), values)
