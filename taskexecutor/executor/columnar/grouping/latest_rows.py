"""Keeps the latest row of each key until it is taken."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from taskexecutor.executor.columnar.grouping.columns import as_table
from taskexecutor.executor.columnar.grouping.grouping import Ints, group

MOST_OUTDATED = 262_144  # rows, if greater than the number of the latest rows


class LatestRows:
    """Each batch has at most one row per key."""

    def __init__(self, key_columns: Sequence[str]) -> None:
        self._key_columns = key_columns
        self._batches: list[pa.RecordBatch] = []
        self._rows = self._latest = 0

    def add(self, batch: pa.RecordBatch) -> None:
        if not batch.num_rows:
            return
        self._batches.append(batch)
        self._rows += batch.num_rows
        if self._rows > 2 * self._latest + MOST_OUTDATED:
            self._merge()

    def take(self) -> pa.RecordBatch | None:
        """Returns the rows, and forgets them; None if there are none."""
        if not self._batches:
            return None
        self._merge()
        (rows,), self._batches, self._rows, self._latest = self._batches, [], 0, 0
        return rows

    def _merge(self) -> None:
        if len(self._batches) > 1:
            rows = as_table(self._batches).combine_chunks().to_batches()[0]
            self._batches = [rows.take(pa.array(self._last(rows)))]
        self._rows = self._latest = self._batches[0].num_rows

    def _last(self, rows: pa.RecordBatch) -> Ints:
        """Returns the last row of each key."""
        if not self._key_columns:
            return np.array([rows.num_rows - 1])
        backwards = pa.array(np.arange(rows.num_rows - 1, -1, -1))
        groups = group([rows.column(key).take(backwards) for key in self._key_columns])
        last: Ints = rows.num_rows - 1 - groups.first_rows()
        return last
