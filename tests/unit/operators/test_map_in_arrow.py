"""map_in_arrow: the iterator contract, schemas checked, casts that lose nothing."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

from firesteel.errors import FiresteelError
from firesteel.operators import CoMapInArrowSpec, MapInArrowSpec
from firesteel.testing import OperatorHarness
from taskexecutor.executor.operators.map.batches import CoMapInArrow, MapInArrow

SCHEMA = pa.schema([("x", pa.int64()), ("y", pa.string())])
BATCH = pa.record_batch([[1, 2, 3], ["a", "b", None]], schema=SCHEMA)


def run(function: Any, output: pa.Schema = SCHEMA) -> OperatorHarness:
    harness = OperatorHarness(
        MapInArrow(MapInArrowSpec(function=function)), [SCHEMA], output_schema=output, name="f"
    ).open()
    harness.process(BATCH)
    harness.end()
    return harness


def test_batches_go_through_one_function_call_each() -> None:
    def twice(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield batch
            yield batch.slice(0, 1)

    assert [row["x"] for row in run(twice).rows()] == [1, 2, 3, 1]


def test_columns_are_matched_by_name_and_cast_safely() -> None:
    narrow = pa.schema([("y", pa.large_string()), ("x", pa.int32())])
    harness = run(lambda batches: (b.select(["y", "x"]).cast(narrow) for b in batches))
    assert harness.batches[0].schema == SCHEMA


def test_another_schema_is_an_error_that_shows_both() -> None:
    with pytest.raises(FiresteelError, match="expected x int64, y string; got x int64"):
        run(lambda batches: (b.select(["x"]) for b in batches))
    wrong = pa.schema([("x", pa.string()), ("y", pa.string())])
    with pytest.raises(FiresteelError, match="column 'x'"):
        run(lambda batches: (pa.record_batch([["u"], ["v"]], schema=wrong) for _ in batches))


def test_times_with_and_without_a_zone_are_not_mixed() -> None:
    local, moment = (pa.schema([("at", pa.timestamp("us", zone))]) for zone in (None, "UTC"))
    for yielded, declared, reason in (
        (local, moment, r"column 'at': its times have no zone.* or declare it TIMESTAMP_NTZ"),
        (moment, local, "column 'at': its times have a zone.* declare it TIMESTAMP"),
    ):
        batch = pa.record_batch([[0]], schema=yielded)
        with pytest.raises(FiresteelError, match=reason):
            run(lambda batches, batch=batch: (batch for _ in batches), declared)
    paris = pa.record_batch([[0]], schema=pa.schema([("at", pa.timestamp("ms", "Europe/Paris"))]))
    assert run(lambda batches: (paris for _ in batches), moment).batches[0].schema == moment


def test_what_is_no_batch_is_refused() -> None:
    with pytest.raises(FiresteelError, match="yielded dict"):
        run(lambda batches: iter([{"x": 1}]))
    with pytest.raises(FiresteelError, match="returned NoneType"):
        run(lambda batches: None)


def test_two_inputs_one_function_each() -> None:
    number = pa.schema([("n", pa.int64())])
    operator = CoMapInArrow(
        CoMapInArrowSpec(
            first=lambda batches: (pa.record_batch([b["x"]], names=["n"]) for b in batches),
            second=lambda batches: (pa.record_batch([[b.num_rows]], names=["n"]) for b in batches),
            schema=number,
        )
    )
    harness = OperatorHarness(operator, [SCHEMA, SCHEMA], output_schema=number).open()
    harness.process(BATCH, 0)
    harness.process(BATCH, 1)
    harness.end()
    assert [row["n"] for row in harness.rows()] == [1, 2, 3, 3]
