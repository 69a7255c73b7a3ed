"""Keyed aggregation, in two halves and over kept rows, compared with the same SQL run by Spark
on all rows together.
"""

from __future__ import annotations

import dataclasses
import math
import random
import re
from collections.abc import Iterator, Sequence
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from firesteel.common.error_report import summary_of
from firesteel.errors import FiresteelError
from firesteel.operators import (
    AggregateExpression,
    PartialWindowAggregateSpec,
    RunningAggregateSpec,
    SessionSpec,
    SlidingSpec,
    TumblingSpec,
    WindowAggregateSpec,
    WindowApplySpec,
    WindowSpec,
)
from firesteel.plan.aggregates import hyperloglog
from firesteel.plan.aggregates.parse import parse_aggregates
from firesteel.testing import OperatorHarness
from taskexecutor.executor.columnar.cached_plans import composed
from taskexecutor.executor.columnar.grouping.merge_columns import ranks
from taskexecutor.executor.columnar.jvm.engine import SparkEngine
from taskexecutor.executor.columnar.jvm.transfer import BundleLoader
from taskexecutor.executor.columnar.schemas import to_arrow
from taskexecutor.executor.operators.running_aggregate import RunningAggregate
from taskexecutor.executor.operators.windows import window_operator
from tests.integration.conftest import session_conf
from tests.long import long_after

TIME = pa.timestamp("us", "UTC")
ROWS = pa.schema(
    [
        ("key", pa.string()),
        ("part", pa.int32()),
        ("at", TIME),
        ("n", pa.int64()),
        ("small", pa.int16()),
        ("ratio", pa.float64()),
        ("single", pa.float32()),
        ("price", pa.decimal128(12, 3)),
        ("word", pa.string()),
        ("raw", pa.binary()),
        ("flag", pa.bool_()),
        ("day", pa.date32()),
    ]
)
SPLIT = [
    "count(*) AS a1",
    "count(n) AS a2",
    "count(n, ratio) AS a3",
    "count_if(n > 0) AS a4",
    "sum(n) AS b1",
    "sum(small) AS b2",
    "sum(ratio) AS b3",
    "sum(price) AS b4",
    "sum(n * 2) FILTER (WHERE flag) AS b5",
    "sum(IF(flag, at - timestamp'1970-01-01', NULL)) AS b6",
    "min(n) AS c1",
    "max(ratio) AS c2",
    "min(ratio) AS c3",
    "min(single) AS c4",
    "max(price) AS c5",
    "min(word) AS c6",
    "max(raw) AS c7",
    "max(at) AS c8",
    "min(day) AS c9",
    "min(flag) AS c10",
    "max(struct(n, word)) AS c11",
    "min(struct(ratio, raw, at)) AS c12",
    "min(IF(flag, array(small, n), NULL)) AS c13",
    "max(array(struct(price, day), named_struct('price', NULL, 'day', NULL))) AS c14",
    "avg(n) AS d1",
    "avg(price) AS d2",
    "mean(small) AS d3",
    "avg(n * 9000000000000000) AS d4",
    "avg(single) FILTER (WHERE flag) AS d5",
    "avg(IF(flag, at - timestamp'1970-01-01', NULL)) AS d6",
    "stddev(n) AS e1",
    "stddev_pop(small) AS e2",
    "std(price) AS e3",
    "variance(n) AS e4",
    "var_pop(n) FILTER (WHERE n <> 3) AS e5",
    "min_by(word, at) AS f1",
    "max_by(price, at) AS f2",
    "min_by(word, struct(small, at)) AS f5",
    "first(n) AS f3",
    "last(word, true) AS f4",
    "bool_and(flag) AS g1",
    "some(flag) AS g2",
    "bit_xor(n) AS g3",
    "bit_or(small) AS g4",
    "collect_list(n) AS h1",
    "collect_set(word) AS h2",
    "count(DISTINCT n) AS h3",
    "count(DISTINCT ratio) AS h4",
    "approx_count_distinct(n) AS h5",
    "approx_count_distinct(word) AS h6",
    "(max(n) - min(n)) / count(*) AS i1",
    "sum(price) / 3 + 1.50 AS i2",
    "-sum(n) + 0.5 * count(n) AS i3",
    "sum(price) / 3 * 1.50 AS i4",
    "sum(price) / count(*) * sum(price) AS i5",
    "(avg(price) - 0.5) * count(n) / 7 AS i6",
    "sum(CAST(price AS DECIMAL(30, 12))) * 1.123456789012 AS i7",
    "2 * max(price) - avg(CAST(price AS DECIMAL(38, 10))) AS i8",
    "sum(price) * 1.5e0 + 2 AS i9",
]
WHOLE = [
    "median(n) AS a",
    "percentile_cont(0.25) WITHIN GROUP (ORDER BY n) AS b",
    "round(avg(ratio), 2) AS c",
    "count(DISTINCT n, word) AS d",
    "sum(n) + max(struct(n, word)).n AS e",
    "first(n) AS f",
    "CASE WHEN sum(n) > 0 THEN 'up' ELSE min(word) END AS g",
]


