"""All rows of each key in their order, with insertions, deletions and access to neighbouring
rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from firesteel.operator import ColumnMemory
from taskexecutor.executor.columnar.grouping.grouping import Ints, group
from taskexecutor.executor.columnar.grouping.ordering import ranks_of
from taskexecutor.executor.columnar.grouping.ranked_rows import Flags, Ranked, RankedRows, ranges
from taskexecutor.executor.columnar.grouping.row_log import taken

_ALL = 2**62


class Missing(Exception):
    """A deleted row does not exist."""

    def __init__(self, row: int) -> None:
        super().__init__(f"row {row}")
        self.row = row


class Ordered(NamedTuple):
    """Rows of some keys, key by key; the rows of a key are in their order."""

    rows: pa.RecordBatch
    first: Ints  # first row of the key, for each row
    last: Ints


class Changed(NamedTuple):
    """The keys of a bundle before and after it."""

    before: Ordered
    after: Ordered
    gone: Flags  # flags of `before`
    come: Flags  # flags of `after`
    # Row numbers of the unchanged rows.
    stayed_before: Ints
    stayed_after: Ints


class OrderedRows(RankedRows):
    """Rows ordered by the columns `by`, each ascending or descending. Equal rows are ordered by
    arrival: earliest first, or latest first if `latest_first`.
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
        """Inserts and deletes rows of any keys, in the order of their arrival. Raises Missing."""
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
    """Returns all rows of some keys."""
    first = np.flatnonzero(kept.ranks == 0)
    return Ordered(kept.rows, *_bounds(np.diff(first, append=len(kept.ranks))))


def _bounds(counts: Ints) -> tuple[Ints, Ints]:
    """Returns the first and last row of the key, for each row."""
    ends = np.cumsum(counts)
    return np.repeat(ends - counts, counts), np.repeat(ends - 1, counts)


def _equal(rows: pa.RecordBatch, going: Ints, known: int) -> Ints:
    """Returns for each deleted row the latest row that is equal in all columns."""
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
    """Returns a number for each row, equal for the same occurrence of the same code."""
    order = np.argsort(codes, kind="stable")
    found = np.empty(len(codes), np.int64)
    found[order] = codes[order] * most + ranks_of(codes[order])
    return found
