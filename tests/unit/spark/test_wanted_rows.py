"""Rows that a condition leaves of a table."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from tests.unit.operators.test_csv_regular import Less


def _table(rows: int) -> pa.Table:
    """Returns a table of three batches whose texts have separate dictionaries."""
    texts = [f"{number % 7}" for number in range(rows)]
    batches = [
        pa.record_batch(
            [
                pa.array([None, *range(start + 1, start + rows)]),
                pa.array([f"{start}-{text}" for text in texts]).dictionary_encode(),
            ],
            ["n", "text"],
        )
        for start in (0, rows, 2 * rows)
    ]
    return pa.Table.from_batches(batches)


@pytest.mark.parametrize("rows", [10, 9_000])
@pytest.mark.parametrize("share", [0, 0.1, 1.5, 2.6, 3])
def test_no_row_is_lost_that_may_be_wanted(rows: int, share: float) -> None:
    table, than = _table(rows), int(share * rows)
    found = Less(than).of(table)
    assert found.column_names == ["n", "text"]
    assert found.filter(pc.less(found["n"], than)).to_pylist() == [
        row for row in table.to_pylist() if row["n"] is not None and row["n"] < than
    ]


def test_others_are_left_out_by_batches() -> None:
    found = Less(15).of(_table(10))
    assert found["n"].to_pylist() == [None, *range(1, 10), 11, 12, 13, 14]


def test_dictionaries_of_many_rows_stay_as_they_are() -> None:
    table = _table(20_000)
    kept = Less(50_000).of(table)
    assert pa.types.is_dictionary(kept["text"].type)
    assert [chunk.dictionary for chunk in kept["text"].chunks] == [
        chunk.dictionary for chunk in table["text"].chunks
    ]
    assert Less(100).of(table)["text"].type == pa.string()
