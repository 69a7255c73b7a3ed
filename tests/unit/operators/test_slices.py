"""Slices of batches: slow functions delay neither their results nor a cancellation."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import Row

from firesteel import KeyedProcessFunction
from firesteel.operator import TaskCancelled
from firesteel.operators import MapRowsSpec, ProcessSpec
from firesteel.testing import OperatorHarness
from taskexecutor.executor.operators.map.rows import MapRows
from taskexecutor.executor.operators.process.process import Process
from taskexecutor.executor.operators.python_rows import slices
from taskexecutor.executor.operators.python_rows.slices import Slices

SCHEMA = pa.schema([("x", pa.int64())])
ROWS = 10_000


class Clock:
    """A clock on which each row takes `row_s`."""

    row_s = 0.0

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s

    def work(self, part: pa.RecordBatch) -> None:
        self.now_s += self.row_s * part.num_rows


class Context:
    cancelled = False


def batch(rows: int = ROWS) -> pa.RecordBatch:
    return pa.record_batch([range(rows)], schema=SCHEMA)


def sizes(divided: Slices, clock: Clock, whole: pa.RecordBatch) -> list[int]:
    parts = []
    for part in divided.of(whole):
        divided.timed(clock.work, part)
        clock.now_s += 1.0  # a slow consumer, which does not count
        parts.append(part)
    if parts:
        assert pa.Table.from_batches(parts).combine_chunks().to_batches() == [whole]
    return [part.num_rows for part in parts]


def test_slices_grow_to_whole_batches_and_shrink_to_rows() -> None:
    clock, context = Clock(), Context()
    divided = Slices(context, clock=clock)  # type: ignore[arg-type]
    assert sizes(divided, clock, batch())[:5] == [1, 2, 4, 8, 16]
    assert sizes(divided, clock, batch()) == [8_192, ROWS - 8_192]
    assert sizes(divided, clock, batch()) == [ROWS]
    assert sizes(divided, clock, batch(0)) == []
    clock.row_s = 1.0
    assert sizes(divided, clock, batch(20)) == [20]
    assert sizes(divided, clock, batch(20)) == [1] * 20
    clock.row_s = 0.01
    assert max(sizes(divided, clock, batch(100))) <= 10


def test_no_slice_follows_a_cancellation() -> None:
    context = Context()
    parts = Slices(context).of(batch())  # type: ignore[arg-type]
    next(parts)
    context.cancelled = True
    with pytest.raises(TaskCancelled):
        next(parts)


def mapped(harness: list[OperatorHarness], *, flat: bool) -> OperatorHarness:
    def slow(row: Row) -> Any:
        if row.x == 4:
            harness[0].cancel()
        return [(row.x,)] if flat else (row.x,)

    return OperatorHarness(
        MapRows(MapRowsSpec(function=slow, flat=flat)), [SCHEMA], output_schema=SCHEMA
    )


def processed(harness: list[OperatorHarness], *, keyed: bool) -> OperatorHarness:
    class Slow(KeyedProcessFunction):
        def process_element(self, value: Any, ctx: Any) -> Iterator[tuple[int]]:
            if value.x == 4:
                harness[0].cancel()
            yield (value.x,)

    spec = ProcessSpec(
        function=Slow(), key_columns=("x",) if keyed else None, schema=SCHEMA, side_outputs={}
    )
    return OperatorHarness(Process(spec), [SCHEMA], output_schema=SCHEMA)


@pytest.mark.parametrize(
    "operator",
    [
        lambda harness: mapped(harness, flat=False),
        lambda harness: mapped(harness, flat=True),
        lambda harness: processed(harness, keyed=True),
        lambda harness: processed(harness, keyed=False),
    ],
    ids=["map", "flat_map", "keyed process", "process"],
)
def test_a_slow_function_is_cancelled_after_the_row(
    operator: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its results are emitted row by row. The rest of its batch is not processed."""
    monkeypatch.setattr(slices, "QUICK_S", -1.0)  # no function is quick
    of: list[OperatorHarness] = []
    harness = operator(of).open()
    of.append(harness)
    with pytest.raises(TaskCancelled):
        harness.process(batch())
    assert [each.num_rows for each in harness.batches] == [1] * 4
    assert [row["x"] for row in harness.rows()] == [0, 1, 2, 3]
    harness.close()
