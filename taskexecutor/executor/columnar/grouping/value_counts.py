"""Counts the values of each key under insertions and deletions, for aggregates that cannot be
subtracted, such as a minimum or a distinct count.

A key and a value are a numbered pair. A bundle changes the counts of its pairs. The pair with a
key's least or greatest value is stored, and is searched for among all pairs of the key only after
its deletion.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple

import numpy as np
import pyarrow as pa

from firesteel.operator import ColumnMemory
from taskexecutor.executor.column_memory import IN_MEMORY
from taskexecutor.executor.columnar.grouping.grouping import Ints, group
from taskexecutor.executor.columnar.grouping.key_index import KeyIndex
from taskexecutor.executor.columnar.grouping.ordering import sorted_rows
from taskexecutor.executor.columnar.grouping.ranked_rows import ranges
from taskexecutor.executor.columnar.grouping.row_log import RowLog, taken
from taskexecutor.executor.numbers import as_numpy

_PIECES = 16
_LEAST_PAIRS = 65_536
_AT_ONCE = 262_144  # pairs copied at a time when runs are merged or deleted pairs dropped
COUNT = "_count"  # the last column of a snapshot


class Missing(Exception):
    """A deleted value does not exist for its key."""

    def __init__(self, row: int) -> None:
        super().__init__(f"row {row}")
        self.row = row


class ValueCounts:
    """Counts values of one or more columns. The first column is never null and determines the
    order.
    """

    def __init__(self, ends: Sequence[str], memory: ColumnMemory) -> None:
        """`ends`: the required ends, of "min" and "max"."""
        self._memory = memory
        self._ends = tuple(ends)
        self._clear()

    def _clear(self) -> None:
        self._index = KeyIndex(self._memory)
        # By pair number.
        self._values = RowLog(_PIECES, self._memory)
        self._key_of = np.empty(0, np.int64)
        self._counts = np.zeros(0, np.int64)
        self._pairs = 0
        self._gone = 0  # pairs with a count of 0
        self._by_key = SortedRuns(self._memory)
        # By key number: the pair at the end; -1 if the key has no value.
        self._best = {end: np.empty(0, np.int64) for end in self._ends}

    def add(self, keys: Ints, columns: list[pa.Array], signs: Ints) -> Ints:
        """Inserts (1) or deletes (-1) values of these keys, in any order. Returns by how much each
        row changes the distinct count of its key. Raises Missing.
        """
        changes = np.zeros(len(keys), np.int64)
        if not len(keys):
            return changes
        groups = group([pa.array(keys), *columns])
        net = np.zeros(groups.count, np.int64)
        np.add.at(net, groups.codes, signs)
        rows, changed = groups.first_rows(), net != 0
        rows, net = rows[changed], net[changed]
        if not len(rows):
            return changes
        pairs = self._numbers(keys[rows], [column.take(pa.array(rows)) for column in columns])
        before = self._counts[pairs]
        after = before + net
        if (after < 0).any():
            raise Missing(int(rows[np.argmax(after < 0)]))
        self._counts[pairs] = after
        came, went = (before == 0) & (after > 0), (before > 0) & (after == 0)
        changes[rows[came]], changes[rows[went]] = 1, -1
        self._gone += int(went.sum()) - int(came.sum())
        for end in self._ends:
            self._update_ends(end, keys[rows], pairs)
        if self._gone > max(_LEAST_PAIRS, self._pairs // 2):
            self._forget()
        return changes

    def at_end(self, end: str, keys: Ints, column: int, kind: pa.DataType) -> pa.Array:
        """Returns the least or greatest value of each key; null if it has none. `column` is the
        index of the value's column, `kind` its type.
        """
        if not self._pairs:
            return pa.nulls(len(keys), kind)
        best = self._best[end]
        pairs = np.full(len(keys), -1)
        known = keys < len(best)
        pairs[known] = best[keys[known]]
        found = np.flatnonzero(pairs >= 0)
        values = taken(self._values.pieces, pairs[found]).column(column)
        places = np.zeros(len(keys), np.int64)
        places[found] = np.arange(len(found))
        return values.take(pa.array(places, mask=pairs < 0))

    def frozen(self) -> Callable[[], tuple[Ints, list[pa.Array], Ints] | None]:
        """Returns a function that makes the current pairs in any thread: their key numbers, the
        columns of their values, and their counts.
        """
        pieces, counts = self._values.pieces, self._counts[: self._pairs].copy()
        keys = self._key_of[: self._pairs]

        def make() -> tuple[Ints, list[pa.Array], Ints] | None:
            there = np.flatnonzero(counts)
            if not len(there):
                return None
            return keys[there], list(taken(pieces, there).columns), counts[there]

        return make

    def restore(self, keys: Ints, columns: list[pa.Array], counts: Ints) -> None:
        """Restores the result of `frozen` into an empty instance."""
        self.add(keys, columns, counts)

    def _forget(self) -> None:
        """Drops the pairs with a count of 0."""
        pieces, key_of, counts = self._values.pieces, self._key_of, self._counts[: self._pairs]
        self._clear()
        for begin in range(0, len(counts), _AT_ONCE):
            there = begin + np.flatnonzero(counts[begin : begin + _AT_ONCE])
            if len(there):
                self.add(key_of[there], list(taken(pieces, there).columns), counts[there])

    def _numbers(self, keys: Ints, columns: list[pa.Array]) -> Ints:
        """Returns the numbers of distinct pairs."""
        known = self._pairs
        numbers = self._index.numbers([pa.array(keys), *columns])
        new = np.flatnonzero(numbers >= known)
        if not len(new):
            return numbers
        new = new[np.argsort(numbers[new])]
        self._pairs += len(new)
        self._gone += len(new)  # until they are counted
        self._key_of = self._with_room(self._key_of, self._pairs)
        self._counts = self._with_room(self._counts, self._pairs)
        self._key_of[known : self._pairs] = keys[new]
        names = [str(place) for place in range(len(columns))]
        rows = [column.take(pa.array(new)) for column in columns]
        self._values.add(pa.RecordBatch.from_arrays(rows, names=names))
        if self._ends:
            self._by_key.add(keys[new], numbers[new])
        return numbers

    def _update_ends(self, end: str, keys: Ints, pairs: Ints) -> None:
        """Finds the new ends of these keys, whose pairs have changed."""
        best, most = self._best[end], int(keys.max()) + 1
        if most > len(best):
            best = self._best[end] = self._with_room(best, most, -1)
        changed: Ints = np.unique(keys)
        now = best[changed]
        there = np.zeros(len(changed), np.bool_)
        there[now >= 0] = self._counts[now[now >= 0]] > 0
        candidates = _Pairs(
            np.concatenate((changed[there], keys)), np.concatenate((now[there], pairs))
        )
        lost = changed[(now >= 0) & ~there]
        best[changed[~there]] = -1
        if len(lost):
            more = _Pairs(*self._by_key.find(lost))
            candidates = _Pairs(*map(np.concatenate, zip(candidates, more, strict=True)))
        valid = self._counts[candidates.pairs] > 0
        of, pairs = candidates.keys[valid], candidates.pairs[valid]
        if not len(of):
            return
        ordering = taken(self._values.pieces, pairs).column(0)
        order = sorted_rows([(pa.array(of), True), (ordering, True), (pa.array(pairs), True)])
        of, pairs = of[order], pairs[order]
        ends = np.ones(len(of), np.bool_)
        if end == "min":
            ends[1:] = of[1:] != of[:-1]
        else:
            ends[:-1] = of[1:] != of[:-1]
        best[of[ends]] = pairs[ends]

    def _with_room(self, column: Ints, needed: int, fill: int = 0) -> Ints:
        if needed <= len(column):
            return column
        grown: Ints = self._memory.grown(column, needed)
        grown[len(column) :] = fill
        return grown


class _Pairs(NamedTuple):
    keys: Ints
    pairs: Ints


def present(column: pa.Array) -> Ints:
    """Returns the rows that have a value."""
    if not column.null_count:
        return np.arange(len(column))
    return np.flatnonzero(as_numpy(column.is_valid()))


class SortedRuns:
    """Pairs of a key and a number, in runs sorted by key. A bundle becomes a new run, and runs of
    similar size are merged, so that each pair is merged only a few times.
    """

    def __init__(self, memory: ColumnMemory = IN_MEMORY) -> None:
        self._memory = memory
        self._runs: list[tuple[Ints, Ints]] = []

    def add(self, keys: Ints, numbers: Ints) -> None:
        order = np.argsort(keys, kind="stable")
        run = keys[order], numbers[order]
        while self._runs and len(self._runs[-1][0]) <= 2 * len(run[0]):
            run = _merged(self._runs.pop(), run, self._memory)
        self._runs.append(run)

    def find(self, keys: Ints) -> tuple[Ints, Ints]:
        """Returns all pairs of these distinct keys, in no particular order."""
        owners, numbers = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
        for of_run, its in self._runs:
            first = np.searchsorted(of_run, keys, "left")
            counts = np.searchsorted(of_run, keys, "right") - first
            owners.append(np.repeat(keys, counts))
            numbers.append(its[ranges(first, counts)])
        return np.concatenate(owners), np.concatenate(numbers)


def _merged(
    one: tuple[Ints, Ints], other: tuple[Ints, Ints], memory: ColumnMemory
) -> tuple[Ints, Ints]:
    count = len(one[0]) + len(other[0])
    keys, numbers = memory.empty(count, np.int64), memory.empty(count, np.int64)

    def write(run: tuple[Ints, Ints], beside: Ints, side: Literal["left", "right"]) -> None:
        for begin in range(0, len(run[0]), _AT_ONCE):
            some, its = (column[begin : begin + _AT_ONCE] for column in run)
            places = np.searchsorted(beside, some, side) + np.arange(begin, begin + len(some))
            keys[places], numbers[places] = some, its

    write(one, other[0], "left")
    write(other, one[0], "right")
    return keys, numbers
