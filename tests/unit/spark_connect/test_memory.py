"""The rows of a memory sink: which of them count."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from firesteel.operators.batches import BATCH, CHECKPOINT
from firesteel.spark_connect.memory import Batches

SCHEMA = pa.schema([("n", pa.int64())])
MARKED = pa.schema([("n", pa.int64()), (BATCH, pa.int64()), (CHECKPOINT, pa.int64())])


def batch(*rows: int | tuple[int | None, int | None]) -> pa.RecordBatch:
    """Rows, and marks: tuples of batch and checkpoint."""
    values: list[tuple[Any, ...]] = [
        (None, *row) if isinstance(row, tuple) else (row, None, None) for row in rows
    ]
    columns = list(zip(*values, strict=True)) or [(), (), ()]
    arrays = [pa.array(column, pa.int64()) for column in columns]
    return pa.RecordBatch.from_arrays(arrays, schema=MARKED)


def numbers(batches: Batches) -> list[int]:
    found: list[int] = batches.table(SCHEMA)["n"].to_pylist()
    return found


@pytest.mark.parametrize(("replaces", "second"), [(False, [1, 2, 3]), (True, [3])])
def test_rows_count_with_the_mark_of_their_batch(replaces: bool, second: list[int]) -> None:
    batches = Batches(replaces=replaces)
    batches.add(batch())
    batches.add(batch(1))
    assert (numbers(batches), batches.version) == ([], 0)
    batches.add(batch(2, (0, 5), (None, 6), 3))
    assert numbers(batches) == [1, 2]
    assert (batches.version, batches.checkpoint_id, batches.batch_id) == (1, 6, 0)
    batches.add(batch((1, 7)))
    assert numbers(batches) == second
    assert (batches.version, batches.checkpoint_id, batches.batch_id) == (2, 7, 1)
    batches.add(batch((None, 8)))
    assert (numbers(batches), batches.version, batches.checkpoint_id) == (second, 2, 8)


def test_the_end_of_the_input_has_a_mark_without_a_checkpoint() -> None:
    batches = Batches(replaces=False)
    batches.add(batch(1, (0, None)))
    assert (numbers(batches), batches.checkpoint_id) == ([1], 0)


def test_rows_are_taken_up_to_a_checkpoint() -> None:
    batches = Batches(replaces=False)
    batches.add(batch(1, (0, 5), (None, 6), 2, (1, 7), 3, (2, None)))

    def taken(until: int | None) -> list[tuple[int | None, list[int]]]:
        return [(ended, rows["n"].to_pylist()) for ended, rows in batches.take(until)]

    assert taken(6) == [(5, [1])]
    assert numbers(batches) == [2, 3]
    assert taken(6) == []
    assert taken(None) == [(7, [2]), (None, [3])]
    assert numbers(batches) == []
