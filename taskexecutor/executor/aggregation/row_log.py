"""Rows that are kept as they come, in few pieces."""

from __future__ import annotations

import pyarrow as pa


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
