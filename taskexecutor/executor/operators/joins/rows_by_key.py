"""The rows of one side of a join, found by key and time.

Rows are in a log, and never move. Which of them a key has is in runs: places in the log, sorted by
the key's number and the time. A bundle is a new run, and runs are merged as the log's pieces are:
each row a few times. So a lookup is a binary search in a few runs, for all keys of a bundle at a
time, and costs what it finds, however many rows a key has.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from taskexecutor.executor.aggregation.columns import numbers_in
from taskexecutor.executor.aggregation.grouping import Ints
from taskexecutor.executor.aggregation.ranked_rows import ranges
from taskexecutor.executor.aggregation.row_log import RowLog, taken
from taskexecutor.executor.numbers import as_numpy

_PIECES = 16  # of the log, at least: rows are taken from a few as fast as from one
PAIRS = 65_536  # are found at a time, or those of one row
# The last columns of a snapshot.
TIME, ALONE = "__time", "__alone"
Flags = np.ndarray[Any, np.dtype[np.bool_]]


class Pairs(NamedTuple):
    queries: Ints  # which of the keys that were asked for
    places: Ints  # of the rows


class _Run(NamedTuple):
    """In the order of keys, then times, then places."""

    keys: Ints
    times: Ints
    places: Ints


class RowsByKey:
    """Rows of any number of keys, each of which has a number."""

    def __init__(self) -> None:
        self._log = RowLog(_PIECES)
        self._runs: list[_Run] = []
        self.count = 0
        # By place: whether the row has had no match, as far as anybody knows.
        self._alone: Flags = np.zeros(0, np.bool_)

    def add(self, rows: pa.RecordBatch, numbers: Ints, times: Ints, alone: Flags) -> None:
        """`numbers`: of the rows' keys. All rows ever added have the same columns."""
        if not rows.num_rows:
            return
        end = self.count + rows.num_rows
        if end > len(self._alone):
            grown = np.zeros(max(end, 2 * len(self._alone)), np.bool_)
            grown[: self.count] = self._alone[: self.count]
            self._alone = grown
        self._alone[self.count : end] = alone
        self._log.add(rows.append_column(TIME, pa.array(times)))
        runs = [_Run(numbers, times, np.arange(self.count, end))]
        while self._runs and len(self._runs[-1].keys) <= 2 * sum(len(run.keys) for run in runs):
            runs.insert(0, self._runs.pop())
        self._runs.append(_merged(runs))
        self.count = end

    def find(self, numbers: Ints, low: Ints, high: Ints) -> Iterator[Pairs]:
        """The rows of each of these keys whose times are from `low` to `high`, some at a time."""
        found = [_found(run, numbers, low, high) for run in self._runs]
        if not found:
            return
        ends = np.cumsum(np.sum([counts for _, counts in found], axis=0))
        begin = 0
        while begin < len(numbers):
            before = int(ends[begin - 1]) if begin else 0
            end = max(begin + 1, int(np.searchsorted(ends, before + PAIRS, "right")))
            queries, places = [], []
            for run, (firsts, counts) in zip(self._runs, found, strict=True):
                some = counts[begin:end]
                queries.append(np.repeat(np.arange(begin, end), some))
                places.append(run.places[ranges(firsts[begin:end], some)])
            pairs = Pairs(np.concatenate(queries), np.concatenate(places))
            if len(pairs.places):
                yield pairs
            begin = end

    def take(self, places: Ints) -> pa.RecordBatch:
        rows = taken(self._log.pieces, places)
        return rows.remove_column(rows.num_columns - 1)

    def matched(self, places: Ints) -> Ints:
        """Marks that these rows have a match; returns those that had none before."""
        alone = np.unique(places[self._alone[places]])
        self._alone[alone] = False
        return alone

    def frozen(self, horizon: int) -> Callable[[], pa.Table | None]:
        """Makes the rows as they are now that are not before a time, in any thread."""
        pieces, alone = self._log.pieces, self._alone[: self.count].copy()

        def make() -> pa.Table | None:
            if not pieces:
                return None
            table = pa.Table.from_batches(pieces).append_column(ALONE, pa.array(alone))
            times = np.concatenate([numbers_in(piece.column(TIME)) for piece in pieces])
            kept = times >= horizon
            return table if kept.all() else table.filter(pa.array(kept))

        return make


class Restored(NamedTuple):
    rows: pa.RecordBatch
    times: Ints
    alone: Flags


def restored(table: pa.Table) -> Restored:
    """What `RowsByKey.frozen` made."""
    batch = pa.concat_batches(table.to_batches())
    last = batch.num_columns - 1
    return Restored(
        batch.select(range(last - 1)),
        as_numpy(batch.column(last - 1)),
        as_numpy(batch.column(last)),
    )


def _merged(runs: list[_Run]) -> _Run:
    merged = _Run(*(np.concatenate(columns) for columns in zip(*runs, strict=True)))
    order = np.lexsort((merged.times, merged.keys))
    return _Run(*(column[order] for column in merged))


def _found(run: _Run, numbers: Ints, low: Ints, high: Ints) -> tuple[Ints, Ints]:
    """For each key: where its rows with these times begin in the run, and how many there are."""
    first = np.searchsorted(run.keys, numbers, "left")
    last = np.searchsorted(run.keys, numbers, "right")
    first, last = (
        _bisected(run.times, low, first, last, after=False),
        _bisected(run.times, high, first, last, after=True),
    )
    return first, np.maximum(last - first, 0)


def _bisected(times: Ints, wanted: Ints, low: Ints, high: Ints, *, after: bool) -> Ints:
    """In each range of times, where a time is to be inserted: before or after those equal to it."""
    low, high = low.copy(), high.copy()
    rows = np.flatnonzero(low < high)
    while len(rows):
        middle = (low[rows] + high[rows]) // 2
        found = times[middle]
        below = found <= wanted[rows] if after else found < wanted[rows]
        low[rows[below]] = middle[below] + 1
        high[rows[~below]] = middle[~below]
        rows = rows[low[rows] < high[rows]]
    return low
