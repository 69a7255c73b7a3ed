"""The rows of one side of a join, found by key and time.

Rows are in a log and never move. Sorted runs of row numbers map keys to rows, so the cost of a
lookup depends on the result and not on the number of a key's rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from firesteel.operator import ColumnMemory
from taskexecutor.executor.columnar.grouping.columns import as_table, numbers_in
from taskexecutor.executor.columnar.grouping.grouping import Ints, group
from taskexecutor.executor.columnar.grouping.ordering import ranks_of
from taskexecutor.executor.columnar.grouping.ranked_rows import ranges
from taskexecutor.executor.columnar.grouping.row_log import RowLog, marked, pieces_of, taken
from taskexecutor.executor.numbers import as_numpy
from taskexecutor.executor.operators.joins.joined_columns import Flags
from taskexecutor.executor.operators.joins.sorted_runs import Run, between, with_run

# minimum number of pieces of the log: reading rows from a few pieces is as fast as from one
_PIECES = 16
PAIRS = 65_536  # pairs found at a time, unless a single row has more
# The last columns of a snapshot.
TIME, ALONE = "__time", "__alone"


class Pairs(NamedTuple):
    queries: Ints  # indices into the requested keys
    places: Ints  # row numbers


class RowsByKey:
    """Rows of any number of keys, which are numbered."""

    def __init__(self, memory: ColumnMemory, *, expiring: bool = False) -> None:
        """`memory` holds the rows; the runs and flags are always in memory. `expiring`: `expired`
        finds rows without a match once their time is over.
        """
        self._memory = memory
        self._log = RowLog(_PIECES, memory)
        self._runs: list[Run] = []
        # Rows without a match on arrival, as rows of a single key; None unless `expiring`.
        self._expiring: list[Run] | None = [] if expiring else None
        self.count = 0
        self.size_bytes = 0  # of all rows
        # By row number: whether the row has no match so far.
        self._alone: Flags = np.zeros(0, np.bool_)
        # By row number: whether the row was removed; and the number of removed rows.
        self._removed: Flags = np.zeros(0, np.bool_)
        self.removed = 0

    def add(self, rows: pa.RecordBatch, numbers: Ints, times: Ints, alone: Flags) -> None:
        """Adds rows with the numbers of their keys. All rows ever added have the same columns."""
        if not rows.num_rows:
            return
        end = self.count + rows.num_rows
        if end > len(self._alone):
            more = np.zeros(max(end - len(self._alone), len(self._alone)), np.bool_)
            self._alone = np.concatenate((self._alone, more))
            self._removed = np.concatenate((self._removed, more))
        self._alone[self.count : end] = alone
        timed = rows.append_column(TIME, pa.array(times))
        self.size_bytes += timed.nbytes
        self._log.add(timed)
        self._runs = with_run(self._runs, Run(numbers, times, np.arange(self.count, end)))
        if self._expiring is not None and alone.any():
            one = np.zeros(int(alone.sum()), np.int64)
            places = self.count + np.flatnonzero(alone)
            self._expiring = with_run(self._expiring, Run(one, times[alone], places))
        self.count = end

    def find(self, numbers: Ints, low: Ints, high: Ints) -> Iterator[Pairs]:
        """Yields the rows of each of these keys with times from `low` to `high`, some at a time."""
        found = [between(run, numbers, low, high) for run in self._runs]
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
            if self.removed:
                there = ~self._removed[pairs.places]
                pairs = Pairs(pairs.queries[there], pairs.places[there])
            if len(pairs.places):
                yield pairs
            begin = end

    def take(self, places: Ints) -> pa.RecordBatch:
        rows = taken(self._log.pieces, places)
        return rows.remove_column(rows.num_columns - 1)

    def equal(self, rows: pa.RecordBatch, numbers: Ints) -> Ints:
        """Returns for each row the number of a different row that is equal in all columns; -1 if
        there is none. For rows without time.
        """
        keys = np.unique(numbers)
        none = np.zeros(len(keys), np.int64)
        found = [pairs.places for pairs in self.find(keys, none, none)]
        if not found:
            return np.full(len(numbers), -1)
        places = np.concatenate(found)
        both = pa.concat_batches([rows, self.take(places)])
        codes = group(both.columns).codes
        wanted, there = (
            each * both.num_rows + _occurrences(each)
            for each in (codes[: len(numbers)], codes[len(numbers) :])
        )
        order = np.argsort(there)
        at = np.searchsorted(there, wanted, sorter=order)
        at = order[np.minimum(at, len(order) - 1)]
        return np.where(there[at] == wanted, places[at], -1)

    def remove(self, places: Ints) -> None:
        self._removed[places] = True
        self.removed += len(places)

    def alone(self, places: Ints) -> Flags:
        return self._alone[places]

    def unmatched(self, places: Ints) -> None:
        """Marks that these rows no longer have a match."""
        self._alone[places] = True

    def matched(self, places: Ints) -> Ints:
        """Marks that these rows have a match. Returns those that had none before."""
        alone = np.unique(places[self._alone[places]])
        self._alone[alone] = False
        return alone

    def expired(self, horizon: int) -> Iterator[tuple[pa.RecordBatch, Ints]]:
        """Yields the rows before a time that never had a match, with their times, some at a time.
        Each row is yielded once.
        """
        runs = self._expiring or []
        ends = [int(np.searchsorted(run.times, horizon)) for run in runs]
        if not any(ends):
            return
        places = np.concatenate([run.places[:end] for run, end in zip(runs, ends, strict=True)])
        self._expiring = [
            Run(*(column[end:] for column in run))
            for run, end in zip(runs, ends, strict=True)
            if end < len(run.times)
        ]
        places = np.sort(places[self._alone[places]])
        for begin in range(0, len(places), PAIRS):
            rows = taken(self._log.pieces, places[begin : begin + PAIRS])
            last = rows.num_columns - 1
            yield rows.remove_column(last), numbers_in(rows.column(last))

    def frozen(self, horizon: int) -> Callable[[], pa.Table | None]:
        """Returns a function that makes the current rows from a time on, in any thread."""
        pieces, alone = self._log.pieces, self._alone[: self.count].copy()
        there = ~self._removed[: self.count]

        def make() -> pa.Table | None:
            if not pieces:
                return None
            times = np.concatenate([numbers_in(piece.column(TIME)) for piece in pieces])
            kept = there & (times >= horizon)
            rows = marked(pieces, kept, self._memory)
            if not rows:
                return None
            return as_table(rows).append_column(ALONE, pa.array(alone[kept]))

        return make


class Restored(NamedTuple):
    rows: pa.RecordBatch
    times: Ints
    alone: Flags


def restored(table: pa.Table, memory: ColumnMemory) -> Iterator[Restored]:
    """Yields the rows of `RowsByKey.frozen`, in pieces of limited size."""
    for batch in pieces_of(table, memory):
        last = batch.num_columns - 1
        times, alone = (as_numpy(batch.column(place)) for place in (last - 1, last))
        yield Restored(batch.select(range(last - 1)), times, alone)


def _occurrences(codes: Ints) -> Ints:
    """Returns how many equal numbers precede each one."""
    order = np.argsort(codes, kind="stable")
    found = np.empty(len(codes), np.int64)
    found[order] = ranks_of(codes[order])
    return found
