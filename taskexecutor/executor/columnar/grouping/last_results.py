"""Remembers the last result of each key, which is retracted when a new one is emitted."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pyarrow as pa

from firesteel.column_names import column_index
from firesteel.operator import ColumnMemory
from taskexecutor.executor.columnar.grouping.grouping import group
from taskexecutor.executor.columnar.grouping.key_index import KeyIndex
from taskexecutor.executor.columnar.grouping.row_log import RowLog, taken

_PIECES = 16
# allowed number of outdated rows in the log, if greater than the number of keys
_OUTDATED_ROWS = 262_144


class Changes(NamedTuple):
    gone: pa.RecordBatch
    come: pa.RecordBatch


class LastResults:
    """A log of results, with the row of each key's latest result."""

    def __init__(self, key_columns: tuple[str, ...], memory: ColumnMemory) -> None:
        self._key_columns = key_columns
        self._memory = memory
        self._index = KeyIndex(memory)
        self._log = RowLog(_PIECES, memory)
        self._log_rows = 0
        self._places = np.empty(0, np.int64)  # row in the log, by key number; -1 without a result

    def replaced(self, keys: pa.RecordBatch, results: pa.RecordBatch) -> Changes:
        """Replaces the results of `keys`, which have changed, by `results`, which lack the keys
        that have none now. Returns the results to retract and to insert, without unchanged results.
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
        """Rewrites the log without outdated rows."""
        valid = np.flatnonzero(self._places >= 0)
        rows = taken(self._log.pieces, self._places[valid])
        self._log, self._log_rows = RowLog(_PIECES, self._memory), len(valid)
        self._log.add(rows)
        self._places[valid] = np.arange(len(valid))


def _equal(old: pa.RecordBatch, new: pa.RecordBatch) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """Returns whether each row has an equal row on the other side, for the old rows and then the
    new ones.
    """
    both = pa.concat_batches([old, new])
    if not old.num_rows or not new.num_rows:
        return np.zeros(both.num_rows, np.bool_)
    groups = group(both.columns)
    counts = np.bincount(groups.codes, minlength=groups.count)
    pairs: np.ndarray[tuple[int], np.dtype[np.bool_]] = counts[groups.codes] == 2
    return pairs
