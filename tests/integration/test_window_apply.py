"""`window.apply(...)`: windows that fire together give what each of them gives by itself, whatever
the function, and in as few plans as that allows.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

from firesteel.operators import SlidingSpec, TumblingSpec, WindowApplySpec
from firesteel.testing import OperatorHarness
from taskexecutor.executor.columnar.cached_plans import composed
from taskexecutor.executor.columnar.jvm.engine import SparkEngine
from taskexecutor.executor.columnar.schemas import to_arrow, to_spark
from taskexecutor.executor.operators.windows import window_operator
from tests.integration.conftest import Slot

TIME = pa.timestamp("us", "UTC")
ROWS = pa.schema([("k", pa.string()), ("at", TIME), ("n", pa.int64())])
BOUNDS = [pa.field("window_start", TIME), pa.field("window_end", TIME)]
CALLS = itertools.count()


@pytest.fixture(scope="module")
def engine(slot: Slot) -> SparkEngine:
    return slot.spark()


def latest(df: DataFrame) -> DataFrame:
    order = Window.partitionBy("window_end", "k").orderBy("n", "at")
    return df.withColumn("place", F.row_number().over(order)).where("place < 3")


def first_of_key(df: DataFrame) -> DataFrame:
    order = Window.partitionBy("k").orderBy("n", "at")
    return df.withColumn("place", F.row_number().over(order)).where("place < 3")


def looking(df: DataFrame) -> DataFrame:
    return df.where("n % 2 = 0") if df.count() > 3 else df


def spread(frame: pd.DataFrame) -> pd.DataFrame:
    return frame.assign(n=frame["n"] - frame["n"].min())


# The function, and whether it gets all windows together.
TOGETHER: dict[str, tuple[Callable[[DataFrame], DataFrame], bool]] = {
    "grouped by window": (lambda df: df.groupBy("k", "window_start").count(), True),
    "grouped by a copy": (
        lambda df: df.withColumn("w", F.col("window_start")).groupBy("w").agg(F.max("n")),
        True,
    ),
    "rows": (lambda df: df.where("n > 3").selectExpr("k", "n * 2 AS d", "window_end"), True),
    "ranked in the window": (latest, True),
    "distinct": (lambda df: df.select("k", "window_start").distinct(), True),
    "duplicates": (
        lambda df: df.select("k", "window_end").dropDuplicates(["window_end", "k"]),
        True,
    ),
    "sorted": (lambda df: df.orderBy("n").select("n", "window_end"), True),
    "grouped twice": (
        lambda df: (
            df.groupBy("k", "window_start")
            .agg(F.sum("n").alias("s"))
            .groupBy("window_start")
            .agg(F.max("s"))
        ),
        True,
    ),
    "of pandas": (
        lambda df: df.groupBy("window_start", "window_end").applyInPandas(spread, df.schema),
        True,
    ),
    "grouped by key": (lambda df: df.groupBy("k").agg(F.sum("n").alias("s")), False),
    "the window is lost": (
        lambda df: (
            df.groupBy("k", "window_start").agg(F.sum("n").alias("s")).groupBy("k").agg(F.max("s"))
        ),
        False,
    ),
    "another column of its name": (
        lambda df: df.withColumn("window_start", F.col("at")).groupBy("window_start").count(),
        False,
    ),
    "rollup": (lambda df: df.rollup("window_start", "k").count(), False),
    "all rows": (lambda df: df.agg(F.count("*").alias("c"), F.sum("n").alias("s")), False),
    "limit": (lambda df: df.orderBy("n", "at", "k").limit(2), False),
    "limit without order": (lambda df: df.limit(1).select(F.lit(1).alias("one")), False),
    "offset": (lambda df: df.orderBy("n", "at").offset(1).select("n"), False),
    "ranked by key": (first_of_key, False),
    "join with itself": (
        lambda df: df.alias("a").join(df.groupBy("k").count(), "k").select("k", "n", "count"),
        False,
    ),
    "union with itself": (lambda df: df.select("n").union(df.select("n")), False),
    "a subquery": (lambda df: df.where(F.col("n") > 2).select("n"), True),
    "looks at its rows": (looking, False),
    "partitions of pandas": (
        lambda df: df.mapInPandas(lambda frames: map(spread, frames), df.schema),
        False,
    ),
    "other from call to call": (lambda df: df.select(F.lit(next(CALLS) * 0 + 1), "n"), True),
    "numbers of rows": (
        lambda df: df.select("n", F.monotonically_increasing_id().alias("id") * 0),
        False,
    ),
}


def rows(seed: int, count: int) -> list[dict[str, Any]]:
    chance = random.Random(seed)
    return [
        {
            "k": chance.choice(["a", "b", None]),
            "at": chance.randrange(40),
            "n": chance.randrange(9),
        }
        for _ in range(count)
    ]


def expected(
    engine: SparkEngine, spec: WindowApplySpec, given: list[dict[str, Any]]
) -> list[dict[str, Any]]:
    """Each window by itself."""
    found = []
    size, slide = spec.window.size_us, spec.window.slide_us  # type: ignore[union-attr]
    for start in range(-20, 60, slide):
        mine = [row for row in given if start <= row["at"] < start + size]
        if not mine:
            continue
        table = pa.Table.from_pylist(
            [{**row, "window_start": start, "window_end": start + size} for row in mine],
            schema=pa.schema([*ROWS, *BOUNDS]),
        )
        frame = engine.session.createDataFrame(table, to_spark(table.schema)).coalesce(1)
        found += composed.window_result(frame, spec).toArrow().to_pylist()
    return found


def ordered(found: list[dict[str, Any]]) -> list[str]:
    return sorted(repr(list(row.values())) for row in found)


TUMBLING, SLIDING = TumblingSpec(size_us=10), SlidingSpec(size_us=20, slide_us=10)
CASES = [
    *((TUMBLING, name) for name in TOGETHER),
    *((SLIDING, name) for name in ("grouped by window", "grouped by key", "limit")),
]


@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    ("window", "name"), CASES, ids=[f"{type(w).__name__} {n}" for w, n in CASES]
)
def test_windows_that_fire_together(
    engine: SparkEngine, name: str, window: TumblingSpec | SlidingSpec
) -> None:
    function, together = TOGETHER[name]
    spec = WindowApplySpec(
        key_columns=("k",), window=window, time_column="at", function=function, across_keys=True
    )
    leaf = composed.empty_frame(engine.session, to_spark(pa.schema([*ROWS, *BOUNDS])))
    operator = window_operator(spec)
    harness = OperatorHarness(
        operator,
        [ROWS],
        output_schema=to_arrow(function(leaf).schema),
        spark=engine.session,
    ).open()
    given = rows(1, 60)
    harness.process(pa.RecordBatch.from_pylist(given[:40], schema=ROWS))
    harness.process(pa.RecordBatch.from_pylist(given[40:], schema=ROWS))
    harness.watermark(1_000)
    assert ordered(harness.rows()) == ordered(expected(engine, spec, given))
    assert operator._contents.one_window_at_a_time == (not together)
    harness.end()