def some_rows(seed: int, count: int = 400) -> list[dict[str, Any]]:
    chance = random.Random(seed)

    def maybe(value: Any) -> Any:
        return None if chance.random() < 0.2 else value

    def row(number: int) -> dict[str, Any]:
        return {
            "key": chance.choice(["a", "b", "c", None]),
            "part": chance.randrange(2),
            # Times are distinct, so that first and last have one answer.
            "at": chance.randrange(60) * 1_000_000 + number,
            "n": maybe(chance.randrange(-5, 1000)),
            "small": maybe(chance.randrange(-5, 5)),
            "ratio": maybe(chance.choice([float("nan"), 0.5, -0.25, 4.0])),
            "single": maybe(chance.choice([float("nan"), 0.5, -2.0])),
            "price": maybe(Decimal(chance.randrange(-(10**6), 10**6)) / 1000),
            "word": maybe(chance.choice(["x", "yy", "", "ü"])),
            "raw": maybe(chance.choice([b"", b"\xff", b"a"])),
            "flag": maybe(chance.random() < 0.5),
            "day": maybe(chance.randrange(100)),
        }

    return [row(number) for number in range(count)]


def table(rows: list[dict[str, Any]]) -> pa.Table:
    return pa.Table.from_pylist(rows, schema=ROWS)


def outputs(
    engine: SparkEngine, items: tuple[AggregateExpression, ...], window: WindowSpec | None
) -> pa.Schema:
    with BundleLoader(engine.session, engine.bundles, ROWS).dataframe(
        table([]).to_batches()
    ) as frame:
        exprs = [f"{item.whole} AS {item.name}" for item in items]
        from pyspark.sql import functions as sql

        found = to_arrow(frame.groupBy("key", "part").agg(*(sql.expr(e) for e in exprs)).schema)
    times = [pa.field("window_start", TIME), pa.field("window_end", TIME)] if window else []
    return pa.schema([*list(found)[:2], *times, *list(found)[2:]])


def by_spark(
    engine: SparkEngine,
    rows: list[dict[str, Any]],
    items: tuple[AggregateExpression, ...],
    window: WindowSpec | None,
) -> list[dict[str, Any]]:
    """Aggregates all rows together, with Spark's own windows."""
    from pyspark.sql import functions as sql

    match window:
        case TumblingSpec():
            columns = [sql.window("at", f"{window.size_us} microseconds").alias("w")]
        case SlidingSpec():
            columns = [
                sql.window(
                    "at", f"{window.size_us} microseconds", f"{window.slide_us} microseconds"
                ).alias("w")
            ]
        case SessionSpec():
            columns = [sql.session_window("at", f"{window.gap_us} microseconds").alias("w")]
        case None:
            columns = []
    times = (
        [sql.col("w.start").alias("window_start"), sql.col("w.end").alias("window_end")]
        if window
        else []
    )
    with BundleLoader(engine.session, engine.bundles, ROWS).dataframe(
        table(rows).to_batches()
    ) as frame:
        grouped = frame.groupBy("key", "part", *columns).agg(
            *(sql.expr(_whole(item)).alias(item.name) for item in items)
        )
        found: list[dict[str, Any]] = (
            grouped.select("key", "part", *times, *(item.name for item in items))
            .toArrow()
            .to_pylist()
        )
        return found


