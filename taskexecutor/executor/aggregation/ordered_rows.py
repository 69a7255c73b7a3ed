"""All rows of each key in their order, which come and go, and the rows around each of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from firesteel.operator import ColumnMemory
from taskexecutor.executor.aggregation.grouping import Ints, group
from taskexecutor.executor.aggregation.ordering import ranks_of
from taskexecutor.executor.aggregation.ranked_rows import Flags, Ranked, RankedRows, ranges
from taskexecutor.executor.aggregation.row_log import taken

_ALL = 2**62


class Missing(Exception):
    """A row goes that is not there."""

    def __init__(self, row: int) -> None:
        super().__init__(f"row {row}")
        self.row = row


class Ordered(NamedTuple):
    """Rows of some keys, one key after the other, those of a key in their order."""

    rows: pa.RecordBatch
    first: Ints  # of each row: the first row of its key
    last: Ints


class Changed(NamedTuple):
    """The keys of a bundle before it and after it."""

    before: Ordered
    after: Ordered
    gone: Flags  # of the rows before
    come: Flags  # of the rows after
    # The places of the rows that have stayed.
    stayed_before: Ints
    stayed_after: Ints


class OrderedRows(RankedRows):
    """In the order of the columns `by`, each ascending or not; of rows that are equal there, the
    earliest comes first, or the latest (`latest_first`).
    """

    def __init__(
        self,
        key_columns: Sequence[str],
        by: Sequence[tuple[str, bool]],
        memory: ColumnMemory,
        *,
        latest_first: bool = False,
    ) -> None:
        super().__init__(
            key_columns, _ALL, by, ranked=False, latest_first=latest_first, memory=memory
        )

    def change(self, batch: pa.RecordBatch, goes: Flags) -> Changed:
        """Rows of any keys that come or go, in the order of their arrival. Raises Missing."""
        codes, numbers = self._keys(batch)
        counts = self._counts[numbers]
        places = ranges(self._starts[numbers], counts)
        known = len(places)
        both = pa.concat_batches([taken(self._log.pieces, places), batch]) if known else batch
        of_key = np.concatenate((np.repeat(np.arange(len(numbers)), counts), codes))
        there = np.ones(len(of_key), np.bool_)
        if goes.any():
            going = np.flatnonzero(goes) + known
            there[going] = there[_equal(both, going, known)] = False
        left = np.flatnonzero(there)
        order = left[
            self._ordered(both.take(pa.array(left)), of_key[left], int(there[:known].sum()))
        ]
        rows, of_row = both.take(pa.array(order)), of_key[order]
        now = np.bincount(of_row, minlength=len(numbers))
        self._write(rows, numbers, now)
        stayed = order < known
        old = both.slice(0, known)
        return Changed(
            Ordered(old, *_bounds(counts)),
            Ordered(rows, *_bounds(now)),
            ~there[:known],
            ~stayed,
            order[stayed],
            np.flatnonzero(stayed),
        )


def in_order(kept: Ranked) -> Ordered:
    """All rows of some keys."""
    first = np.flatnonzero(kept.ranks == 0)
    return Ordered(kept.rows, *_bounds(np.diff(first, append=len(kept.ranks))))


def _bounds(counts: Ints) -> tuple[Ints, Ints]:
    """The first and last row of its key, for each row."""
    ends = np.cumsum(counts)
    return np.repeat(ends - counts, counts), np.repeat(ends - 1, counts)


def _equal(rows: pa.RecordBatch, going: Ints, known: int) -> Ints:
    """For each row that goes, another one that is equal to it in all columns: the latest."""
    codes = group(rows.columns).codes
    comes = np.ones(rows.num_rows, np.bool_)
    comes[going] = False
    there = np.flatnonzero(comes)[::-1]
    wanted, found = _numbered(codes[going], rows.num_rows), _numbered(codes[there], rows.num_rows)
    order = np.argsort(found)
    at = np.searchsorted(found, wanted, sorter=order)
    at = order[np.minimum(at, len(order) - 1)] if len(order) else np.zeros(len(going), np.int64)
    missing = found[at] != wanted if len(order) else np.ones(len(going), np.bool_)
    if missing.any():
        raise Missing(int(going[np.argmax(missing)]) - known)
    return there[at]


def _numbered(codes: Ints, most: int) -> Ints:
    """A number for each row that is equal for the same occurrence of the same code."""
    order = np.argsort(codes, kind="stable")
    found = np.empty(len(codes), np.int64)
    found[order] = codes[order] * most + ranks_of(codes[order])
    return found
