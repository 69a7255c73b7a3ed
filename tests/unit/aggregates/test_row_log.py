"""Rows that are kept as they come, in few pieces."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from taskexecutor.executor.columnar.grouping import row_log
from taskexecutor.executor.columnar.grouping.row_log import RowLog, taken


def filled(batches: int) -> RowLog:
    log = RowLog()
    for first in range(0, 10 * batches, 10):
        log.add(pa.RecordBatch.from_pydict({"n": list(range(first, first + 10))}))
    return log


def test_rows_are_in_few_pieces_in_their_order() -> None:
    log = filled(100)
    assert len(log.pieces) < 10
    assert pa.Table.from_batches(log.pieces)["n"].to_pylist() == list(range(1000))
    places = np.array([999, 0, 500, 0])
    assert taken(log.pieces, places)["n"].to_pylist() == places.tolist()


def test_no_piece_is_larger_than_a_column_of_texts_may_be(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_log, "LARGEST_BYTES", 800)  # a hundred numbers
    log = filled(100)
    assert max(piece.nbytes for piece in log.pieces) <= 800
    assert 10 <= len(log.pieces) <= 20
    assert pa.Table.from_batches(log.pieces)["n"].to_pylist() == list(range(1000))
