"""The versions of each key. A version is valid from its time on, until the next version."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from firesteel.operator import ColumnMemory
from taskexecutor.executor.columnar.grouping.columns import as_table, numbers_in
from taskexecutor.executor.columnar.grouping.grouping import Ints
from taskexecutor.executor.columnar.grouping.row_log import RowLog, marked, pieces_of, taken
from taskexecutor.executor.numbers import as_numpy
from taskexecutor.executor.operators.joins.joined_columns import Flags
from taskexecutor.executor.operators.joins.sorted_runs import (
    Run,
    latest,
    merged,
    superseded,
    with_run,
)

_PIECES = 16  # minimum number of pieces of the log
# The last columns of a snapshot.
_TIME, _DELETION = "__time", "__deletion"


class Versions:
    """The versions of all keys. A version may be a deletion: no version is valid after it."""

    def __init__(self, memory: ColumnMemory) -> None:
        """`memory` holds the rows; the index is always in memory."""
        self._memory = memory
        self._log = RowLog(_PIECES, memory)
        self._runs: list[Run] = []
        self._deletions: Flags = np.zeros(0, np.bool_)  # by row number
        self.count = 0

    def add(self, rows: pa.RecordBatch, numbers: Ints, times: Ints, deletions: Flags) -> None:
        """Adds rows with the numbers of their keys. All rows ever added have the same columns."""
        if not rows.num_rows:
            return
        end = self.count + rows.num_rows
        if end > len(self._deletions):
            more = np.zeros(max(end - len(self._deletions), len(self._deletions)), np.bool_)
            self._deletions = np.concatenate((self._deletions, more))
        self._deletions[self.count : end] = deletions
        rows = rows.append_column(_TIME, pa.array(times))
        self._log.add(rows.append_column(_DELETION, pa.array(deletions)))
        self._runs = with_run(self._runs, Run(numbers, times, np.arange(self.count, end)))
        self.count = end

    def valid(self, numbers: Ints, times: Ints, tolerance_us: int | None) -> Ints:
        """Returns the row number of the version of each key that is valid at a time, and has been
        valid for at most the tolerance (None: any time); -1 if there is none.
        """
        places, since = latest(self._runs, numbers, times)
        found = np.flatnonzero(places >= 0)
        there = ~self._deletions[places[found]]
        if tolerance_us is not None:
            there &= times[found] - since[found] <= tolerance_us
        places[found[~there]] = -1
        return places

    def take(self, places: Ints) -> pa.RecordBatch | None:
        """Returns rows, with nulls for row numbers of -1; None if all are -1."""
        there = places >= 0
        if not there.any():
            return None
        rows = taken(self._log.pieces, places[there])
        rows = rows.select(range(rows.num_columns - 2))
        if there.all():
            return rows
        return rows.take(pa.array(np.cumsum(there) - 1, mask=~there))

    def frozen(self, time: int, horizon: int) -> Callable[[], pa.Table | None]:
        """Returns a function that makes the current versions in any thread: those that may be valid
        after `time`, without those before `horizon`. They include deletions: otherwise a late
        version before a deletion would be valid.
        """
        pieces, runs = self._log.pieces, tuple(self._runs)

        def make() -> pa.Table | None:
            if not pieces:
                return None
            times = np.concatenate([numbers_in(piece.column(_TIME)) for piece in pieces])
            kept = times >= horizon
            kept[superseded(merged(runs), time)] = False
            rows = marked(pieces, kept, self._memory)
            return as_table(rows) if rows else None

        return make


class Restored(NamedTuple):
    rows: pa.RecordBatch
    times: Ints
    deletions: Flags


def restored(table: pa.Table, memory: ColumnMemory) -> Iterator[Restored]:
    """Yields the rows of `Versions.frozen`, in pieces of limited size."""
    for batch in pieces_of(table, memory):
        last = batch.num_columns - 1
        yield Restored(
            batch.select(range(last - 1)),
            as_numpy(batch.column(last - 1)),
            as_numpy(batch.column(last)),
        )
