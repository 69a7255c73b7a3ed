"""Partial results grouped by Arrow equal those grouped by Spark, for aggregates whose values are no
numbers.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from decimal import Decimal

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame

from firesteel.operators import (
    DynamicSessionSpec,
    PartialWindowAggregateSpec,
    SessionSpec,
    SlidingSpec,
    TransformSpec,
    TumblingSpec,
    WatermarkSpec,
    WindowSpec,
)
from firesteel.plan.aggregates.parse import parse_aggregates
from taskexecutor.executor.columnar.cached_plans import composed
from taskexecutor.executor.columnar.cached_plans.leaf_columns import (
    BySecond,
    LeafColumn,
    decoded,
    leaf_columns,
)
from taskexecutor.executor.columnar.cached_plans.reusable_plan import temporary_conf
from taskexecutor.executor.columnar.cached_plans.row_partials import (
    row_partials,
    rows_as_partials,
)
from taskexecutor.executor.columnar.columns.bundles import ColumnBundles
from taskexecutor.executor.columnar.columns.rows import frame
from taskexecutor.executor.columnar.grouping.merging import merge_partials, merges_of
from taskexecutor.executor.columnar.jvm.engine import SparkEngine
from taskexecutor.executor.columnar.jvm.transfer import BundleLoader
from taskexecutor.executor.columnar.runners import grouped_columns
from taskexecutor.executor.columnar.runners.bundle_plans import BundlePlans
from taskexecutor.executor.columnar.runners.column_plans import ColumnPlan, ColumnPlans
from taskexecutor.executor.columnar.runners.grouped_columns import GroupedColumns
from taskexecutor.executor.columnar.schemas import to_arrow, to_spark
from taskexecutor.executor.timing.clock import PlanMeter, TaskClock
from tests.integration.test_aggregates import ROWS, assert_same, some_rows, table

GROUPED = [
    "count(*) AS a1",
    "count(n, ratio) AS a2",
    "count(word) FILTER (WHERE n > 100) AS a3",
    "count(*) FILTER (WHERE flag) AS a4",
    "sum(n) FILTER (WHERE small <> 0 AND 100 / small > 20) AS b1",
    "sum(100 / small) FILTER (WHERE small <> 0) AS b2",
    "avg(small) AS b3",
    "min(word) AS c1",
    "max(word) FILTER (WHERE flag) AS c2",
    "max(ratio) AS c3",
    "min(single) AS c4",
    "max(at) AS c5",
    "min(day) FILTER (WHERE n IS NULL) AS c6",
    "bool_or(flag) AS c7",
    "min(flag) AS c8",
    "max(struct(small, word, n)) AS d1",
    "min(struct(small, day, word)) AS d2",
    "max(struct(word, n)) FILTER (WHERE flag) AS d3",
    "max(IF(flag, struct(n), NULL)) AS d4",
    "count(DISTINCT n) AS e1",
    "count(DISTINCT n) FILTER (WHERE flag) AS e2",
    "count(DISTINCT n) FILTER (WHERE NOT flag OR n > 7) AS e3",
    "count(DISTINCT word) FILTER (WHERE flag) AS e4",
    "count(DISTINCT 100 div small) FILTER (WHERE small <> 0) AS e5",
    "count(DISTINCT 100 div small) FILTER (WHERE small > 0 AND flag) AS e6",
    "collect_set(day) AS e7",
    "collect_set(word) FILTER (WHERE n < 0) AS e8",
    "count(DISTINCT small) AS e9",
    "collect_list(n) AS e10",
    "collect_list(struct(ratio, price)) FILTER (WHERE flag) AS e11",
    "min_by(word, at) AS f1",
    "max_by(price, struct(at)) FILTER (WHERE flag) AS f2",
    "last(raw) AS f3",
    "sum(price) AS g1",
    "avg(price) AS g2",
    "sum(price * price) FILTER (WHERE flag) AS g3",
    "avg(price + 1) FILTER (WHERE flag) AS g4",
    "sum(CAST(price AS DECIMAL(27, 3))) AS g5",
    "sum(CAST(n AS DECIMAL(20, 0))) AS g6",
    "avg(price * 123456789012.12) AS g7",  # more digits than doubles have
]
BY_ROW = [
    *(each for each in GROUPED if not re.search("DISTINCT|collect_|raw|_by", each)),
    "sum(n * 2 + small) FILTER (WHERE flag) AS h1",
    "avg(ratio * 2) AS h2",
    "max(day + 1) AS h3",
]
BY_SPARK = [
    "count(DISTINCT ratio) AS a",  # two zeros, and NaN
    "min(struct(ratio, word)) AS a",
    "max(raw) AS a",
    "approx_count_distinct(word) AS a",
    "any_value(word) FILTER (WHERE flag) AS a",
    "sum(CAST(price AS DECIMAL(28, 3))) AS a",  # may have lost digits
    "sum(price / 3) FILTER (WHERE flag) + sum(CAST(price AS DECIMAL(38, 3))) AS a",
]


def aggregate_spec(
    keys: tuple[str, ...], window: WindowSpec | None, aggregates: list[str]
) -> PartialWindowAggregateSpec:
    return PartialWindowAggregateSpec(
        key_columns=keys,
        window=window,
        time_column="at" if window else "",
        aggregates=parse_aggregates(aggregates, time_column="at"),
    )


def doubled(df: DataFrame) -> DataFrame:
    return df.withColumn("small", df.small + df.small)


def cached_plan(
    engine: SparkEngine,
    keys: tuple[str, ...],
    window: WindowSpec | None,
    aggregates: list[str],
    *,
    by_row: bool = False,
) -> tuple[BundlePlans, PartialWindowAggregateSpec, ColumnBundles | GroupedColumns]:
    spec = aggregate_spec(keys, window, aggregates)
    before = TransformSpec(function=doubled)
    plans = BundlePlans(engine, ROWS, [before, spec], PlanMeter(TaskClock()), by_row=by_row)
    plans.make()
    assert isinstance(plans._plan, ColumnBundles | GroupedColumns)
    return plans, spec, plans._plan


KEYS_AND_WINDOWS = pytest.mark.parametrize(
    ("keys", "window"),
    [
        (("key", "part"), None),
        (("part", "day", "flag"), TumblingSpec(size_us=10_000_000)),
        ((), SlidingSpec(size_us=12_000_000, slide_us=8_000_000, offset_us=7)),
    ],
    ids=str,
)
SESSIONS = SessionSpec(gap_us=9_000_000)


@KEYS_AND_WINDOWS
def test_rows_grouped_by_arrow_equal_rows_grouped_by_spark(
    engine: SparkEngine, keys: tuple[str, ...], window: WindowSpec | None
) -> None:
    assert_grouped_as_by_spark(engine, keys, window)


def test_sessions_grouped_by_arrow_equal_sessions_grouped_by_spark(engine: SparkEngine) -> None:
    assert_grouped_as_by_spark(engine, ("part",), SESSIONS)


def assert_grouped_as_by_spark(
    engine: SparkEngine, keys: tuple[str, ...], window: WindowSpec | None
) -> None:
    kept, spec, plan = cached_plan(engine, keys, window, GROUPED)
    assert plan.cached.grouping is not None
    for rows in (some_rows(1), some_rows(2, 3), some_rows(3, 1)):
        expected = grouped_by_spark(engine, rows, spec)
        (found,) = kept.run(table(rows).to_batches(), expected.schema, "test")
        assert found.schema == expected.schema
        order = [*keys, "window_start"]
        assert_same(ordered(found.to_pylist(), order), ordered(expected.to_pylist(), order))
    kept.close()


def grouped_by_spark(
    engine: SparkEngine,
    rows: list[dict[str, object]],
    spec: PartialWindowAggregateSpec,
    before: Callable[[DataFrame], DataFrame] = doubled,
) -> pa.Table:
    loader = BundleLoader(engine.session, engine.bundles, ROWS)
    with loader.dataframe(table(rows).to_batches()) as frame:
        right = composed.partial_window_aggregate(before(frame), spec, cores=1)
        return right.toArrow().cast(to_arrow(right.schema))


@KEYS_AND_WINDOWS
def test_a_row_is_a_partial_result(
    engine: SparkEngine, keys: tuple[str, ...], window: WindowSpec | None
) -> None:
    plans, spec, plan = cached_plan(engine, keys, window, BY_ROW, by_row=True)
    assert plan.cached.grouping is None
    without_time = [row | {"at": None} for row in some_rows(3, 2)]
    for rows in (some_rows(1), some_rows(2, 3), without_time):
        expected = grouped_by_spark(engine, rows, spec)
        results = list(plans.run(table(rows).to_batches(), expected.schema, "test"))
        found = pa.Table.from_batches(results)
        assert found.schema == expected.schema and found.num_rows == len(rows)
        order = [*keys, *(["window_start", "window_end"] if window else [])]
        merged = merge_partials(found, order, spec.merges | {"_rows": "sum"})
        assert_same(ordered(merged.to_pylist(), order), ordered(expected.to_pylist(), order))
    plans.close()


@pytest.mark.parametrize(
    ("keys", "window", "aggregate"),
    [
        (("ratio",), None, "count(*) AS a"),  # two zeros, and NaN
        (("key",), SessionSpec(gap_us=5), "count(*) AS a"),
        (("key",), None, "count(DISTINCT n) AS a"),
        (("key",), None, "collect_list(n) AS a"),
        (("key",), None, "min_by(word, at) AS a"),
        (("key",), None, "approx_count_distinct(word) AS a"),
        (("key",), None, "sum(CAST(price AS DECIMAL(28, 3))) AS a"),  # may have lost digits
    ],
)
def test_a_row_is_no_partial_result(
    engine: SparkEngine, keys: tuple[str, ...], window: WindowSpec | None, aggregate: str
) -> None:
    rows = composed.empty_frame(engine.session, to_spark(ROWS))
    spec = aggregate_spec(keys, window, [aggregate])
    aggregated = composed.partial_window_aggregate(rows, spec, cores=0)
    assert rows_as_partials(rows, spec, aggregated) is None


def ordered(rows: list[dict[str, object]], by: list[str]) -> list[dict[str, object]]:
    """`assert_same` leaves rows in order that differ in none of its keys."""
    return sorted(rows, key=lambda row: repr([row.get(name) for name in by]))


def test_sums_of_decimals_have_more_digits_than_these(engine: SparkEngine) -> None:
    """A million of the largest ones of each type, and of the smallest."""
    largest = {"price": Decimal("999999999.999"), "n": 2**63 - 1}
    rows = pa.Table.from_pylist([{"key": "a", **largest}], schema=ROWS)
    for key, sign in (("b", 1), ("b", -1), ("a", 1)):
        each = {name: sign * value for name, value in largest.items()} | {"key": key}
        rows = pa.concat_tables([rows, pa.Table.from_pylist([each] * 300_000, schema=ROWS)])
    aggregates = ["sum(price) AS x", "sum(CAST(n AS DECIMAL(27, 0))) AS y", "avg(price) AS z"]
    kept, _, plan = cached_plan(engine, ("key",), None, aggregates)
    assert plan.cached.grouping is not None
    schema = to_arrow(plan.cached.frame.schema)
    found = pa.Table.from_batches(kept.run(rows.to_batches(), schema, "test"))
    merged = merge_partials(found, ["key"], plan.cached.grouping.merges | {"_rows": "sum"})
    sums = {row["key"]: row for row in merged.to_pylist()}
    for name, value in (("_p0_sum", largest["price"]), ("_p1_sum", largest["n"])):
        assert sums["a"][name] == 300_001 * value
        assert sums["b"][name] == 0
    kept.close()


def test_a_row_without_event_time_has_a_pane_without_start(engine: SparkEngine) -> None:
    window = TumblingSpec(size_us=3_000_000)
    kept, _, plan = cached_plan(engine, ("key",), window, ["max(word) AS word"])
    assert plan.cached.grouping is not None
    rows = pa.Table.from_pylist([{"key": "a", "word": "b"}], schema=ROWS)
    (found,) = kept.run(rows.to_batches(), to_arrow(plan.cached.frame.schema), "test")
    (row,) = found.to_pylist()
    assert (row["window_start"], row["window_end"], row["_p0_max"]) == (None, None, "b")
    kept.close()


def test_what_arrow_would_group_in_another_way_spark_groups(engine: SparkEngine) -> None:
    rows = composed.empty_frame(engine.session, to_spark(ROWS))

    def given(keys: tuple[str, ...], window: WindowSpec | None, *aggregates: str) -> object:
        spec = aggregate_spec(keys, window, [*aggregates])
        return row_partials(rows, spec, composed.partial_window_aggregate(rows, spec, cores=0))

    assert given(("key",), None, "max(word) AS a") is not None
    assert given(("key",), None, "sum(n) AS a", "max(day + 1) AS b") is None, "numbers"
    assert given(("key",), None, "sum(n) AS a", "sum(price + 1) AS b") is not None
    assert given(("ratio",), None, "max(word) AS a") is None, "a key with two zeros"
    session = DynamicSessionSpec(gap="INTERVAL 5 SECONDS")
    assert given(("key",), session, "max(word) AS a") is None
    for aggregate in BY_SPARK:
        assert given(("key",), None, "max(word) AS word", aggregate) is None, aggregate


AS_THEY_ARE = [
    "count(*) AS a1",
    "sum(n) AS b1",
    "sum(ratio) AS b2",
    "min(n) AS c1",
    "max(`at`) AS c2",
    "max(Ratio) AS c3",
    "min(part) AS c4",
    "max(5) AS c5",
    "count(n) AS g1",
    "sum(small) AS f1",  # of numbers of another type
    "avg(part) AS f2",
    "sum(price) AS f3",
    "avg(price) AS f4",
    "count(*) FILTER (WHERE n > 5) AS h1",
    "count(*) FILTER (WHERE part = 0 OR n >= 0 AND n < 9) AS h2",
]
NOT_ONLY_NUMBERS = [
    "min(word) AS d1",
    "max(struct(small, word, n, 'x', at)) AS d2",
    "min_by(word, at) AS d3",
    "count(DISTINCT n) AS e1",
    "collect_set(word) AS e2",
    "collect_list(struct(ratio, price)) AS e3",
    "count(DISTINCT word) FILTER (WHERE n < 7) AS e4",
    "count(DISTINCT word) AS e5",
]


@pytest.mark.one_in(3)
@pytest.mark.parametrize("aggregates", [AS_THEY_ARE, AS_THEY_ARE + NOT_ONLY_NUMBERS], ids=len)
@pytest.mark.parametrize(
    ("keys", "window"),
    [
        (("key", "part"), None),
        (("all", "KEY"), TumblingSpec(size_us=10_000_000)),
        (("day", "one"), SlidingSpec(size_us=12_000_000, slide_us=8_000_000, offset_us=7)),
        ((), TumblingSpec(size_us=1)),
        (("key", "part"), SESSIONS),
        ((), SessionSpec(gap_us=1)),
    ],
    ids=str,
)
def test_columns_that_are_grouped_as_they_are_do_not_go_through_spark(
    engine: SparkEngine, keys: tuple[str, ...], window: WindowSpec | None, aggregates: list[str]
) -> None:
    spec = aggregate_spec(keys, window, aggregates)

    def with_constants(df: DataFrame) -> DataFrame:
        return df.selectExpr("*", "'all' AS all", "1 AS one")

    plans = column_plans(engine, with_constants, spec)
    plan = plans.plan()
    assert isinstance(plan, GroupedColumns) and not plan._computed
    without_time = [row | {"at": None} for row in some_rows(3, 2)]
    for rows in (some_rows(1), some_rows(2, 3), without_time):
        batches = table(rows).to_batches()
        with BundleLoader(engine.session, engine.bundles, ROWS).dataframe(batches) as frame:
            given = with_constants(frame)
            right = composed.partial_window_aggregate(given, spec, cores=1)
            schema = to_arrow(right.schema)
            expected = right.toArrow().cast(schema).to_pylist()
        needed = table(rows).select([name for name in ROWS.names if name in plan.columns])
        (found,) = plan.run(needed, schema, "test")
        assert found.schema == schema
        order = [*keys, "window_start"]
        assert_same(ordered(found.to_pylist(), order), ordered(expected, order))
        assert plan.latest_us == max((row["at"] for row in rows if row["at"]), default=None)
    plans.close()


def test_a_column_divides_sessions(engine: SparkEngine) -> None:
    aggregates = [*AS_THEY_ARE, "max(word) AS z"]
    spec = replace(aggregate_spec(("key",), SESSIONS, aggregates), part_column="part")
    rows = [*some_rows(4), *({**row, "at": None} for row in some_rows(5))]
    expected = grouped_by_spark(engine, rows, spec)
    plans = column_plans(engine, doubled, spec)
    plan = plans.plan()
    assert isinstance(plan, GroupedColumns)
    needed = table(rows).select([name for name in ROWS.names if name in plan.columns])
    (found,) = plan.run(needed, expected.schema, "test")
    order = ["key", "window_start", "window_end", "_rows"]
    assert_same(ordered(found.to_pylist(), order), ordered(expected.to_pylist(), order))
    plans.close()


def test_bundles_of_numbers_that_are_columns_are_grouped_by_arrow(engine: SparkEngine) -> None:
    spec = aggregate_spec(("key",), SESSIONS, AS_THEY_ARE)
    rows = some_rows(6, 2)
    for made in (1, 0):  # the second operator gets the plan of the first one
        meter = PlanMeter(TaskClock())
        plans = BundlePlans(engine, ROWS, [spec], meter)
        plans.make()
        assert isinstance(plans._plan, GroupedColumns) and not plans._plan._computed
        expected = grouped_by_spark(engine, rows, spec, lambda df: df)
        (found,) = plans.run(table(rows).to_batches(), expected.schema, "test")
        order = ["key", "window_start"]
        assert_same(ordered(found.to_pylist(), order), ordered(expected.to_pylist(), order))
        assert (meter.counts.made, meter.counts.cached_runs) == (made, 1)
        plans.close()


@pytest.mark.parametrize(
    "aggregate",
    [
        "sum(n + 1) AS a",
        "sum(CAST(n AS DECIMAL(8, 0))) AS a",
        "sum(n) FILTER (WHERE flag) AS a",
    ],
)
def test_what_has_to_be_computed_goes_through_spark(engine: SparkEngine, aggregate: str) -> None:
    plans = column_plans(engine, lambda df: df, aggregate_spec(("key",), None, [aggregate]))
    assert isinstance(plans.plan(), ColumnPlan)
    plans.close()


OF_TIMES = (
    "date_format(at, 'yyyy-MM-dd') AS date",
    "concat(hour(at), ':', minute(at), ':', second(at), to_date(at)) AS clock",
)
WITH_CONDITIONS = [
    "count(*) AS a1",
    "count(*) FILTER (WHERE n < 0) AS a2",
    "count(*) FILTER (WHERE n >= 0 AND (flag OR ratio > 1)) AS a3",
    "count(flag) FILTER (WHERE word <> 'x') AS a4",
    "count(n, ratio) AS a5",
    "count(ratio) AS a6",
    "count(word) AS a7",
    "count(clock) AS a8",
    "sum(n) AS b1",
    "sum(small) AS b2",
    "sum(ratio) AS b3",
    "avg(n) AS b4",
    "avg(ratio) AS b5",
    "min(n) AS c1",
    "max(n) AS c2",
    "min(ratio) AS c3",
    "max(single) AS c4",
    "min(at) AS c5",
    "max(day) AS c6",
]
_NUMBERS = st.sampled_from([0.0, -0.0, 0.5, -2.0, float("nan"), float("inf"), -float("inf")])
_TIMES_US = st.builds(
    lambda second, micros: second * 1_000_000 + micros,
    # Days that start at 1 o'clock, local mean time, and the epoch.
    st.sampled_from([0, -1, 1_540_695_600, 1_540_695_599, -2_208_988_800, -3_000_000_001])
    | st.integers(-(10**10), 10**10),
    st.sampled_from([0, 1, 999_999]),
)
_ROWS = st.lists(
    st.fixed_dictionaries(
        {
            "part": st.sampled_from([None, 0, -1]),
            "at": st.none() | _TIMES_US,
            "n": st.none() | st.integers(-(2**40), 2**40),
            "small": st.none() | st.integers(-(2**15), 2**15 - 1),
            "ratio": st.none() | _NUMBERS,
            "single": st.none() | _NUMBERS,
            "word": st.sampled_from([None, "x", ""]),
            "flag": st.none() | st.booleans(),
            "day": st.none() | st.integers(-(10**5), 10**5),
        }
    ),
    min_size=1,
    max_size=60,
)


@pytest.mark.parametrize(
    ("zone", "others"),
    [
        ("UTC", []),
        ("America/Sao_Paulo", ["count(DISTINCT n) FILTER (WHERE flag) AS d1"]),
        ("Europe/Amsterdam", ["max(struct(small, clock, n)) AS d1", "collect_set(word) AS d2"]),
    ],
)
def test_conditions_and_formatted_times_are_computed_for_grouped_columns(
    engine: SparkEngine, monkeypatch: pytest.MonkeyPatch, zone: str, others: list[str]
) -> None:
    spec = aggregate_spec(("part", "date", "clock"), None, WITH_CONDITIONS + others)

    def with_texts(df: DataFrame) -> DataFrame:
        return df.selectExpr("*", *OF_TIMES)

    with session_zone(engine, zone):
        plans = column_plans(engine, with_texts, spec)
        plan = plans.plan()
        assert isinstance(plan, GroupedColumns)
        monkeypatch.setattr(plan, "_rows", 40)

        @settings(max_examples=8)
        @given(rows=_ROWS)
        def equal_to_spark(rows: list[dict[str, object]]) -> None:
            given = pa.Table.from_pylist(rows, schema=ROWS)
            with BundleLoader(engine.session, engine.bundles, ROWS).dataframe(
                given.to_batches()
            ) as frame:
                texts = with_texts(frame)
                right = composed.partial_window_aggregate(texts, spec, cores=1)
                schema = to_arrow(right.schema)
                expected = right.toArrow().cast(schema)
            found = list(plan.run(given.select(sorted(plan.columns)), schema, "test"))
            merged = merge_partials(
                pa.Table.from_batches(found), spec.key_columns, merges_of(spec.aggregates)
            )
            assert_same(
                ordered(merged.to_pylist(), [*spec.key_columns]),
                ordered(
                    merge_partials(
                        expected, spec.key_columns, merges_of(spec.aggregates)
                    ).to_pylist(),
                    [*spec.key_columns],
                ),
            )

        equal_to_spark()
        plans.close()


@contextmanager
def session_zone(engine: SparkEngine, zone: str) -> Iterator[None]:
    with temporary_conf(engine.session, {"spark.sql.session.timeZone": zone}):
        yield


@pytest.mark.parametrize(
    ("key", "by_second"),
    [
        ("date_format(at, 'HH')", True),
        ("CASE WHEN hour(at) > 8 THEN 'day' END", True),
        ("CAST(at AS DATE)", True),
        ("date_format(at, 'HH:mm:ss.SSS')", False),
        ("date_format(CAST(day AS TIMESTAMP), 'HH')", False),
        ("concat(date_format(at, 'HH'), word)", False),
        ("unix_timestamp(at)", False),  # rounds towards zero
        ("date_trunc('millisecond', at)", False),
    ],
)
def test_what_is_the_same_for_a_second_is_computed_once_for_it(
    engine: SparkEngine, key: str, by_second: bool
) -> None:
    rows = frame(engine, to_spark(ROWS)).selectExpr(f"{key} AS key")
    (found,) = leaf_columns(engine, rows._jdf.queryExecution().executedPlan()) or ()
    assert found == (BySecond("at") if by_second else None)


IN_ARROW = [
    "IF(n < 5, 1, 0)",
    "IF(n >= -3 AND n <= 3, 4, 0) | IF(n > 3 OR small < 0, 2, 0) | IF(n = 0, 1, 0)",
    "IF(true, 1, 0) | IF(7 > small, 2, 0)",
    "IF(small >= 32767, 1, 0) | IF(-32768 = small, 2, 0)",
    "IF(CAST(small AS BIGINT) > 9223372036854775806, 1, 0)",
    "IF(n BETWEEN -9223372036854775808 AND 0, 1073741824, 0)",
    "IF(NOT (n > 1), -1, 2)",
]
IN_SPARK = [
    "IF(n IS NULL OR n > 1, 1, 0)",
    "IF(flag, 1, 0)",
    "IF(ratio > 1, 1, 0)",
    "IF(word < 'x', 1, 0)",
    "IF(n + 1 > 1, 1, 0)",
    "IF(n > small, 1, 0)",
    "IF(n > 1, small, 0)",
    "IF(n > 1, 1L, 0L)",
]


def test_conditions_that_compare_integers_are_computed_from_columns(engine: SparkEngine) -> None:
    extremes = [None, -(2**63), -(2**40), -3, 0, 1, 4, 5, 2**63 - 1]
    smalls = [None, -(2**15), -1, 0, 6, 7, 2**15 - 1]
    pairs = list(itertools.product(extremes, smalls))
    given = pa.Table.from_pylist([{"n": n, "small": small} for n, small in pairs], schema=ROWS)
    physical = (
        frame(engine, to_spark(ROWS))
        .selectExpr(*(f"{each} AS _{place}" for place, each in enumerate(IN_ARROW + IN_SPARK)))
        ._jdf.queryExecution()
        .executedPlan()
    )
    found = leaf_columns(engine, physical)
    assert found is not None
    by_arrow = [isinstance(each, LeafColumn) for each in found]
    assert by_arrow == [True] * len(IN_ARROW) + [False] * len(IN_SPARK)
    (rows,) = given.combine_chunks().slice(1).to_batches()
    with BundleLoader(engine.session, engine.bundles, ROWS).dataframe([rows]) as right:
        for each, column in zip(IN_ARROW, found, strict=False):
            assert isinstance(column, LeafColumn) and column.reads <= {"n", "small"}
            expected = right.selectExpr(f"{each} AS found").toArrow().column("found")
            assert decoded(column.of(rows)).equals(expected.combine_chunks()), each


def test_rows_that_are_filtered_go_through_spark(engine: SparkEngine) -> None:
    spec = aggregate_spec(("key",), None, ["count(*) AS a"])
    plans = column_plans(engine, lambda df: df.where("n > 0"), spec)
    assert isinstance(plans.plan(), ColumnPlan)
    plans.close()


def column_plans(
    engine: SparkEngine,
    function: Callable[[DataFrame], DataFrame],
    spec: PartialWindowAggregateSpec,
) -> ColumnPlans:
    specs = [TransformSpec(function=function), spec]
    watermarks = WatermarkSpec(column="at", max_out_of_orderness_us=0)
    return ColumnPlans(engine, to_spark(ROWS), specs, watermarks, PlanMeter(TaskClock()))


def test_the_aggregate_of_a_plan_is_built_once(
    engine: SparkEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is the same each time: Spark refuses aggregates of random values."""
    built: list[str] = []
    build = composed.partial_window_aggregate

    def counted(frame: DataFrame, spec: PartialWindowAggregateSpec, *, cores: int) -> DataFrame:
        built.append("")
        return build(frame, spec, cores=cores)

    monkeypatch.setattr(composed, "partial_window_aggregate", counted)
    kept, _, _ = cached_plan(engine, ("key",), None, ["sum(n) AS a"])
    kept.close()
    assert len(built) == 1
    rows = composed.empty_frame(engine.session, to_spark(ROWS))
    with pytest.raises(AnalysisException, match="NONDETERMINISTIC"):
        build(rows, aggregate_spec(("key",), None, ["sum(n * rand()) AS a"]), cores=0)


