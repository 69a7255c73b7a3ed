"""Numbers keys in the order in which they are first seen."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa

from taskexecutor.executor.aggregation.dense_partials import (
    SMALL_TABLE,
    SPARSE,
    as_keys,
)
from taskexecutor.executor.aggregation.grouping import Ints, group, whole_numbers

# A lookup of at least one key per this many known ones is worth a pass over all of them.
_FEW = 8


class KeyIndex:
    """For any keys, by the cheapest way for those seen so far."""

    def __init__(self) -> None:
        self._index: DenseIndex | HashIndex = DenseIndex()

    @property
    def count(self) -> int:
        return self._index.count

    def frozen(self) -> Callable[[], list[pa.Array] | None]:
        """Makes the columns of all keys known now, in the order of their numbers, in any thread;
        None if there are none.
        """
        return self._index.frozen()

    def numbers(self, columns: list[pa.Array]) -> Ints:
        """The numbers of distinct keys; new ones are numbered from the current count on."""
        if not len(columns[0]):
            return np.empty(0, np.int64)
        if isinstance(self._index, DenseIndex):
            numbers = self._index.numbers(columns)
            if numbers is not None:
                return numbers
            self._index = HashIndex.of(self._index.keys())
        return self._index.numbers(columns)


class DenseIndex:
    """For keys that are integers close to each other: their numbers in a table."""

    def __init__(self) -> None:
        self.count = 0
        self._kind: pa.DataType | None = None
        self._low = 0
        self._table = np.empty(0, np.int64)

    def keys(self) -> list[pa.Array] | None:
        """The column of all keys in the order of their numbers; None if there are none."""
        return self.frozen()()

    def frozen(self) -> Callable[[], list[pa.Array] | None]:
        # Of the table, only places without a number change, and then to larger numbers.
        table, low, count, kind = self._table, self._low, self.count, self._kind

        def keys() -> list[pa.Array] | None:
            if kind is None:
                return None
            numbers = table.copy()
            places = np.flatnonzero((numbers >= 0) & (numbers < count))
            values = np.empty(count, np.int64)
            values[numbers[places]] = places + low
            return [as_keys(values, kind)]

        return keys

    def numbers(self, columns: list[pa.Array]) -> Ints | None:
        """The numbers of distinct keys; None if they are not such integers."""
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
        table = np.full(high - low + 1 + room, -1, np.int64)
        if self.count:
            table[self._low - low : self._low - low + len(self._table)] = self._table
        self._low, self._table = low, table


class HashIndex:
    """For any keys. Many at once are found by grouping them with the known ones, a few in a
    dictionary.
    """

    def __init__(self) -> None:
        self.count = 0
        # The keys in the order of their numbers, in pieces of all key columns.
        self._known: list[list[pa.Array]] = []
        # Made when it is first needed, and kept up to date from then on.
        self._numbers: dict[Any, int] | None = None

    @classmethod
    def of(cls, columns: list[pa.Array] | None) -> HashIndex:
        """An index of these distinct keys, numbered in their order."""
        index = cls()
        if columns is not None:
            index.numbers(columns)
        return index

    def numbers(self, columns: list[pa.Array]) -> Ints:
        """The numbers of distinct keys."""
        if len(columns[0]) * _FEW >= self.count:
            return self._by_groups(columns)
        if self._numbers is None:
            known = self._all_known()
            self._numbers = dict(zip(hashable(known), range(self.count), strict=True))
        numbers = self._numbers
        found = np.array([numbers.get(key, -1) for key in hashable(columns)], np.int64)
        return self._numbered(columns, found)

    def frozen(self) -> Callable[[], list[pa.Array] | None]:
        known = tuple(self._known)
        return lambda: (
            [pa.concat_arrays(list(pieces)) for pieces in zip(*known, strict=True)]
            if known
            else None
        )

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
        """Numbers the keys that have no number yet (-1)."""
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


def hashable(columns: list[pa.Array]) -> Any:
    """Keys as Python values. NaN, which equals nothing in Python, and values that Python cannot
    hash are strings.
    """
    plain = [_plain(column) for column in columns]
    return plain[0] if len(plain) == 1 else zip(*plain, strict=True)


def _plain(column: pa.Array) -> list[Any]:
    values: list[Any] = column.to_pylist()
    if pa.types.is_floating(column.type):
        return ["NaN" if value is not None and value != value else value for value in values]
    if pa.types.is_nested(column.type):
        return [repr(value) for value in values]
    return values
