"""Rows that wait until event time reaches them."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from firesteel.operator import ColumnMemory
from taskexecutor.executor.columnar.grouping.columns import as_table
from taskexecutor.executor.columnar.grouping.grouping import Ints
from taskexecutor.executor.columnar.grouping.row_log import LARGEST_BYTES
from taskexecutor.executor.numbers import as_numpy

_MOST_ROWS = 65_536  # rows of a merged piece
_TIME = "__time"  # the last column of a snapshot


class TimedRows(NamedTuple):
    """Rows in the order of their times."""

    rows: pa.RecordBatch
    times: Ints


class WaitingRows:
    """Pieces sorted by time: due rows are at the start of each piece."""

    def __init__(self, memory: ColumnMemory) -> None:
        self._memory = memory
        self._most_bytes = min(memory.piece_bytes or LARGEST_BYTES, LARGEST_BYTES)
        self._pieces: list[TimedRows] = []
        self.count = 0

    def add(self, rows: pa.RecordBatch, times: Ints) -> None:
        if not rows.num_rows:
            return
        self.count += rows.num_rows
        pieces = [TimedRows(rows, times)]
        size_bytes, count = rows.nbytes, rows.num_rows
        while self._pieces and self._pieces[-1].rows.num_rows <= 2 * count:
            last = self._pieces[-1].rows
            size_bytes, count = size_bytes + last.nbytes, count + last.num_rows
            if size_bytes > self._most_bytes or count > _MOST_ROWS:
                break
            pieces.insert(0, self._pieces.pop())
        if len(pieces) > 1:
            rows = pa.concat_batches([piece.rows for piece in pieces])
            times = np.concatenate([piece.times for piece in pieces])
        if (times[1:] < times[:-1]).any():
            order = np.argsort(times, kind="stable")
            rows, times = rows.take(pa.array(order)), times[order]
        self._pieces.append(TimedRows(self._memory.kept(rows), times))

    def due(self, time: int) -> list[TimedRows]:
        """Removes and returns the rows up to this time."""
        due, waiting = [], []
        for piece in self._pieces:
            end = int(np.searchsorted(piece.times, time, "right"))
            if end:
                due.append(TimedRows(piece.rows.slice(0, end), piece.times[:end]))
            if end < len(piece.times):
                waiting.append(TimedRows(piece.rows.slice(end), piece.times[end:]))
        self._pieces = waiting
        self.count -= sum(len(piece.times) for piece in due)
        return due

    def frozen(self) -> Callable[[], pa.Table | None]:
        """Returns a function that makes the current rows, in any thread."""
        pieces = tuple(self._pieces)

        def make() -> pa.Table | None:
            if not pieces:
                return None
            return as_table([rows.append_column(_TIME, pa.array(times)) for rows, times in pieces])

        return make

    def restore(self, table: pa.Table) -> None:
        """Adds the rows of `frozen`."""
        for batch in table.to_batches():
            last = batch.num_columns - 1
            self.add(batch.select(range(last)), as_numpy(batch.column(last)))