def _whole(item: AggregateExpression) -> str:
    """Spark's count(DISTINCT x) counts values several times in windows that it merges or expands;
    its collect_set does not.
    """
    return re.sub(
        r"^count\(DISTINCT (\w+)\)$", r"CAST(size(collect_set(\1)) AS BIGINT)", item.whole
    )


def partials(
    engine: SparkEngine,
    rows: list[dict[str, Any]],
    items: tuple[AggregateExpression, ...],
    window: WindowSpec | None,
) -> list[pa.RecordBatch]:
    spec = PartialWindowAggregateSpec(
        key_columns=("key", "part"),
        window=window,
        time_column="at" if window else "",
        aggregates=items,
    )
    with BundleLoader(engine.session, engine.bundles, ROWS).dataframe(
        table(rows).to_batches()
    ) as frame:
        made = composed.partial_window_aggregate(frame, spec, cores=1)
        batches: list[pa.RecordBatch] = made.toArrow().cast(to_arrow(made.schema)).to_batches()
        return batches


def bundles(rows: list[dict[str, Any]], seed: int) -> Iterator[tuple[list[dict[str, Any]], int]]:
    """Rows in bundles of any size, each with a watermark that no later row is behind."""
    rest = list(rows)
    chance = random.Random(seed)
    while rest:
        size = chance.choice([1, 7, 60, 150])
        bundle, rest = rest[:size], rest[size:]
        yield bundle, min((row["at"] for row in rest), default=10**9) - 1


