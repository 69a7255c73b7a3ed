"""Assigns consecutive numbers to keys in the order in which they are first seen."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from firesteel.operator import ColumnMemory
from taskexecutor.executor.column_memory import IN_MEMORY
from taskexecutor.executor.columnar.grouping.columns import numbers_in
from taskexecutor.executor.columnar.grouping.dense_partials import (
    SMALL_TABLE,
    SPARSE,
    as_keys,
)
from taskexecutor.executor.columnar.grouping.grouping import Ints, group, whole_numbers
from taskexecutor.executor.columnar.grouping.pair_set import PairSet
from taskexecutor.executor.columnar.grouping.row_log import RowLog, taken
from taskexecutor.executor.exchange.partitioning import hash_columns
from taskexecutor.executor.nested_keys import comparable
from taskexecutor.executor.numbers import as_numpy

# A lookup of at least one key per this many known keys justifies a pass over all of them.
_FEW = 8
_AT_ONCE = 262_144  # table entries scanned at a time
_PIECES = 16  # minimum number of pieces of known keys
_DIGITS = 18  # decimal digits that fit in 64 bits
_FEW_TEXTS = 4_096  # up to this many texts, lookups are faster in memory


class KeyIndex:
    """Numbers keys of any type, with the cheapest index for the keys seen so far."""

    def __init__(self, memory: ColumnMemory = IN_MEMORY) -> None:
        self._memory = memory
        self._index: DenseIndex | HashIndex | PairIndex | TextIndex = DenseIndex(memory)

    @property
    def count(self) -> int:
        return self._index.count

    def frozen(self) -> Callable[[], list[pa.Array] | None]:
        """Returns a function that makes the columns of all current keys in the order of their
        numbers, in any thread; it returns None if there are none.
        """
        return self._index.frozen()

    def numbers(self, columns: list[pa.Array]) -> Ints:
        """Returns the numbers of distinct keys. New keys are numbered from the current count on."""
        if not len(columns[0]):
            return np.empty(0, np.int64)
        if isinstance(self._index, DenseIndex):
            numbers = self._index.numbers(columns)
            if numbers is not None:
                return numbers
            known = self._index.keys()
            if len(columns) > 1 or _as_whole(columns[0].slice(0, 0)) is not None:
                self._index = PairIndex(self._memory)
            else:
                self._index = HashIndex()
            if known is not None:
                self._index.numbers(known)
        if (
            isinstance(self._index, HashIndex)
            and self._memory.piece_bytes
            and _is_text(columns[0].type)
            and self._index.count + len(columns[0]) > _FEW_TEXTS
        ):
            self._index = _as_texts(self._index, self._memory)
        return self._index.numbers(columns)


class DenseIndex:
    """An index for integer keys in a dense range: a table of their numbers."""

    def __init__(self, memory: ColumnMemory) -> None:
        self._memory = memory
        self.count = 0
        self._kind: pa.DataType | None = None
        self._low = 0
        self._table = np.empty(0, np.int64)

    def keys(self) -> list[pa.Array] | None:
        """Returns the column of all keys in the order of their numbers; None if there are none."""
        return self.frozen()()

    def frozen(self) -> Callable[[], list[pa.Array] | None]:
        # Later calls only change table entries without a number, and set them to larger numbers.
        table, low, count, kind = self._table, self._low, self.count, self._kind

        def keys() -> list[pa.Array] | None:
            if kind is None:
                return None
            values = self._memory.empty(count, np.int64)
            for start in range(0, len(table), _AT_ONCE):
                numbers = table[start : start + _AT_ONCE].copy()
                places = np.flatnonzero((numbers >= 0) & (numbers < count))
                values[numbers[places]] = places + (start + low)
            return [as_keys(values, kind)]

        return keys

    def numbers(self, columns: list[pa.Array]) -> Ints | None:
        """Returns the numbers of distinct keys; None if the keys are not integers in a dense
        range.
        """
        values = whole_numbers(columns[0]) if len(columns) == 1 else None
        if values is None:
            return None
        low, high = int(values.min()), int(values.max())
        if self.count:
            low, high = min(low, self._low), max(high, self._low + len(self._table) - 1)
        if high - low >= max(SPARSE * (self.count + len(values)), SMALL_TABLE):
            return None
        self._kind = columns[0].type
        self._cover(low, high)
        found: Ints = self._table[values - self._low]
        new = np.flatnonzero(found < 0)
        if len(new):
            found[new] = np.arange(self.count, self.count + len(new))
            self._table[values[new] - self._low] = found[new]
            self.count += len(new)
        return found

    def _cover(self, low: int, high: int) -> None:
        if self.count and low == self._low and high < self._low + len(self._table):
            return
        room = (high - low) // 2 if self.count else 0
        table = self._memory.full(high - low + 1 + room, -1, np.int64)
        if self.count:
            table[self._low - low : self._low - low + len(self._table)] = self._table
        self._low, self._table = low, table


class HashIndex:
    """An index for keys of any type, always in memory. Looks up many keys by grouping them with the
    known keys, and a few keys in a dictionary.
    """

    def __init__(self) -> None:
        self.count = 0
        # The keys in the order of their numbers; each piece has all key columns.
        self._known: list[list[pa.Array]] = []
        # Created on first use and kept up to date afterwards.
        self._numbers: dict[Any, int] | None = None

    def numbers(self, columns: list[pa.Array]) -> Ints:
        """Returns the numbers of distinct keys."""
        if len(columns[0]) * _FEW >= self.count:
            return self._by_groups(columns)
        if self._numbers is None:
            known = self._all_known()
            self._numbers = dict(zip(hashable(known), range(self.count), strict=True))
        numbers = self._numbers
        found = np.array([numbers.get(key, -1) for key in hashable(columns)], np.int64)
        return self._numbered(columns, found)

    def frozen(self) -> Callable[[], list[pa.Array] | None]:
        return _concatenated(self._known)

    def _by_groups(self, columns: list[pa.Array]) -> Ints:
        if not self.count:
            return self._numbered(columns, np.full(len(columns[0]), -1, np.int64))
        both = [
            pa.concat_arrays([known, new])
            for known, new in zip(self._all_known(), columns, strict=True)
        ]
        groups = group(both)
        numbers = np.full(groups.count, -1, np.int64)
        numbers[groups.codes[: self.count]] = np.arange(self.count)
        return self._numbered(columns, numbers[groups.codes[self.count :]])

    def _numbered(self, columns: list[pa.Array], found: Ints) -> Ints:
        """Assigns numbers to the keys that have none yet (-1)."""
        new = np.flatnonzero(found < 0)
        if len(new):
            found[new] = np.arange(self.count, self.count + len(new))
            added = [column.take(pa.array(new)) for column in columns]
            if self._numbers is not None:
                self._numbers.update(
                    zip(hashable(added), range(self.count, self.count + len(new)), strict=True)
                )
            self._known.append(added)
            self.count += len(new)
        return found

    def _all_known(self) -> list[pa.Array]:
        if len(self._known) > 1:
            self._known = [
                [pa.concat_arrays(list(pieces)) for pieces in zip(*self._known, strict=True)]
            ]
        return self._known[0]


class PairIndex:
    """An index for keys of several columns, and for numbers. The number of the preceding columns'
    values and a value of the next column form a pair of integers, which is numbered in turn.
    """

    def __init__(self, memory: ColumnMemory) -> None:
        self._memory = memory
        self._known = RowLog(_PIECES, memory)  # the keys in the order of their numbers
        self._columns: list[_PairColumn] = []

    @property
    def count(self) -> int:
        return self._columns[-1].pairs.count if self._columns else 0

    def numbers(self, columns: list[pa.Array]) -> Ints:
        """Returns the numbers of distinct keys."""
        if not self._columns:
            found = [
                _PairColumn(place, column.type, self._memory)
                for place, column in enumerate(columns)
            ]
            # Columns of other types first: the fewer distinct values the preceding columns have,
            # the better.
            self._columns = sorted(found, key=lambda each: each.is_whole)
        known = self.count
        numbers = np.zeros(len(columns[0]), np.int64)
        for each in self._columns:
            numbers = each.numbers(numbers, columns[each.place])
        new = np.flatnonzero(numbers >= known)
        if len(new):
            self._known.add(_rows([column.take(pa.array(new)) for column in columns]))
        return numbers

    def frozen(self) -> Callable[[], list[pa.Array] | None]:
        return _concatenated([piece.columns for piece in self._known.pieces])


class _PairColumn:
    """One key column."""

    def __init__(self, place: int, kind: pa.DataType, memory: ColumnMemory) -> None:
        self.place = place  # index of the column
        self.is_whole = _as_whole(pa.array([], kind)) is not None
        self.pairs = PairSet(memory)
        self._values = KeyIndex(memory)  # of values other than numbers

    def numbers(self, first: Ints, column: pa.Array) -> Ints:
        """Returns the numbers of the pairs of these numbers and the column's values."""
        values = _as_whole(column)
        if values is None:
            groups = group([column])
            different = column.take(pa.array(groups.first_rows()))
            return self.pairs.numbers(first, self._values.numbers([different])[groups.codes])
        if not column.null_count:
            return self.pairs.numbers(2 * first, values)
        valid = as_numpy(column.is_valid())
        return self.pairs.numbers(2 * first + ~valid, np.where(valid, values, 0))