@pytest.mark.parametrize("keys", [("key",), ()], ids=["key", "no key"])
def test_long_texts_are_grouped_where_they_have_been_read(
    engine: SparkEngine, monkeypatch: pytest.MonkeyPatch, keys: tuple[str, ...]
) -> None:
    monkeypatch.setattr(grouped_columns, "_BATCH_ROWS", 10)
    spec = aggregate_spec(
        keys,
        TumblingSpec(size_us=40_000_000),
        ["max(struct(n, word, part)) AS a", "min_by(word, at) AS b", "avg(ratio) AS c"],
    )
    rows = table([row | {"word": f"{row['word']}".ljust(50)} for row in some_rows(5)])
    whole, pieces = rows.combine_chunks(), pa.concat_tables([rows.slice(0, 90), rows.slice(90)])
    plans = column_plans(engine, lambda df: df, spec)
    plan = plans.plan()
    assert isinstance(plan, GroupedColumns)
    schema = to_arrow(plan.frame.schema)
    batches: list[int] = []
    grouped = plan._grouped
    monkeypatch.setattr(
        plan, "_grouped", lambda rows, *rest: batches.append(len(rows)) or grouped(rows, *rest)
    )
    found = []
    for each in (whole, pieces):
        (batch,) = plan.run(each.select(sorted(plan.columns)), schema, "test")
        found.append(ordered(batch.to_pylist(), [*keys, "window_start"]))
    assert batches == [400, 90, 310]
    assert_same(*found)
    plans.close()


def test_more_rows_are_grouped_at_once_if_keys_are_many(
    engine: SparkEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(grouped_columns, "_GROUPED_ROWS", 100)
    rows = table(some_rows(4))
    for key, expected in (("part", [100, 100, 100, 100]), ("n", [100, 300])):
        plans = column_plans(engine, lambda df: df, aggregate_spec((key,), None, ["count(*) AS a"]))
        plan = plans.plan()
        assert isinstance(plan, GroupedColumns)
        schema = to_arrow(plan.frame.schema)
        found = list(plan.run(rows.select(sorted(plan.columns)), schema, "test"))
        assert [pc.sum(batch["_rows"]).as_py() for batch in found] == expected
        plans.close()
