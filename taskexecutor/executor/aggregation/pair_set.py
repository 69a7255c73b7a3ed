"""A set of pairs of integers that grows, in numpy: a few passes over the pairs that are added,
however many there are already.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from firesteel.operator import ColumnMemory
from taskexecutor.executor.aggregation.grouping import Ints
from taskexecutor.executor.column_memory import IN_MEMORY

_LEAST = 1024  # places of the table, which is at most half full
_AT_ONCE = 262_144  # pairs that are put into a larger table


class PairSet:
    """Pairs of a number below 2^31 and any 64-bit integer."""

    def __init__(self, memory: ColumnMemory = IN_MEMORY) -> None:
        self._memory = memory
        self.count = 0
        # The pairs in the order in which they were added, with room for more.
        self._first = np.empty(0, np.int32)
        self._second = np.empty(0, np.int64)
        # Where a pair is among them, or -1. A pair whose place is taken is in the next free one.
        self._table = memory.full(_LEAST, -1, np.int32)

    def add(self, first: Ints, second: Ints) -> np.ndarray[Any, np.dtype[np.bool_]]:
        """Whether each pair is new: neither in the set, nor added twice by this call."""
        return self._added(first, second)[0]

    def numbers(self, first: Ints, second: Ints) -> Ints:
        """The number of each pair, which is added if it is new: pairs are numbered from 0 on, and
        those of a call, if none is there twice, in their order.
        """
        _, places = self._added(first, second)
        numbers: Ints = self._table[places].astype(np.int64)
        return numbers

    def _added(
        self, first: Ints, second: Ints
    ) -> tuple[np.ndarray[Any, np.dtype[np.bool_]], np.ndarray[Any, np.dtype[np.int64]]]:
        """Adds pairs: whether each is new, and its place in the table."""
        rows, count = len(first), self.count
        self._reserve(count + rows)
        self._first[count : count + rows] = first
        self._second[count : count + rows] = second
        new, places = self._insert(count, count + rows)
        added = np.flatnonzero(new)
        if len(added) < rows:  # without gaps
            numbers = np.arange(count, count + len(added))
            self._table[places[added]] = numbers
            self._first[numbers] = first[added]
            self._second[numbers] = second[added]
        self.count = count + len(added)
        return new, places

    def frozen(self) -> tuple[np.ndarray[Any, np.dtype[np.int32]], Ints]:
        """The pairs that are there now, in the order in which they were added. They are not
        copied: those that follow are written behind them.
        """
        return self._first[: self.count], self._second[: self.count]

    def _insert(
        self, start: int, stop: int
    ) -> tuple[np.ndarray[Any, np.dtype[np.bool_]], np.ndarray[Any, np.dtype[np.int64]]]:
        """Puts the pairs from `start` to `stop` into the table: whether each is the first one of
        its kind, and its place.
        """
        table, mask = self._table, len(self._table) - 1
        places = _hashes(self._first[start:stop], self._second[start:stop]) & mask
        new = np.zeros(stop - start, np.bool_)
        rows = np.arange(stop - start)
        while len(rows):
            at = places[rows]
            found = table[at]
            free = np.flatnonzero(found < 0)
            table[at[free]] = start + rows[free]  # of several rows, the last one is there
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
    for multiplier in (0xBF58476D1CE4E5B9, 0x94D049BB133111EB):  # as SplitMix64 does
        mixed ^= mixed >> np.uint64(31)
        mixed *= np.uint64(multiplier)
    mixed ^= mixed >> np.uint64(32)
    return mixed.view(np.int64)
