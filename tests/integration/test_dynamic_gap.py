"""Sessions whose gap depends on the record: as Spark's `session_window` with a dynamic gap."""

from __future__ import annotations

import random
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import functions as F

from firesteel.operators import (
    DynamicSessionSpec,
    PartialWindowAggregateSpec,
    WindowAggregateSpec,
    WindowApplySpec,
)
from firesteel.plan.aggregates.parse import parse_aggregates
from firesteel.plan.frame_methods import with_session_gap
from firesteel.testing import OperatorHarness
from taskexecutor.executor.columnar.cached_plans import composed
from taskexecutor.executor.columnar.jvm.engine import SparkEngine
from taskexecutor.executor.columnar.schemas import to_spark
from taskexecutor.executor.operators.windows import window_operator
from tests.integration.conftest import Slot

TIME = pa.timestamp("us", "UTC")
ROWS = pa.schema([("k", pa.string()), ("at", TIME), ("gap", pa.int64())])
GAPS = {
    "text": "concat(gap, ' seconds')",
    "interval": "make_dt_interval(0, 0, 0, gap)",
    "calendar": "make_interval(0, 0, 0, 0, 0, 0, gap)",
}
ITEMS = ("count(*) AS n", "sum(gap) AS total")
OUTPUT = pa.schema(
    [
        ("k", pa.string()),
        ("window_start", TIME),
        ("window_end", TIME),
        ("n", pa.int64()),
        ("total", pa.int64()),
    ]
)


@pytest.fixture(scope="module")
def engine(slot: Slot) -> SparkEngine:
    return slot.spark()


def some_rows(seed: int) -> list[dict[str, Any]]:
    chance = random.Random(seed)
    return [
        {
            "k": chance.choice("ab"),
            "at": chance.randrange(200) * 1_000_000,
            "gap": chance.randrange(1, 9),
        }
        for _ in range(60)
    ]


def frame_of(engine: SparkEngine, rows: list[dict[str, Any]]) -> Any:
    table = pa.Table.from_pylist(rows, schema=ROWS)
    return engine.session.createDataFrame(table, to_spark(ROWS)).coalesce(1)


def sessions(rows: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    """Row by row: sessions that touch are one."""
    found: list[list[Any]] = []
    for row in sorted(rows, key=lambda row: (row["k"], row["at"])):
        end = row["at"] + row["gap"] * 1_000_000
        if found and found[-1][0] == row["k"] and row["at"] <= found[-1][2]:
            last = found[-1]
            last[2], last[3], last[4] = max(last[2], end), last[3] + 1, last[4] + row["gap"]
        else:
            found.append([row["k"], row["at"], end, 1, row["gap"]])
    return sorted(map(tuple, found))


def as_tuples(rows: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    return sorted(
        (
            row["k"],
            round(row["window_start"].timestamp() * 1e6),
            round(row["window_end"].timestamp() * 1e6),
            row["n"],
            row["total"],
        )
        for row in rows
    )


@pytest.mark.parametrize("gap", GAPS.values(), ids=GAPS)
def test_partial_results_have_the_ends_of_their_rows(engine: SparkEngine, gap: str) -> None:
    window = DynamicSessionSpec(gap=gap)
    items = parse_aggregates(ITEMS, time_column="at")
    partial = PartialWindowAggregateSpec(
        key_columns=("k",), window=window, time_column="at", aggregates=items
    )
    rows = some_rows(1)
    bundles = [
        composed.partial_window_aggregate(frame_of(engine, part), partial, cores=1).toArrow()
        for part in (rows[:25], rows[25:])
    ]
    spec = WindowAggregateSpec(key_columns=("k",), window=window, aggregates=items)
    harness = OperatorHarness(
        window_operator(spec), [bundles[0].schema], output_schema=OUTPUT
    ).open()
    for bundle in bundles:
        harness.process(bundle.combine_chunks().to_batches()[0])
    harness.end()
    assert as_tuples(harness.rows()) == sessions(rows)


@pytest.mark.parametrize("processing_time", [False, True])
def test_sessions_that_keep_rows_leave_the_gap_out(
    engine: SparkEngine, processing_time: bool
) -> None:
    spec = WindowApplySpec(
        key_columns=("k",),
        window=DynamicSessionSpec(gap=GAPS["interval"], processing_time=processing_time),
        time_column="" if processing_time else "at",
        function=lambda df: df.groupBy("k", "window_start", "window_end").agg(
            F.count("*").alias("n"), F.sum("gap").alias("total")
        ),
    )
    rows = some_rows(2)
    now_us = [0]
    given = with_session_gap(GAPS["interval"])(frame_of(engine, rows)).toArrow()
    harness = OperatorHarness(
        window_operator(spec, clock_us=lambda: now_us[0]),
        [given.schema],
        output_schema=OUTPUT,
        spark=engine.session,
    ).open()
    harness.process(given.combine_chunks().to_batches()[0])
    if processing_time:  # all have arrived at the same time
        now_us[0] = 60_000_000
        harness.processing_time(60_000)
        rows = [{**row, "at": 0} for row in rows]
    else:
        harness.watermark(10**9)
    assert as_tuples(harness.rows()) == sessions(rows)
    harness.end()


@pytest.mark.parametrize(
    ("gap", "message"),
    [
        ("CAST(NULL AS STRING)", "longer than 0, and CAST(NULL AS STRING) is NULL"),
        ("INTERVAL '0' SECOND", "must be longer than 0"),
        ("'soon'", "soon"),
        ("gap", "its type is bigint; it must be an interval"),
    ],
)
def test_gaps_that_are_refused(engine: SparkEngine, gap: str, message: str) -> None:
    with pytest.raises(Exception, match=".*") as failed:
        with_session_gap(gap)(frame_of(engine, some_rows(3)[:1])).toArrow()
    assert message in str(failed.value)
