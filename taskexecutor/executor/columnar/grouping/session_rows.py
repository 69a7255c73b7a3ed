"""Sessions of all keys: merged partial rows with a start and an end.

They are a log of rows in Arrow. New rows are merged with the sessions of their keys only, and the
results are appended; the log is rewritten when most of it is outdated. So the cost depends on the
keys that change, apart from passes over arrays of integers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from firesteel.elements import MAX_TIMESTAMP_US
from firesteel.operator import ColumnMemory
from taskexecutor.executor.columnar.grouping.columns import as_array, as_table
from taskexecutor.executor.columnar.grouping.grouping import Ints, group, sessions
from taskexecutor.executor.columnar.grouping.key_index import KeyIndex
from taskexecutor.executor.columnar.grouping.key_times import instants
from taskexecutor.executor.columnar.grouping.merging import merge_partials
from taskexecutor.executor.columnar.grouping.row_log import RowLog, chosen, taken
from taskexecutor.executor.numbers import as_numpy

_PIECES = 16  # of the log that are kept unmerged
OUTDATED_ROWS = 65_536  # allowed in the log, if greater than the number of sessions
_SESSION = "_session"


class SessionRows:
    def __init__(
        self,
        key_columns: Sequence[str],
        start: str,
        end: str,
        merges: Mapping[str, str],
        memory: ColumnMemory,
    ) -> None:
        """`key_columns` include `start` and `end`, timestamps without nulls."""
        self._key_columns = key_columns
        self._keys = [name for name in key_columns if name not in (start, end)]
        self._start, self._end = start, end
        self._merges = merges
        self._memory = memory
        self._clear()

    def _clear(self) -> None:
        self._log = RowLog(_PIECES, self._memory)
        self._index = KeyIndex(self._memory)
        # By row of the log:
        self._number = np.empty(0, np.int64)  # of the key
        self._end_us = np.empty(0, np.int64)
        self._live = np.empty(0, np.bool_)
        self._log_rows = 0
        self.rows = 0  # live ones
        self._next_us = MAX_TIMESTAMP_US  # no session ends before

    @property
    def row_bytes(self) -> int:
        return self._log.row_bytes

    def add(self, batches: Sequence[pa.RecordBatch]) -> None:
        """Merges partial rows into the sessions."""
        table = as_table(batches).combine_chunks()
        numbers = self._numbers(table)
        touched = np.zeros(self._key_count, np.bool_)
        touched[numbers] = True
        count = self._log_rows
        old = np.flatnonzero(self._live[:count] & touched[self._number[:count]])
        if len(old):
            self._live[old] = False
            self.rows -= len(old)
            former = taken(self._log.pieces, old).select(table.schema.names)
            numbers = np.concatenate([numbers, self._number[old]])
            table = pa.concat_tables([table, as_table([former])]).combine_chunks()
        self._append(*self._merged(table, numbers))
        if self._log_rows - self.rows > max(OUTDATED_ROWS, self.rows):
            self._rewrite()

    def expired(self, until_us: int, most: int) -> Iterator[pa.RecordBatch]:
        """Yields the sessions that end by this time, at most `most` at a time, and removes them."""
        if until_us < self._next_us:
            return
        count = self._log_rows
        ends, live = self._end_us[:count], self._live[:count]
        found = np.flatnonzero(live & (ends <= until_us))
        for begin in range(0, len(found), most):
            yield self._read(found[begin : begin + most])
        self._live[found] = False
        self.rows -= len(found)
        self._next_us = int(ends[live].min()) if self.rows else MAX_TIMESTAMP_US
        if self._log_rows - self.rows > max(OUTDATED_ROWS, self.rows):
            self._rewrite()

    def parts(self, most: int) -> Iterator[pa.RecordBatch]:
        """Yields all sessions, at most `most` at a time."""
        live = np.flatnonzero(self._live[: self._log_rows])
        for begin in range(0, len(live), most):
            yield self._read(live[begin : begin + most])

    def frozen(self) -> Callable[[], list[pa.RecordBatch]]:
        """Returns a function that makes the current rows, in any thread."""
        pieces, memory = self._log.pieces, self._memory
        places = np.flatnonzero(self._live[: self._log_rows])
        return lambda: chosen(pieces, places, memory)

    def _read(self, places: Ints) -> pa.RecordBatch:
        return taken(self._log.pieces, places)

    @property
    def _key_count(self) -> int:
        return self._index.count if self._keys else 1

    def _numbers(self, table: pa.Table) -> Ints:
        """Returns the number of each row's key."""
        if not self._keys:
            return np.zeros(table.num_rows, np.int64)
        columns = [as_array(table.column(name)) for name in self._keys]
        groups = group(columns)
        first = pa.array(groups.first_rows())
        return self._index.numbers([column.take(first) for column in columns])[groups.codes]

    def _merged(self, table: pa.Table, numbers: Ints) -> tuple[pa.RecordBatch, Ints, Ints]:
        """Returns a row per session, with the number of its key and its end."""
        starts, ends = (instants(as_array(table.column(name))) for name in (self._start, self._end))
        # Keys are ranked: their numbers may be large.
        ranked, codes = np.unique(numbers, return_inverse=True)
        found = sessions(codes, starts, ends)
        numbered = table.append_column(_SESSION, pa.array(found.numbers))
        merges = {**dict.fromkeys(self._keys, "any"), **self._merges}
        merged = merge_partials(numbered, [_SESSION], merges)
        number = as_numpy(merged.column(_SESSION))
        key_of = np.empty(len(found.starts), np.int64)
        key_of[found.numbers] = ranked[codes]
        columns: dict[str, pa.Array] = {name: merged.column(name) for name in merges}
        columns |= {
            self._start: self._times(found.starts[number], table, self._start),
            self._end: self._times(found.ends[number], table, self._end),
        }
        names = [*self._key_columns, *self._merges]
        schema = pa.schema([table.schema.field(name) for name in names])
        rows = pa.RecordBatch.from_arrays([columns[name] for name in names], schema=schema)
        return rows, key_of[number], found.ends[number]

    @staticmethod
    def _times(values: Ints, table: pa.Table, name: str) -> pa.Array:
        kind = table.schema.field(name).type
        return pa.array(values).cast(pa.timestamp("us", kind.tz)).cast(kind)

    def _append(self, rows: pa.RecordBatch, numbers: Ints, ends_us: Ints) -> None:
        count = self._log_rows + rows.num_rows
        for name, values in (("_number", numbers), ("_end_us", ends_us), ("_live", True)):
            column: np.ndarray[Any, Any] = getattr(self, name)
            if count > len(column):
                column = self._memory.grown(column, count)
                setattr(self, name, column)
            column[self._log_rows : count] = values
        self._log.add(rows)
        self._log_rows = count
        self.rows += rows.num_rows
        self._next_us = min(self._next_us, int(ends_us.min()))

    def _rewrite(self) -> None:
        """Rewrites the log without outdated rows, and the index without keys that have none."""
        before, numbers = self._log.pieces, self._live[: self._log_rows]
        ends = self._end_us[: self._log_rows]
        self._clear()
        start = 0
        for piece in before:
            here = slice(start, start + piece.num_rows)
            start += piece.num_rows
            live = numbers[here]
            if live.any():
                rows = piece.filter(pa.array(live))
                self._append(rows, self._numbers(as_table([rows])), ends[here][live])
