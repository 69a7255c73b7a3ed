"""A growing set of pairs of integers in NumPy. Adding pairs costs a few passes over the added
pairs, regardless of the set's size.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from firesteel.operator import ColumnMemory
from taskexecutor.executor.column_memory import IN_MEMORY
from taskexecutor.executor.columnar.grouping.grouping import Ints

_LEAST = 1024  # minimum size of the table, which is at most half full
_AT_ONCE = 262_144  # pairs moved into a larger table at a time


class PairSet:
    """Pairs of a number below 2^31 and any 64-bit integer."""

    def __init__(self, memory: ColumnMemory = IN_MEMORY) -> None:
        self._memory = memory
        self.count = 0
        # The pairs in the order in which they were added, with spare room.
        self._first = np.empty(0, np.int32)
        self._second = np.empty(0, np.int64)
        # Hash table with linear probing: the number of a pair, or -1.
        self._table = memory.full(_LEAST, -1, np.int32)

    def add(self, first: Ints, second: Ints) -> np.ndarray[Any, np.dtype[np.bool_]]:
        """Adds pairs. Returns whether each pair is new: neither in the set nor repeated in this
        call.
        """
        return self._added(first, second)[0]

    def numbers(self, first: Ints, second: Ints) -> Ints:
        """Returns the number of each pair and adds new pairs. Pairs are numbered from 0 on, and the
        distinct pairs of a call in their order.
        """
        _, places = self._added(first, second)
        numbers: Ints = self._table[places].astype(np.int64)
        return numbers

    def _added(
        self, first: Ints, second: Ints
    ) -> tuple[np.ndarray[Any, np.dtype[np.bool_]], np.ndarray[Any, np.dtype[np.int64]]]:
        """Adds pairs. Returns whether each pair is new, and its index in the table."""
        rows, count = len(first), self.count
        self._reserve(count + rows)
        self._first[count : count + rows] = first
        self._second[count : count + rows] = second
        new, places = self._insert(count, count + rows)
        added = np.flatnonzero(new)
        if len(added) < rows:  # compacts
            numbers = np.arange(count, count + len(added))
            self._table[places[added]] = numbers
            self._first[numbers] = first[added]
            self._second[numbers] = second[added]
        self.count = count + len(added)
        return new, places

    def frozen(self) -> tuple[np.ndarray[Any, np.dtype[np.int32]], Ints]:
        """Returns the current pairs in the order in which they were added. They are not copied,
        because later pairs are written after them.
        """
        return self._first[: self.count], self._second[: self.count]

    def _insert(
        self, start: int, stop: int
    ) -> tuple[np.ndarray[Any, np.dtype[np.bool_]], np.ndarray[Any, np.dtype[np.int64]]]:
        """Inserts the pairs from `start` to `stop` into the table. Returns whether each pair is the
        first occurrence, and its index.
        """
        table, mask = self._table, len(self._table) - 1
        places = _hashes(self._first[start:stop], self._second[start:stop]) & mask
        new = np.zeros(stop - start, np.bool_)
        rows = np.arange(stop - start)
        while len(rows):
            at = places[rows]
            found = table[at]
            free = np.flatnonzero(found < 0)
            table[at[free]] = start + rows[free]  # the last of several rows is stored
            found[free] = table[at[free]]
            mine = start + rows
            new[rows[found == mine]] = True
            others = np.flatnonzero(
                (self._second[found] != self._second[mine])
                | (self._first[found] != self._first[mine])
            )
            rows = rows[others]
            places[rows] = (at[others] + 1) & mask
        return new, places

    def _reserve(self, count: int) -> None:
        if count > len(self._first):
            self._first = self._memory.grown(self._first, count)
            self._second = self._memory.grown(self._second, count)
        if 2 * count > len(self._table):
            self._table = self._memory.full(1 << (2 * count - 1).bit_length(), -1, np.int32)
            for start in range(0, self.count, _AT_ONCE):
                self._insert(start, min(start + _AT_ONCE, self.count))


def _hashes(
    first: np.ndarray[Any, np.dtype[np.int32]], second: Ints
) -> np.ndarray[Any, np.dtype[np.int64]]:
    mixed = second.astype(np.uint64)
    mixed += first.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    for multiplier in (0xBF58476D1CE4E5B9, 0x94D049BB133111EB):  # as in SplitMix64
        mixed ^= mixed >> np.uint64(31)
        mixed *= np.uint64(multiplier)
    mixed ^= mixed >> np.uint64(32)
    return mixed.view(np.int64)
