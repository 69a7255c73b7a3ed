"""The first rows of each key, in columns.

They are a log of rows in which those of a key follow each other in their order. A bundle is ranked
together with the rows of the keys that it has; a key whose rows change is written anew at the end
of the log, which is rewritten when most of it is outdated.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from firesteel.column_names import column_index
from firesteel.operator import ColumnMemory
from taskexecutor.executor.aggregation.division import parts_of
from taskexecutor.executor.aggregation.grouping import Ints, group
from taskexecutor.executor.aggregation.key_index import KeyIndex
from taskexecutor.executor.aggregation.ordering import ranks_of, sorted_rows
from taskexecutor.executor.aggregation.row_log import RowLog, taken

_PIECES = 16  # of the log, at least: rows are taken from a few as fast as from one
LOG_ROWS = 65_536  # the log may have this many outdated rows, or as many as there are valid ones
_KEYS = 65_536  # whose rows are written anew at once, if they are not all in memory


Flags = np.ndarray[Any, np.dtype[np.bool_]]


class Ranked(NamedTuple):
    rows: pa.RecordBatch
    ranks: Ints  # from 0 on, of the rows among those of their keys


class Changes(NamedTuple):
    gone: Ranked
    come: Ranked


class RankedRows:
    """At most `n` rows per key, in the order of the columns `by`, each ascending or not. Of rows
    that are equal there, the earliest comes first, or the latest (`latest_first`). `ranked`: a row
    that gets another rank goes and comes.
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
        # By the number of the key: where its rows are in the log.
        self._starts = np.empty(0, np.int64)
        self._counts = np.zeros(0, np.int64)

    @property
    def rows(self) -> int:
        return self._valid_rows

    def parts_of(self, batches: Sequence[pa.RecordBatch]) -> int:
        """In how many parts rows are to be added: how many do not fit into memory together with
        those that their keys have.
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
        """Rows of any keys, in the order of their arrival."""
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

    def restore(self, rows: pa.RecordBatch) -> None:
        """Rows that `frozen` made. There are none yet."""
        codes, numbers = self._keys(rows)
        order = np.argsort(codes, kind="stable")
        self._write(rows.take(pa.array(order)), numbers, np.bincount(codes, minlength=len(numbers)))

    def frozen(self) -> Callable[[], pa.RecordBatch | None]:
        """Makes the rows of all keys as they are now, in any thread; those of a key in order."""
        known = self._index.count
        pieces = self._log.pieces
        starts, counts = self._starts[:known].copy(), self._counts[:known].copy()
        return lambda: taken(pieces, ranges(starts, counts)) if pieces else None

    def parts(self, most_rows: int) -> Iterator[Ranked]:
        """All rows, so many at a time, but for keys with more."""
        pieces = self._log.pieces
        for some in self._some_keys(most_rows):
            counts = self._counts[some]
            if counts.any():
                rows = taken(pieces, ranges(self._starts[some], counts))
                yield Ranked(rows, ranges(np.zeros(len(counts), np.int64), counts))

    def _keys(self, batch: pa.RecordBatch) -> tuple[Ints, Ints]:
        """The code of each row's key, and the numbers of the keys by their codes."""
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
        """By key, and then as rows are ranked. The first `known` rows are so already; the others
        are later, in the order of their arrival.
        """
        by = [(rows.column(column_index(rows.schema, name)), up) for name, up in self._by]
        if self._latest_first:
            arrived = np.arange(rows.num_rows)
            arrived[known:] *= -1
            by.append((pa.array(arrived), True))
        return sorted_rows([(pa.array(of_key), True), *by])

    def _write(self, rows: pa.RecordBatch, numbers: Ints, counts: Ints) -> None:
        """The rows of these keys, one key after the other."""
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
        """Without the rows that are outdated."""
        keys = self._index.count
        starts, counts, pieces = self._starts[:keys], self._counts[:keys], self._log.pieces
        log = RowLog(_PIECES, self.memory)
        for some in self._some_keys(self._valid_rows):
            log.add(taken(pieces, ranges(starts[some], counts[some])))
        self._log, self._log_rows = log, self._valid_rows
        np.cumsum(counts, out=starts)
        starts -= counts

    def _some_keys(self, most_rows: int) -> Iterator[slice]:
        """The numbers of all keys, in ranges with so many rows, or fewer if they are not all in
        memory; or of one key.
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
    """`counts` numbers from each start on."""
    ends = np.cumsum(counts)
    total = int(ends[-1]) if len(ends) else 0
    return np.arange(total) + np.repeat(starts - ends + counts, counts)