class TextIndex:
    """An index for keys of one column of texts or bytes. A text is identified by its hash and the
    number of different texts with this hash before it. A lookup therefore compares it with the
    texts of its hash, one after another, until it matches or is new.
    """

    def __init__(self, memory: ColumnMemory) -> None:
        self._pairs = PairSet(memory)
        self._known = RowLog(memory=memory)  # the texts in the order of their numbers

    @property
    def count(self) -> int:
        return self._pairs.count

    def numbers(self, columns: list[pa.Array]) -> Ints:
        """Returns the numbers of distinct keys."""
        (column,) = columns
        hashes, nulls = hash_columns(columns).astype(np.int64), as_numpy(column.is_null())
        numbers = np.empty(len(column), np.int64)
        rows, before = np.arange(len(column)), 0
        while len(rows):
            known = self.count
            found = self._pairs.numbers(2 * before + nulls[rows], hashes[rows])
            numbers[rows] = found
            others = np.zeros(len(rows), np.bool_)
            old = np.flatnonzero((found < known) & ~nulls[rows])
            if len(old):
                texts = taken(self._known.pieces, found[old]).column(0)
                others[old] = as_numpy(pc.not_equal(texts, column.take(pa.array(rows[old]))))
            new = np.flatnonzero(found >= known)
            if len(new):
                mine = np.empty(self.count - known, np.int64)
                # one of the texts with an equal hash gets the number
                mine[found[new] - known] = new
                others[new] = mine[found[new] - known] != new
                self._known.add(_rows([column.take(pa.array(rows[mine]))]))
            rows, before = rows[others], before + 1
        return numbers

    def frozen(self) -> Callable[[], list[pa.Array] | None]:
        return _concatenated([piece.columns for piece in self._known.pieces])