def comparable(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    def value(v: Any) -> Any:
        if isinstance(v, float):
            return "NaN" if math.isnan(v) else pytest.approx(v, rel=1e-9)
        if isinstance(v, dict):
            return {name: value(part) for name, part in v.items()}
        return sorted(map(repr, v)) if isinstance(v, list) else v

    plain = [{name: value(v) for name, v in row.items()} for row in rows]
    return sorted(
        plain, key=lambda row: repr([row.get(n) for n in ("key", "part", "window_start")])
    )


def assert_same(ours: Sequence[dict[str, Any]], sparks: Sequence[dict[str, Any]]) -> None:
    ours, sparks = comparable(ours), comparable(sparks)
    assert len(ours) == len(sparks)
    for mine, theirs in zip(ours, sparks, strict=True):
        assert mine == theirs


WINDOWS = [
    TumblingSpec(size_us=10_000_000),
    SlidingSpec(size_us=12_000_000, slide_us=4_000_000),
    SessionSpec(gap_us=1_500_000),
    SlidingSpec(size_us=5_000_000, slide_us=3_000_000),
]
EACH_WINDOW = pytest.mark.parametrize(
    "window",
    long_after(3, WINDOWS),
    ids=lambda w: type(w).__name__ + str(getattr(w, "slide_us", "")),
)


@pytest.mark.one_in(2)
@EACH_WINDOW
def test_windows_in_two_halves_equal_spark(engine: SparkEngine, window: WindowSpec) -> None:
    items = parse_aggregates(SPLIT, time_column="at")
    assert all(item.splittable for item in items)
    rows = some_rows(1)
    rows.sort(key=lambda row: row["at"] // 20_000_000)
    spec = WindowAggregateSpec(key_columns=("key", "part"), window=window, aggregates=items)
    first = partials(engine, rows[:1], items, window)[0]
    harness = OperatorHarness(
        window_operator(spec), [first.schema], output_schema=outputs(engine, items, window)
    ).open()
    for bundle, watermark_us in bundles(rows, 1):
        for batch in partials(engine, bundle, items, window):
            harness.process(batch)
        harness.watermark(watermark_us)
    harness.end()
    assert_same(harness.rows(), by_spark(engine, rows, items, window))


@EACH_WINDOW
def test_windows_over_kept_rows_equal_spark(engine: SparkEngine, window: WindowSpec) -> None:
    items = parse_aggregates(WHOLE, time_column="at")
    rows = some_rows(3)
    rows.sort(key=lambda row: row["at"] // 20_000_000)
    spec = WindowApplySpec(
        key_columns=("key", "part"), window=window, time_column="at", aggregates=items
    )
    harness = OperatorHarness(
        window_operator(spec),
        [ROWS],
        output_schema=outputs(engine, items, window),
        spark=engine.session,
    ).open()
    for bundle, watermark_us in bundles(rows, 3):
        harness.process(table(bundle).combine_chunks().to_batches()[0])
        harness.watermark(watermark_us)
    harness.end()
    assert_same(harness.rows(), by_spark(engine, rows, items, window))


def test_running_aggregates_equal_spark_at_every_step(engine: SparkEngine) -> None:
    items = parse_aggregates(SPLIT, time_column="at")
    rows = some_rows(4, 250)
    spec = RunningAggregateSpec(key_columns=("key", "part"), aggregates=items)
    first = partials(engine, rows[:1], items, None)[0]
    harness = OperatorHarness(
        RunningAggregate(spec), [first.schema], output_schema=outputs(engine, items, None)
    ).open()
    seen: list[dict[str, Any]] = []
    latest: dict[Any, dict[str, Any]] = {}
    for bundle, _ in bundles(rows, 4):
        before = len(harness.rows())
        for batch in partials(engine, bundle, items, None):
            harness.process(batch)
        harness.flush()
        seen += bundle
        updates = harness.rows()[before:]
        assert {(row["key"], row["part"]) for row in updates} == {
            (row["key"], row["part"]) for row in bundle
        }
        latest |= {(row["key"], row["part"]): row for row in updates}
    harness.end()
    assert_same(list(latest.values()), by_spark(engine, seen, items, None))


def test_a_partial_sum_with_too_many_digits_is_not_left_out(engine: SparkEngine) -> None:
    """It is null to Spark without ANSI mode."""
    items = parse_aggregates(["sum(price * 100000000000000000000000000BD) AS a", "avg(n) AS b"])
    rows = [{**row, "price": Decimal(9) * 10**8} for row in some_rows(5, 2)]
    rows[1]["key"] = rows[0]["key"]
    rows[1]["part"] = rows[0]["part"]
    setting = "spark.sql.ansi.enabled"
    with session_conf(engine, {setting: "false"}):
        assert len(partials(engine, rows[:1], items, None)[0]) == 1
        with pytest.raises(Exception, match="more digits than its type"):
            partials(engine, rows, items, None)


def test_counts_and_extremes_need_no_sum_without_ansi_mode(engine: SparkEngine) -> None:
    items = parse_aggregates(["count(*) AS a", "max(n) AS b"])
    with session_conf(engine, {"spark.sql.ansi.enabled": "false"}):
        assert len(partials(engine, some_rows(5, 2), items, None)[0]) > 0


FLOWS = st.lists(
    st.lists(
        st.tuples(st.sampled_from(["a", "b", None]), st.integers(0, 30)), min_size=1, max_size=6
    )
    | st.integers(0, 40),
    max_size=6,
)
SMALL = pa.schema([("key", pa.string()), ("at", TIME), ("n", pa.int64())])
KIND = pa.field("row_kind", pa.string())


@settings(max_examples=12)
@given(flow=FLOWS, lateness=st.sampled_from([0, 7]), aside=st.booleans(), by_function=st.booleans())
def test_kept_rows_fire_again_with_what_is_late(
    engine: SparkEngine,
    flow: list[list[tuple[str, int]] | int],
    lateness: int,
    aside: bool,
    by_function: bool,
) -> None:
    """Row by row: a record counts unless its window's end and lateness were passed when it came;
    the last result is valid.
    """
    items = parse_aggregates(["sort_array(collect_list(n)) AS ns"])
    spec = WindowApplySpec(
        key_columns=("key",),
        window=TumblingSpec(size_us=10),
        time_column="at",
        aggregates=() if by_function else items,
        function=(lambda df: composed.window_result(df, aggregated)) if by_function else None,
        allowed_lateness_us=lateness,
        late_tag="late" if aside else "",
    )
    aggregated = dataclasses.replace(spec, aggregates=items, function=None)
    output = pa.schema(
        [
            ("key", pa.string()),
            ("window_start", TIME),
            ("window_end", TIME),
            ("ns", pa.list_(pa.int64())),
        ]
    )
    harness = OperatorHarness(
        window_operator(spec),
        [SMALL],
        output_schema=output.append(KIND) if spec.retracts else output,
        spark=engine.session,
        side_output_tags=("late",),
    ).open()
    expected: dict[tuple[str, int], list[int]] = {}
    watermark, number, late = -(2**63), 0, []
    for element in flow:
        if isinstance(element, int):
            watermark = max(watermark, element)
            harness.watermark(watermark)
            continue
        rows = [
            {"key": key, "at": at, "n": number + index} for index, (key, at) in enumerate(element)
        ]
        number += len(rows)
        harness.process(pa.RecordBatch.from_pylist(rows, schema=SMALL))
        for row in rows:
            end = row["at"] // 10 * 10 + 10
            if end - 1 + lateness <= watermark:
                late.append(row["n"])
            else:
                expected.setdefault((row["key"], end), []).append(row["n"])
    harness.end()
    last: dict[tuple[str, int], list[int]] = {}
    for row in harness.rows():
        result = row["key"], round(row["window_end"].timestamp() * 1e6)
        if spec.retracts:
            assert last.pop(result, None) == (row["ns"] if row["row_kind"] == "delete" else None)
        if row.get("row_kind") != "delete":
            last[result] = row["ns"]
    assert last == expected
    assert [n for batch in harness.side("late") for n in batch["n"].to_pylist()] == (
        late if aside else []
    )
    assert _late(harness) == (0 if aside else len(late))


@settings(max_examples=10)
@given(
    flow=FLOWS,
    lateness=st.sampled_from([0, 7]),
    window=st.sampled_from(
        [TumblingSpec(size_us=10), SlidingSpec(size_us=12, slide_us=5), SessionSpec(gap_us=4)]
    ),
)
def test_windows_fire_alike_over_rows_and_over_partials(
    engine: SparkEngine, flow: list[list[tuple[str, int]] | int], lateness: int, window: WindowSpec
) -> None:
    (split,), (whole,) = (
        parse_aggregates(["collect_list(n) AS ns"]),
        parse_aggregates(["sort_array(collect_list(n)) AS ns"]),
    )
    assert split.splittable and not whole.splittable
    output = pa.schema(
        [
            ("key", pa.string()),
            ("window_start", TIME),
            ("window_end", TIME),
            ("ns", pa.list_(pa.int64())),
        ]
    )
    partial = pa.schema(
        [*list(output)[:3], ("_p0_collect_list", pa.list_(pa.int64())), ("_rows", pa.int64())]
    )
    common: dict[str, Any] = {
        "key_columns": ("key",),
        "window": window,
        "allowed_lateness_us": lateness,
    }
    specs = [
        (WindowApplySpec(time_column="at", aggregates=(whole,), **common), SMALL),
        (WindowAggregateSpec(aggregates=(split,), **common), partial),
    ]
    if specs[0][0].retracts:
        output = output.append(KIND)
    ways = [
        OperatorHarness(
            window_operator(spec), [schema], output_schema=output, spark=engine.session
        ).open()
        for spec, schema in specs
    ]
    seen, number = [0, 0], 0
    for element in [*flow, 1_000]:
        if isinstance(element, int):
            for way in ways:
                way.watermark(element)
        else:
            rows = [
                {"key": key, "at": at, "n": number + index}
                for index, (key, at) in enumerate(element)
            ]
            number += len(rows)
            ways[0].process(pa.RecordBatch.from_pylist(rows, schema=SMALL))
            ways[1].process(
                pa.RecordBatch.from_pylist([_alone(row, window) for row in rows], schema=partial)
            )
        fired = [way.rows()[start:] for way, start in zip(ways, seen, strict=True)]
        seen = [len(way.rows()) for way in ways]
        assert_same(*fired)
    assert [_late(way) for way in ways] == [_late(ways[0])] * 2
    for way in ways:
        way.end()


def _alone(row: dict[str, Any], window: WindowSpec) -> dict[str, Any]:
    """Returns a row as a separate partial result."""
    at = row["at"]
    start = at if isinstance(window, SessionSpec) else at - at % window.pane_us
    end = at + window.gap_us if isinstance(window, SessionSpec) else start + window.pane_us
    return {
        "key": row["key"],
        "window_start": start,
        "window_end": end,
        "_p0_collect_list": [row["n"]],
        "_rows": 1,
    }


def _late(harness: OperatorHarness) -> int:
    return next(
        (c.value for n, c in harness.metrics.counters.items() if n == "numLateRecordsDropped"), 0
    )


@pytest.mark.parametrize("window", [WINDOWS[0], WINDOWS[2]], ids=["tumbling", "session"])
def test_errors_of_spark_when_a_window_fires_are_reported(
    engine: SparkEngine, window: WindowSpec
) -> None:
    spec = WindowApplySpec(
        key_columns=("key",),
        window=window,
        time_column="at",
        function=lambda df: df.selectExpr("key", "1 / (n - 7) AS x"),
    )
    output = pa.schema([("key", pa.string()), ("x", pa.float64())])
    harness = OperatorHarness(
        window_operator(spec), [SMALL], output_schema=output, spark=engine.session
    ).open()
    harness.process(
        pa.RecordBatch.from_pylist([{"key": "a", "at": 5, "n": n} for n in range(9)], schema=SMALL)
    )
    with pytest.raises(Exception, match="Division by zero") as failed:
        harness.watermark(10**9)
    assert summary_of(failed.value).startswith("[DIVIDE_BY_ZERO] Division by zero")
    harness.close()


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (
            lambda df: df.toPandas(),
            r"returned pandas\.core\.frame\.DataFrame; it must return a pyspark\.sql\.DataFrame",
        ),
        (lambda df: None, "returned NoneType; it must return"),
        (
            lambda df: df.groupBy("window_start").pivot("key").sum("n"),
            "columns changed between windows: expected key, n; got",
        ),
    ],
)
def test_what_an_applied_function_must_return(
    engine: SparkEngine, function: Any, message: str
) -> None:
    spec = WindowApplySpec(
        key_columns=("key",), window=WINDOWS[0], time_column="at", function=function
    )
    output = pa.schema([("key", pa.string()), ("n", pa.int64())])
    harness = OperatorHarness(
        window_operator(spec), [SMALL], output_schema=output, spark=engine.session
    ).open()
    harness.process(pa.RecordBatch.from_pylist([{"key": "a", "at": 5, "n": 1}], schema=SMALL))
    with pytest.raises(FiresteelError, match=message):
        harness.watermark(10**9)
    harness.close()


NESTED = pa.struct(
    [("a", pa.float64()), ("b", pa.list_(pa.struct([("c", pa.string()), ("d", pa.binary())])))]
)
INNER = st.none() | st.fixed_dictionaries(
    {"c": st.none() | st.text("aü𝒳\uffff", max_size=2), "d": st.none() | st.binary(max_size=2)}
)
OUTER = st.fixed_dictionaries(
    {
        "a": st.sampled_from([None, math.nan, math.inf, 0.0, -0.0, 1.5, -2.0]),
        "b": st.none() | st.lists(INNER, max_size=2),
    }
)


@settings(max_examples=5)
@given(values=st.lists(OUTER, min_size=20, max_size=60))
def test_nested_values_have_sparks_order(engine: SparkEngine, values: list[dict[str, Any]]) -> None:
    batch = pa.record_batch(
        [pa.array(values, NESTED), pa.array(range(len(values)))], names=["value", "number"]
    )
    with BundleLoader(engine.session, engine.bundles, batch.schema).dataframe([batch]) as frame:
        ranked = (
            frame.selectExpr("number", "dense_rank() OVER (ORDER BY value) - 1 AS rank")
            .orderBy("number")
            .toArrow()
        )
    assert ranks(batch["value"]).tolist() == ranked["rank"].to_pylist()


def test_any_number_of_distinct_values_is_estimated_like_spark(engine: SparkEngine) -> None:
    """Spark counts empty registers, corrects a bias or does neither, depending on the number."""
    from pyspark.sql import functions as sql

    (item,) = parse_aggregates(["approx_count_distinct(value * count) AS n"])
    ((name, registers),) = item.partial.items()
    counts = [*range(1, 4_000, 79), 10_000, 50_000]
    numbers = engine.session.createDataFrame([(each,) for each in counts], "count long")
    rows = numbers.selectExpr("count", "explode(sequence(1, count)) AS value")
    found = (
        rows.groupBy("count")
        .agg(sql.expr(item.whole).alias("by_spark"), sql.expr(registers).alias(name))
        .collect()
    )
    assert len(found) == len(counts)
    wrong = {
        row["count"]: (ours, row["by_spark"])
        for row in found
        if (ours := hyperloglog.estimate(np.array(row[name]))) != row["by_spark"]
    }
    assert wrong == {}
