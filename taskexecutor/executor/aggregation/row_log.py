"""Rows that are kept as they come, in few pieces."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from taskexecutor.executor.aggregation.grouping import Ints


class RowLog:
    """Batches that are put together as they come, each row a few times: of those that have been put
    together, the last piece is always the smallest. The pieces themselves never change.
    """

    def __init__(self, pieces: int = 0) -> None:
        """`pieces`: so many are left as they came."""
        self._pieces: list[pa.RecordBatch] = []
        self._left = pieces

    def add(self, batch: pa.RecordBatch) -> None:
        if len(self._pieces) < self._left:
            self._pieces.append(batch)
            return
        pieces = [batch]
        while self._pieces and self._pieces[-1].num_rows <= 2 * sum(p.num_rows for p in pieces):
            pieces.insert(0, self._pieces.pop())
        self._pieces.append(batch if len(pieces) == 1 else pa.concat_batches(pieces))

    @property
    def pieces(self) -> tuple[pa.RecordBatch, ...]:
        return tuple(self._pieces)


def chosen(pieces: Sequence[pa.RecordBatch], places: Ints) -> list[pa.RecordBatch]:
    """These rows, which are different ones, in the order in which they are in all pieces."""
    wanted = np.zeros(sum(piece.num_rows for piece in pieces), np.bool_)
    wanted[places] = True
    found: list[pa.RecordBatch] = []
    begin = 0
    for piece in pieces:
        here = wanted[begin : begin + piece.num_rows]
        begin += piece.num_rows
        found.append(piece if here.all() else piece.filter(pa.array(here)))
    return [piece for piece in found if piece.num_rows]


def taken(pieces: Sequence[pa.RecordBatch], places: Ints) -> pa.RecordBatch:
    """These rows, by their places in all pieces."""
    if len(pieces) == 1:
        return pieces[0].take(pa.array(places))
    order = np.argsort(places)
    places = places[order]
    starts = np.cumsum([0, *(piece.num_rows for piece in pieces)])
    cuts = np.searchsorted(places, starts).tolist()
    found = [
        piece.take(pa.array(places[begin:end] - start))
        for piece, start, begin, end in zip(pieces, starts[:-1], cuts[:-1], cuts[1:], strict=True)
    ]
    back = np.empty(len(order), np.int64)
    back[order] = np.arange(len(order))
    return pa.concat_batches(found).take(pa.array(back))
