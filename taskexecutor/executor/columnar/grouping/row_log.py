"""Stores rows in the order of arrival, in few pieces."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from firesteel.operator import ColumnMemory
from taskexecutor.executor.column_memory import IN_MEMORY
from taskexecutor.executor.columnar.grouping.grouping import Ints

# A string column in one piece is limited to 2 GiB.
LARGEST_BYTES = 2**30


class RowLog:
    """Merges batches as they arrive, each row only a few times: after the first `pieces` batches,
    the last piece is always the smallest. Pieces never change. No piece is much larger than the
    memory's maximum size.
    """

    def __init__(self, pieces: int = 0, memory: ColumnMemory = IN_MEMORY) -> None:
        """`pieces`: the number of batches that are kept unmerged."""
        self._pieces: list[pa.RecordBatch] = []
        self._sizes: list[int] = []  # in bytes; 0 if not computed
        self._left = pieces
        self._memory = memory
        self._paged = memory.piece_bytes is not None

    @property
    def size_bytes(self) -> int:
        """The size of all pieces; 0 if all state may be in memory."""
        return sum(self._sizes) if self._paged else 0

    @property
    def row_bytes(self) -> int:
        """The average size of a row; 1 if all state may be in memory."""
        rows = sum(piece.num_rows for piece in self._pieces)
        return max(1, self.size_bytes // rows) if rows else 1

    def add(self, batch: pa.RecordBatch, size_bytes: int | None = None) -> None:
        """Adds a batch. `size_bytes` is its approximate size, if known."""
        left = len(self._pieces) < self._left
        if size_bytes is None:
            size_bytes = batch.nbytes if self._paged or not left else 0
        if left:
            self._append(batch, size_bytes)
            return
        pieces = [batch]
        most = min(self._memory.piece_bytes or LARGEST_BYTES, LARGEST_BYTES)
        rows = batch.num_rows
        while self._pieces and self._pieces[-1].num_rows <= 2 * rows:
            more_bytes = self._sizes[-1] or self._pieces[-1].nbytes
            if size_bytes + more_bytes > most:
                break
            size_bytes += more_bytes
            pieces.insert(0, self._pieces.pop())
            rows += pieces[0].num_rows
            self._sizes.pop()
        self._append(_merged(pieces), size_bytes)

    def _append(self, batch: pa.RecordBatch, size_bytes: int) -> None:
        self._pieces.append(self._memory.kept(batch, size_bytes))
        self._sizes.append(size_bytes)

    @property
    def pieces(self) -> tuple[pa.RecordBatch, ...]:
        return tuple(self._pieces)


def pieces_of(table: pa.Table, memory: ColumnMemory) -> Iterator[pa.RecordBatch]:
    """Yields the rows of a table in few pieces, none much larger than the memory's maximum size
    unless one of the table's own batches is.
    """
    most = min(memory.piece_bytes or LARGEST_BYTES, LARGEST_BYTES)
    piece: list[pa.RecordBatch] = []
    size_bytes = 0
    for batch in table.to_batches():
        if piece and size_bytes + batch.nbytes > most:
            yield _merged(piece)
            piece, size_bytes = [], 0
        piece.append(batch)
        size_bytes += batch.nbytes
    if piece:
        yield _merged(piece)


def _merged(batches: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
    return batches[0] if len(batches) == 1 else pa.concat_batches(batches)


def chosen(
    pieces: Sequence[pa.RecordBatch], places: Ints, memory: ColumnMemory = IN_MEMORY
) -> list[pa.RecordBatch]:
    """Returns the rows at these distinct indices, in their order in the pieces."""
    wanted = memory.full(sum(piece.num_rows for piece in pieces), False, np.bool_)
    wanted[places] = True
    return marked(pieces, wanted, memory)


def marked(
    pieces: Sequence[pa.RecordBatch],
    wanted: np.ndarray[Any, np.dtype[np.bool_]],
    memory: ColumnMemory = IN_MEMORY,
) -> list[pa.RecordBatch]:
    """Returns the rows at whose indices into all pieces `wanted` is true."""
    found: list[pa.RecordBatch] = []
    begin = 0
    for piece in pieces:
        here = wanted[begin : begin + piece.num_rows]
        begin += piece.num_rows
        found.append(piece if here.all() else memory.kept(piece.filter(pa.array(here))))
    return [piece for piece in found if piece.num_rows]


def taken(pieces: Sequence[pa.RecordBatch], places: Ints) -> pa.RecordBatch:
    """Returns the rows at these indices into all pieces."""
    if len(pieces) == 1:
        return pieces[0].take(pa.array(places))
    order = np.argsort(places)
    places = places[order]
    starts = np.cumsum([0, *(piece.num_rows for piece in pieces)])
    cuts = np.searchsorted(places, starts).tolist()
    found = [
        piece.take(pa.array(places[begin:end] - start))
        for piece, start, begin, end in zip(pieces, starts[:-1], cuts[:-1], cuts[1:], strict=True)
        if begin < end
    ]
    back = np.empty(len(order), np.int64)
    back[order] = np.arange(len(order))
    return pa.concat_batches(found or [pieces[0].slice(0, 0)]).take(pa.array(back))
