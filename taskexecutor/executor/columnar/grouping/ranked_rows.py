"""The first rows of each key, in columns.

They are a log of rows in which the rows of a key are adjacent and in order. A bundle is ranked
together with the current rows of its keys; a key whose rows change is appended to the log again.
The log is rewritten when most of it is outdated.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from firesteel.column_names import column_index
from firesteel.operator import ColumnMemory
from taskexecutor.executor.columnar.grouping.columns import as_table
from taskexecutor.executor.columnar.grouping.division import parts_of
from taskexecutor.executor.columnar.grouping.grouping import Ints, group
from taskexecutor.executor.columnar.grouping.key_index import KeyIndex
from taskexecutor.executor.columnar.grouping.ordering import ranks_of, sorted_rows
from taskexecutor.executor.columnar.grouping.row_log import RowLog, pieces_of, taken

# minimum number of pieces of the log: reading rows from a few pieces is as fast as from one
_PIECES = 16
# allowed number of outdated rows in the log, if greater than the number of valid rows
LOG_ROWS = 65_536
_KEYS = 65_536  # keys rewritten at a time, if rows are paged


Flags = np.ndarray[Any, np.dtype[np.bool_]]


class Ranked(NamedTuple):
    rows: pa.RecordBatch
    ranks: Ints  # rank of each row within its key, from 0 on


class Changes(NamedTuple):
    gone: Ranked
    come: Ranked


class RankedRows:
    """At most `n` rows per key, ordered by the columns `by`, each ascending or descending. Equal
    rows are ordered by arrival: earliest first, or latest first if `latest_first`. With `ranked`, a
    row whose rank changes is deleted and inserted.
    """

    def __init__(
        self,
        key_columns: Sequence[str],
        n: int,
        by: Sequence[tuple[str, bool]],
        *,
        ranked: bool,
        latest_first: bool,
        memory: ColumnMemory,
    ) -> None:
        self.key_columns = key_columns
        self._n = n
        self._by = by
        self._ranked = ranked
        self._latest_first = latest_first
        self.memory = memory
        self._log = RowLog(_PIECES, memory)
        self._log_rows = self._valid_rows = 0
        self._index = KeyIndex(memory)
        # By key number: the range of the key's rows in the log.
        self._starts = np.empty(0, np.int64)
        self._counts = np.zeros(0, np.int64)

    @property
    def rows(self) -> int:
        return self._valid_rows

    def parts_of(self, batches: Sequence[pa.RecordBatch]) -> int:
        """Returns the number of parts in which to add the rows, so that each part fits in memory
        with the current rows of its keys.
        """
        if self.memory.piece_bytes is None:
            return 1
        size_bytes = sum(batch.nbytes for batch in batches)
        known_bytes = self._log.row_bytes * self._valid_rows
        if parts_of(size_bytes + known_bytes, self.memory) > 1:
            numbers = [self._keys(batch)[1] for batch in batches]
            touched = sum(int(self._counts[of_batch].sum()) for of_batch in numbers)
            known_bytes = self._log.row_bytes * min(touched, self._valid_rows)
        return parts_of(size_bytes + known_bytes, self.memory)

    def add(self, batch: pa.RecordBatch) -> Changes:
        """Adds rows of any keys, in the order of their arrival."""
        codes, numbers = self._keys(batch)
        counts = self._counts[numbers]
        places = ranges(self._starts[numbers], counts)
        known = len(places)
        both = batch
        if known:
            both = pa.concat_batches([taken(self._log.pieces, places), batch])
        of_key = np.concatenate((np.repeat(np.arange(len(numbers)), counts), codes))
        before = ranges(np.zeros(len(counts), np.int64), counts)
        order = self._ordered(both, of_key, known)
        ranks = ranks_of(of_key[order])
        first = ranks < self._n
        order, ranks = order[first], ranks[first]
        stays = order < known
        if self._ranked:
            stays[stays] = before[order[stays]] == ranks[stays]
        goes = np.ones(known, np.bool_)
        goes[order[stays]] = False
        gone, come = np.flatnonzero(goes), np.flatnonzero(~stays)
        changed = np.zeros(len(numbers), np.bool_)
        changed[of_key[order[come]]] = True
        written = order[changed[of_key[order]]]
        self._write(
            both.take(pa.array(written)),
            numbers[changed],
            np.bincount(of_key[written], minlength=len(numbers))[changed],
        )
        return Changes(
            Ranked(both.take(pa.array(gone)), before[gone]),
            Ranked(both.take(pa.array(order[come])), ranks[come]),
        )

    def restore(self, table: pa.Table) -> None:
        """Restores the rows of `frozen` into an empty instance."""
        for rows in pieces_of(table, self.memory):
            codes, numbers = self._keys(rows)
            counts = self._counts[numbers]
            if counts.any():  # earlier pieces have the first rows of these keys
                first = taken(self._log.pieces, ranges(self._starts[numbers], counts))
                rows = pa.concat_batches([first, rows])
                codes = np.concatenate((np.repeat(np.arange(len(numbers)), counts), codes))
            order = np.argsort(codes, kind="stable")
            counts = np.bincount(codes, minlength=len(numbers))
            self._write(rows.take(pa.array(order)), numbers, counts)

    def frozen(self) -> Callable[[], pa.Table | None]:
        """Returns a function that makes the current rows of all keys, in any thread; the rows of a
        key are in order.
        """
        known = self._index.count
        pieces, memory = self._log.pieces, self.memory
        starts, counts = self._starts[:known].copy(), self._counts[:known].copy()
        parts = [some for some in self._some_keys(self._valid_rows) if counts[some].any()]

        def make() -> pa.Table | None:
            rows = (taken(pieces, ranges(starts[some], counts[some])) for some in parts)
            return as_table([memory.kept(part) for part in rows]) if parts else None

        return make

    def parts(self, most_rows: int) -> Iterator[Ranked]:
        """Yields all rows, at most `most_rows` at a time, except for keys with more rows."""
        pieces = self._log.pieces
        for some in self._some_keys(most_rows):
            counts = self._counts[some]
            if counts.any():
                rows = taken(pieces, ranges(self._starts[some], counts))
                yield Ranked(rows, ranges(np.zeros(len(counts), np.int64), counts))

    def _keys(self, batch: pa.RecordBatch) -> tuple[Ints, Ints]:
        """Returns the code of each row's key, and the key numbers by code."""
        columns = [batch.column(column_index(batch.schema, name)) for name in self.key_columns]
        groups = group(columns)
        first = pa.array(groups.first_rows())
        numbers = self._index.numbers([column.take(first) for column in columns])
        if self._index.count > (known := len(self._starts)):
            self._starts = self.memory.grown(self._starts, self._index.count)
            self._counts = self.memory.grown(self._counts, self._index.count)
            self._starts[known:] = self._counts[known:] = 0
        return groups.codes, numbers

    def _ordered(self, rows: pa.RecordBatch, of_key: Ints, known: int) -> Ints:
        """Orders rows by key, and then by rank. The first `known` rows are already in order; the
        others arrived later, in their order.
        """
        by = [(rows.column(column_index(rows.schema, name)), up) for name, up in self._by]
        if self._latest_first:
            arrived = np.arange(rows.num_rows)
            arrived[known:] *= -1
            by.append((pa.array(arrived), True))
        return sorted_rows([(pa.array(of_key), True), *by])

    def _write(self, rows: pa.RecordBatch, numbers: Ints, counts: Ints) -> None:
        """Appends the rows of these keys, key by key."""
        self._valid_rows += int(counts.sum() - self._counts[numbers].sum())
        self._starts[numbers] = self._log_rows + np.cumsum(counts) - counts
        self._counts[numbers] = counts
        if not rows.num_rows:
            return
        self._log.add(rows)
        self._log_rows += rows.num_rows
        if self._log_rows > 2 * self._valid_rows + LOG_ROWS:
            self._rewrite()

    def _rewrite(self) -> None:
        """Rewrites the log without outdated rows."""
        keys = self._index.count
        starts, counts, pieces = self._starts[:keys], self._counts[:keys], self._log.pieces
        log = RowLog(_PIECES, self.memory)
        for some in self._some_keys(self._valid_rows):
            log.add(taken(pieces, ranges(starts[some], counts[some])))
        self._log, self._log_rows = log, self._valid_rows
        np.cumsum(counts, out=starts)
        starts -= counts

    def _some_keys(self, most_rows: int) -> Iterator[slice]:
        """Yields ranges of key numbers with at most `most_rows` rows, or fewer if rows are paged; a
        range has at least one key.
        """
        keys, begin = self._index.count, 0
        if self.memory.piece_bytes is not None:
            most_rows = min(most_rows, self.memory.piece_bytes // self._log.row_bytes)
        if most_rows >= self._valid_rows:
            yield slice(0, keys)
            return
        while begin < keys:
            rows = np.cumsum(self._counts[begin : min(begin + _KEYS, keys)])
            end = begin + max(1, int(np.searchsorted(rows, most_rows, "right")))
            yield slice(begin, end)
            begin = end


def ranges(starts: Ints, counts: Ints) -> Ints:
    """Returns `counts` consecutive numbers from each start on."""
    ends = np.cumsum(counts)
    total = int(ends[-1]) if len(ends) else 0
    return np.arange(total) + np.repeat(starts - ends + counts, counts)
