"""The result that each key has had last, so that it can go when another one comes."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pyarrow as pa

from firesteel.column_names import column_index
from firesteel.operator import ColumnMemory
from taskexecutor.executor.aggregation.grouping import group
from taskexecutor.executor.aggregation.key_index import KeyIndex
from taskexecutor.executor.aggregation.row_log import RowLog, taken

_PIECES = 16
_OUTDATED_ROWS = 262_144  # the log may have so many, or as many as there are keys


class Changes(NamedTuple):
    gone: pa.RecordBatch
    come: pa.RecordBatch


class LastResults:
    """A log of results, with the place of each key's latest one."""

    def __init__(self, key_columns: tuple[str, ...], memory: ColumnMemory) -> None:
        self._key_columns = key_columns
        self._memory = memory
        self._index = KeyIndex(memory)
        self._log = RowLog(_PIECES, memory)
        self._log_rows = 0
        self._places = np.empty(0, np.int64)  # in the log, by the number of the key; or -1

    def replaced(self, keys: pa.RecordBatch, results: pa.RecordBatch) -> Changes:
        """`keys` have changed, and `results` are of those of them that have one now. What is as
        before neither goes nor comes.
        """
        asked = self._numbers(keys)
        having = self._numbers(results)
        before = self._places[asked]
        known = before >= 0
        old = taken(self._log.pieces, before[known]) if known.any() else results.slice(0, 0)
        stays = _equal(old, results)
        self._places[asked] = -1
        self._places[having] = np.arange(self._log_rows, self._log_rows + results.num_rows)
        self._log.add(results)
        self._log_rows += results.num_rows
        if self._log_rows > 2 * self._index.count + _OUTDATED_ROWS:
            self._rewrite()
        return Changes(
            old.filter(pa.array(~stays[: old.num_rows])),
            results.filter(pa.array(~stays[old.num_rows :])),
        )

    def _numbers(self, rows: pa.RecordBatch) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
        columns = [rows.column(column_index(rows.schema, name)) for name in self._key_columns]
        numbers = self._index.numbers(columns)
        if self._index.count > len(self._places):
            room = max(self._index.count, 2 * len(self._places)) - len(self._places)
            self._places = np.concatenate((self._places, np.full(room, -1)))
        return numbers

    def _rewrite(self) -> None:
        """Without the rows that are outdated."""
        valid = np.flatnonzero(self._places >= 0)
        rows = taken(self._log.pieces, self._places[valid])
        self._log, self._log_rows = RowLog(_PIECES, self._memory), len(valid)
        self._log.add(rows)
        self._places[valid] = np.arange(len(valid))


def _equal(old: pa.RecordBatch, new: pa.RecordBatch) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """Of the old rows and then of the new ones: whether the others have an equal one."""
    both = pa.concat_batches([old, new])
    if not old.num_rows or not new.num_rows:
        return np.zeros(both.num_rows, np.bool_)
    groups = group(both.columns)
    counts = np.bincount(groups.codes, minlength=groups.count)
    pairs: np.ndarray[tuple[int], np.dtype[np.bool_]] = counts[groups.codes] == 2
    return pairs