def _as_texts(index: HashIndex, memory: ColumnMemory) -> TextIndex:
    """Returns an index with the same numbers."""
    found = TextIndex(memory)
    for (texts,) in filter(None, [index.frozen()()]):
        # Within a call, texts whose hash occurred before get the last numbers.
        first = np.unique(hash_columns([texts]), return_index=True)[1]
        others = np.setdiff1d(np.arange(len(texts)), first)
        cuts = np.unique(np.concatenate(([0], others, others + 1, [len(texts)])))
        for begin, end in pairwise(cuts.tolist()):
            found.numbers([texts.slice(begin, end - begin)])
    return found


def _as_whole(column: pa.Array) -> Ints | None:
    """Returns an integer for each value, equal for equal values and undefined for nulls; None if
    the type is not a numeric type of up to 64 bits.
    """
    kind = column.type
    if pa.types.is_floating(kind):
        filled = column.fill_null(0) if column.null_count else column
        doubles = as_numpy(filled).astype(np.float64) + 0.0  # -0.0 + 0.0 is 0.0
        doubles[np.isnan(doubles)] = np.nan
        bits: Ints = doubles.view(np.int64)
        return bits
    if pa.types.is_decimal128(kind) and kind.precision <= _DIGITS:
        if not len(column):
            return np.empty(0, np.int64)
        halves = np.frombuffer(column.buffers()[1], np.int64, 2 * len(column), 16 * column.offset)
        return halves[::2]
    if whole_numbers(column.slice(0, 0)) is None:
        return None
    whole: Ints = numbers_in(column).astype(np.int64, copy=False)
    return whole


def _is_text(kind: pa.DataType) -> bool:
    return bool(
        pa.types.is_string(kind)
        or pa.types.is_large_string(kind)
        or pa.types.is_binary(kind)
        or pa.types.is_large_binary(kind)
    )


def _rows(columns: list[pa.Array]) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays(columns, names=[str(place) for place in range(len(columns))])


def _concatenated(pieces: Sequence[list[pa.Array]]) -> Callable[[], list[pa.Array] | None]:
    """Returns a function that concatenates the pieces of each column."""
    known = tuple(pieces)
    return lambda: (
        [pa.concat_arrays(list(each)) for each in zip(*known, strict=True)] if known else None
    )


def hashable(columns: list[pa.Array]) -> Any:
    """Converts keys to Python values: NaN, which equals nothing in Python, to a string, arrays and
    structs to tuples.
    """
    plain = [_plain(column) for column in columns]
    return plain[0] if len(plain) == 1 else zip(*plain, strict=True)


def _plain(column: pa.Array) -> list[Any]:
    values: list[Any] = column.to_pylist()
    if pa.types.is_floating(column.type):
        return ["NaN" if value is not None and value != value else value for value in values]
    if pa.types.is_nested(column.type):
        return list(map(comparable, values))
    return values
