"""Partial results of all keys, for keys and aggregates of any type.

They are a log of merged rows in Arrow, with the index of each key's latest row. A bundle is merged,
joined with the current rows of its keys, and appended; the log is rewritten when most of it is
outdated. So the cost of a bundle depends on its keys and not on the number of all keys, and large
bundles over many keys cost a few passes over columns.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import numpy as np
import pyarrow as pa

from firesteel.operator import ColumnMemory
from taskexecutor.executor.column_memory import IN_MEMORY
from taskexecutor.executor.columnar.grouping.columns import as_array, as_table
from taskexecutor.executor.columnar.grouping.grouping import Groups, Ints
from taskexecutor.executor.columnar.grouping.key_index import KeyIndex
from taskexecutor.executor.columnar.grouping.key_times import KeyTimes, instants
from taskexecutor.executor.columnar.grouping.merging import merge_column, merge_partials
from taskexecutor.executor.columnar.grouping.row_log import RowLog, chosen, taken
from taskexecutor.executor.numbers import as_numpy

# minimum number of pieces of the log: reading rows from a few pieces is as fast as from one
_PIECES = 16
LOG_ROWS = 262_144  # allowed number of outdated rows in the log, if greater than the number of keys


class KeyedPartials:
    """One merged partial row per key. With `time_column`, a key column with timestamps, keys expire
    when `expire` passes their time; they must not be added again afterwards.
    """

    def __init__(
        self,
        key_columns: tuple[str, ...],
        merges: Mapping[str, str],
        memory: ColumnMemory = IN_MEMORY,
        *,
        time_column: str = "",
    ) -> None:
        self._time_column = time_column
        self._times = KeyTimes(memory) if time_column else None
        self._key_columns = key_columns
        self._merges = merges
        self._names = [*key_columns, *merges]
        self._memory = memory
        self._log = RowLog(_PIECES, memory)
        self._log_rows = 0
        self._places = np.empty(0, np.int64)  # row in the log, by key number
        self._index = KeyIndex(memory)

    @property
    def keys(self) -> int:
        return self._index.count - (0 if self._times is None else self._times.expired)

    @property
    def row_bytes(self) -> int:
        return self._log.row_bytes

    def add(self, table: pa.Table) -> pa.RecordBatch:
        """Merges partial rows and returns the new rows of the keys that they change."""
        bundle = merge_partials(table, self._key_columns, self._merges)
        known = self._index.count
        numbers = self._index.numbers([bundle.column(key) for key in self._key_columns])
        old = np.flatnonzero(numbers < known)
        if len(old):
            bundle = self._joined(bundle, old, self._read(self._places[numbers[old]]))
        if self._index.count > len(self._places):
            self._places = self._memory.grown(self._places, self._index.count)
        if self._times is not None:
            new = np.flatnonzero(numbers >= known)
            times = bundle.column(self._time_column).take(pa.array(new))
            self._times.set(numbers[new], instants(times))
        self._places[numbers] = np.arange(self._log_rows, self._log_rows + bundle.num_rows)
        self._log.add(bundle)
        self._log_rows += bundle.num_rows
        if self._log_rows > 2 * self._index.count + LOG_ROWS:
            self._rewrite()
        return bundle

    def _rewrite(self) -> None:
        """Rewrites the log without outdated rows, piece by piece."""
        pieces, self._log = self._log.pieces, RowLog(_PIECES, self._memory)
        numbers = self._memory.full(self._log_rows, -1, np.int64)  # key number, by row in the log
        for start in range(0, self._index.count, LOG_ROWS):
            end = min(start + LOG_ROWS, self._index.count)
            numbers[self._places[start:end]] = np.arange(start, end)
        self._log_rows, start = 0, 0
        for piece in pieces:
            of_piece = numbers[start : start + piece.num_rows]
            latest = np.flatnonzero(of_piece >= 0)
            self._places[of_piece[latest]] = np.arange(self._log_rows, self._log_rows + len(latest))
            self._log.add(piece.take(pa.array(latest)))
            self._log_rows += len(latest)
            start += piece.num_rows

    def expire(self, until_us: int) -> Ints:
        """Returns the numbers of the keys that expire by this time, for `parts_of`."""
        assert self._times is not None
        return self._times.expire(until_us)

    @property
    def wasteful(self) -> bool:
        """Whether it should be replaced by `without_expired`."""
        return self._times is not None and self._times.wasteful

    def without_expired(self) -> KeyedPartials:
        """Returns the same rows without the memory of expired keys."""
        live = KeyedPartials(
            self._key_columns, self._merges, self._memory, time_column=self._time_column
        )
        for rows in self.parts(LOG_ROWS):
            live.add(as_table([rows]))
        return live

    def rows(self) -> pa.RecordBatch:
        """Returns the rows of all keys."""
        return self._read(self._live_places())

    def parts(self, most: int) -> Iterator[pa.RecordBatch]:
        """Yields the rows of all keys, at most `most` at a time."""
        places = self._live_places()
        for start in range(0, len(places), most):
            yield self._read(places[start : start + most])

    def parts_of(self, numbers: Ints, most: int) -> Iterator[pa.RecordBatch]:
        """Yields the rows of these keys, at most `most` at a time."""
        for start in range(0, len(numbers), most):
            yield self._read(self._places[numbers[start : start + most]])

    def _live_places(self) -> Ints:
        places: Ints = self._places[: self._index.count]
        return places if self._times is None else places[self._times.live()]

    def frozen(self) -> Callable[[], list[pa.RecordBatch]]:
        """Returns a function that makes the current rows, in any thread."""
        pieces, memory = self._log.pieces, self._memory
        live = self._live_places()
        places = memory.empty(len(live), np.int64)
        places[:] = live
        return lambda: chosen(pieces, places, memory)

    def _read(self, places: Ints) -> pa.RecordBatch:
        return taken(self._log.pieces, places)

    def _joined(self, bundle: pa.RecordBatch, changed: Ints, old: pa.RecordBatch) -> pa.RecordBatch:
        """Merges `old` into the bundle. `old` holds the current rows of the keys of the bundle's
        rows `changed`.
        """
        columns: dict[str, pa.Array] | None = None
        result = [bundle.column(key) for key in self._key_columns]
        groups = Groups(np.concatenate([np.arange(bundle.num_rows), changed]), bundle.num_rows)
        for name, how in self._merges.items():
            new = bundle.column(name)
            added = _added(new, changed, old.column(name)) if how == "sum" else None
            if added is None:
                if columns is None:
                    both = pa.Table.from_batches([bundle, old.select(bundle.schema.names)])
                    columns = {each: as_array(both.column(each)) for each in self._merges}
                added = merge_column(how, columns[name], groups, columns)
            result.append(added)
        return pa.RecordBatch.from_arrays(result, schema=bundle.schema)


def _added(new: pa.Array, changed: Ints, old: pa.Array) -> pa.Array | None:
    """Adds sums without nulls, the frequent case, row by row. Returns None for other columns, and
    for integers that might overflow.
    """
    if (
        new.null_count
        or old.null_count
        or not (pa.types.is_int64(new.type) or pa.types.is_float64(new.type))
    ):
        return None
    sums = np.array(as_numpy(new))
    olds = as_numpy(old)
    if pa.types.is_int64(new.type) and not (_small(sums) and _small(olds)):
        return None
    if len(changed) == len(sums):  # all rows, in order
        sums += olds
    else:
        sums[changed] += olds
    return pa.array(sums)


def _small(sums: Ints) -> bool:
    """Returns whether the sum of any two values fits into BIGINT. (`abs(INT64_MIN)` overflows.)"""
    return bool(sums.min() >= -(2**62) and sums.max() < 2**62)
