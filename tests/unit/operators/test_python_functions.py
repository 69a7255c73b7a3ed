"""filter and map_in_pandas, and generators that yield several batches or none."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from firesteel.errors import FiresteelError
from firesteel.operator import StreamOperator
from firesteel.operators import FilterSpec, MapInArrowSpec, MapInPandasSpec
from firesteel.testing import OperatorHarness
from taskexecutor.executor.operators.map.batches import Filter, MapInArrow, MapInPandas

SCHEMA = pa.schema([("x", pa.int64()), ("y", pa.string())])
BATCH = pa.record_batch([[1, 2, None], ["a", "b", None]], schema=SCHEMA)


def run(
    operator: StreamOperator, *batches: pa.RecordBatch, output: pa.Schema = SCHEMA
) -> OperatorHarness:
    harness = OperatorHarness(operator, [SCHEMA], output_schema=output, name="f").open()
    for batch in batches:
        harness.process(batch)
    harness.end()
    return harness


def filtered(function: Any, *batches: pa.RecordBatch) -> list[Any]:
    return [row["x"] for row in run(Filter(FilterSpec(function=function)), *batches).rows()]


@pytest.mark.parametrize(
    "function",
    [
        lambda batch: pc.greater(batch["x"], 1),
        lambda batch: [x is not None and x > 1 for x in batch["x"].to_pylist()],
        lambda batch: batch["x"].to_pandas() > 1,
        lambda batch: np.array([x is not None and x > 1 for x in batch["x"].to_pylist()]),
        lambda batch: pa.chunked_array([pc.greater(batch["x"], 1)]),
    ],
)
def test_filter_takes_booleans_of_any_kind_and_drops_nulls(function: Any) -> None:
    assert filtered(function, BATCH) == [2]


def test_filter_that_lets_nothing_through_sends_no_batch() -> None:
    assert (
        run(Filter(FilterSpec(function=lambda batch: [None] * batch.num_rows)), BATCH).batches == []
    )


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (lambda batch: [True], "1 booleans for a batch of 3 rows"),
        (lambda batch: batch["x"], "returned int64 values"),
        (lambda batch: None, "one boolean per row"),
        (lambda row: row["x"] == 1, "with an Arrow RecordBatch, returned bool; it must return one"),
        (lambda batch: ["a", True, 1], "one boolean per row"),
        (lambda row: row.x == 1, "called with an Arrow RecordBatch, failed: AttributeError: "),
    ],
)
def test_filter_says_what_a_function_should_have_returned(function: Any, words: str) -> None:
    with pytest.raises(FiresteelError, match=f"f: .*{words}"):
        filtered(function, BATCH)


def pandas(function: Any, *batches: pa.RecordBatch, output: pa.Schema = SCHEMA) -> OperatorHarness:
    return run(MapInPandas(MapInPandasSpec(function=function)), *batches, output=output)


def test_map_in_pandas_runs_once_per_batch_and_yields_any_number_of_frames() -> None:
    calls: list[int] = []

    def function(frames: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
        calls.append(1)
        for frame in frames:
            for x in range(int(frame["x"].count())):
                yield frame.iloc[[x]]

    harness = pandas(function, BATCH, BATCH.slice(2, 1), BATCH.slice(0, 1))
    assert [row["x"] for row in harness.rows()] == [1, 2, 1]
    assert all(batch.schema == SCHEMA for batch in harness.batches)
    assert len(calls) == 3


def test_map_in_pandas_with_another_schema_shows_both() -> None:
    with pytest.raises(
        FiresteelError,
        match="f: the function yielded another schema than it declares: "
        "expected x int64, y string; got x",
    ):
        pandas(lambda frames: (frame[["x"]] for frame in frames), BATCH)
    with pytest.raises(FiresteelError, match="yielded a dict; it must yield a pandas.DataFrame"):
        pandas(lambda frames: iter([{"x": 1}]), BATCH)
    with pytest.raises(FiresteelError, match="returned NoneType; it must return an iterator"):
        pandas(lambda frames: None, BATCH)
    with pytest.raises(FiresteelError, match="expected x int64, y string; got x object"):
        pandas(lambda frames: (frame.assign(x="no number") for frame in frames), BATCH)


@given(sizes=st.lists(st.integers(0, 50), max_size=6), several=st.integers(0, 3))
def test_generators_may_yield_several_batches_or_none(sizes: list[int], several: int) -> None:
    """Whatever the batches, the function sees each row once and all that it yields comes out, in
    order.
    """
    rows = iter(range(10_000))
    batches = [
        pa.record_batch([[next(rows) for _ in range(size)], ["t"] * size], schema=SCHEMA)
        for size in sizes
    ]

    def function(found: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in found:
            for number in range(several):
                yield batch.slice(number, 10)

    harness = run(MapInArrow(MapInArrowSpec(function=function)), *batches)
    expected = [
        x
        for batch in batches
        for number in range(several)
        for x in batch["x"].to_pylist()[number : number + 10]
    ]
    assert [row["x"] for row in harness.rows()] == expected
