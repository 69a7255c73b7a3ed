"""Bundles run by a cached plan give the same rows as by a fresh plan, whatever the plan, the
rows and the bundles.
"""

from __future__ import annotations

import gc
import itertools
import random
import threading
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from firesteel.common.task_metrics import Choice
from firesteel.errors import FiresteelError
from firesteel.operators import (
    AggregateExpression,
    PartialWindowAggregateSpec,
    SessionSpec,
    Spec,
    TransformSpec,
    TumblingSpec,
    WindowSpec,
)
from firesteel.plan.aggregates.parse import parse_aggregates
from firesteel.testing import OperatorHarness
from taskexecutor.executor.columnar import choose
from taskexecutor.executor.columnar.cached_plans import composed
from taskexecutor.executor.columnar.cached_plans.reusable_plan import NotReusable
from taskexecutor.executor.columnar.columns import rows, slabs
from taskexecutor.executor.columnar.columns.bundles import ColumnBundles
from taskexecutor.executor.columnar.grouping.merging import merge_partials
from taskexecutor.executor.columnar.jvm.engine import SparkEngine
from taskexecutor.executor.columnar.jvm.transfer import BundleLoader, collect
from taskexecutor.executor.columnar.runners.bundle_plans import BundlePlans
from taskexecutor.executor.columnar.runners.messages import MessageBundles
from taskexecutor.executor.columnar.schemas import to_arrow, to_spark
from taskexecutor.executor.columnar.stages.transform_stage import SparkTransformStage
from taskexecutor.executor.timing.clock import PlanMeter, TaskClock, TimeKind
from tests.integration.conftest import Slot, session_conf
from tests.long import fewer

SCHEMA = pa.schema([("k", pa.string()), ("x", pa.int64()), ("t", pa.timestamp("us", "UTC"))])
CALLS = itertools.count()
ROWS = st.lists(
    st.fixed_dictionaries(
        {
            "k": st.none() | st.text("ab", max_size=2),
            "x": st.none() | st.integers(-(2**40), 2**40),
            "t": st.integers(0, 5_000_000),
        }
    ),
    min_size=1,
    max_size=40,
)


@pytest.fixture(scope="module")
def engine(slot: Slot) -> Iterator[SparkEngine]:
    engine = slot.spark()
    with session_conf(engine, {"spark.sql.session.timeZone": "Asia/Kolkata"}):
        yield engine


def transforms(*functions: Any) -> list[Spec]:
    return [TransformSpec(function=function) for function in functions]


SECONDS = TumblingSpec(size_us=1_000_000)


def window_aggregate(*expressions: str, window: WindowSpec = SECONDS) -> PartialWindowAggregateSpec:
    """Spark groups the rows, because the contribution of a row is unknown."""
    partial = {f"_p{number}": text for number, text in enumerate(expressions)}
    merge = {name: text.partition("(")[0] for name, text in partial.items()}
    aggregates = (
        AggregateExpression(sql="", name="total", partial=partial, merge=merge, final=""),
    )
    return PartialWindowAggregateSpec(
        key_columns=("k",), window=window, time_column="t", aggregates=aggregates
    )


def batch(rows: list[dict[str, Any]]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist(rows, schema=SCHEMA)


def planned(
    engine: SparkEngine, specs: list[Spec], rows: list[dict[str, Any]]
) -> tuple[pa.Schema, list[dict[str, Any]]]:
    """The oracle: runs a fresh plan."""
    with BundleLoader(engine.session, engine.bundles, SCHEMA).dataframe([batch(rows)]) as frame:
        result = composed.apply(frame, specs, cores=engine.cores)
        schema = to_arrow(result.schema)
        return schema, [
            row
            for each in collect(result, schema, PlanMeter(TaskClock()))
            for row in each.to_pylist()
        ]


def run(
    kept: BundlePlans, rows: list[dict[str, Any]], schema: pa.Schema, group: str = "test"
) -> list[dict[str, Any]]:
    return [row for each in kept.run([batch(rows)], schema, group) for row in each.to_pylist()]


def made(engine: SparkEngine, specs: list[Spec]) -> BundlePlans:
    kept = BundlePlans(engine, SCHEMA, specs, PlanMeter(TaskClock()))
    kept.make()
    assert isinstance(kept._plan, ColumnBundles)
    return kept


def ordered(rows: list[dict[str, Any]]) -> list[str]:
    return sorted(map(repr, rows))


NUMBERS = ("count(1)", "sum(x)", "collect_list(x)")
TEXTS = ("min(v)", "max(struct(v, x))", "max_by(k, v) FILTER (WHERE x > 0)", "sum(x)")
PROGRAMS = {
    "filter and project": transforms(
        lambda df: df.where("x > 0").selectExpr(
            "k", "x * 2 AS d", "date_format(t, 'HH:mm:ss.S') AS at"
        )
    ),
    "two transforms": transforms(
        lambda df: df.withColumn("y", df.x % 7), lambda df: df.where("y = 3").drop("x")
    ),
    "rows to many": transforms(
        lambda df: df.selectExpr("k", "explode(sequence(0, abs(x) % 5)) AS n", "t")
    ),
    "nested": transforms(
        lambda df: df.selectExpr(
            "struct(k, array(x, x + 1) AS l) AS s", "map(coalesce(k, ''), x) AS m"
        )
    ),
    "nothing of the rows": transforms(lambda df: df.selectExpr("1 AS one")),
    "stacked": transforms(
        lambda df: df.selectExpr("k", "stack(2, 'a', x, 'b', -x) AS (name, value)")
    ),
    "partial aggregate": [
        *transforms(lambda df: df.where("x IS NOT NULL")),
        window_aggregate(*NUMBERS),
    ],
    "sessions": [window_aggregate("sum(x)", window=SessionSpec(gap_us=700_000))],
    "texts and structs": [
        *transforms(lambda df: df.selectExpr("*", "concat('v', x) AS v")),
        window_aggregate(*TEXTS),
    ],
}


@pytest.mark.one_in(3)
@pytest.mark.parametrize("name", PROGRAMS)
def test_as_by_a_plan_of_their_own(engine: SparkEngine, name: str) -> None:
    specs = PROGRAMS[name]
    kept = made(engine, specs)

    @settings(max_examples=fewer(15))
    @given(ROWS)
    def every_bundle(rows: list[dict[str, Any]]) -> None:
        schema, right = planned(engine, specs, rows)
        assert ordered(run(kept, rows, schema)) == ordered(right)

    every_bundle()
    kept.close()


@pytest.mark.parametrize("most_keys", [128, 3], ids=["in memory", "spilling"])
def test_texts_are_aggregated_without_sorting_all_rows(engine: SparkEngine, most_keys: int) -> None:
    limit = "spark.sql.objectHashAggregate.sortBased.fallbackThreshold"
    with session_conf(engine, {limit: str(most_keys)}):
        kept = made(engine, PROGRAMS["texts and structs"])
    assert kept._plan is not None
    physical = str(kept._plan.cached.physical.toString())
    assert physical.count("Aggregate(") == physical.count("ObjectHashAggregate(") == 1
    assert "Sort" not in physical
    rows = [{"k": "abcdef"[x % 6], "x": x, "t": x % 7 * 400_000} for x in range(300)]
    schema, right = planned(engine, PROGRAMS["texts and structs"], rows)
    assert ordered(run(kept, rows, schema)) == ordered(right)
    kept.close()


def parsed_aggregate(*aggregates: str, window: WindowSpec = SECONDS) -> PartialWindowAggregateSpec:
    return PartialWindowAggregateSpec(
        key_columns=("k",),
        window=window,
        time_column="t",
        aggregates=parse_aggregates(aggregates),
    )


@pytest.mark.parametrize("rows", [1, choose.FEW_ROWS])
@pytest.mark.parametrize("window", [TumblingSpec(size_us=10), SessionSpec(gap_us=10)])
def test_a_window_of_rows_without_a_time_fails(
    engine: SparkEngine, window: WindowSpec, rows: int
) -> None:
    stage = SparkTransformStage([parsed_aggregate("count(*) AS n", window=window)], None)
    harness = OperatorHarness(stage, [SCHEMA], spark=engine.session).open()
    harness.process(batch([{"k": "a", "x": 1, "t": t} for t in (*[5] * rows, None)]))
    with pytest.raises(FiresteelError, match="event time column 't' is null in some rows; drop"):
        harness.flush()
    harness.close()


@pytest.mark.parametrize(
    "part_bytes", [32 * 2**20, 100_000, 1], ids=["whole", "in parts", "row by row"]
)
def test_many_rows_and_many_batches(
    engine: SparkEngine, part_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("taskexecutor.executor.columnar.columns.bundles._PART_BYTES", part_bytes)
    specs = transforms(
        lambda df: df.where("x % 2 = 0").selectExpr("x", "repeat('long', 50) AS text")
    )
    kept = made(engine, specs)
    count = 70_000 if part_bytes > 1 else 20
    rows = [{"k": "a", "x": x, "t": 0} for x in range(count)]
    batches = [batch(rows[at : at + 9_999]) for at in range(0, len(rows), 9_999)]
    schema = pa.schema([("x", pa.int64()), ("text", pa.string())])
    found = list(kept.run(batches, schema, "test"))
    assert [x for each in found for x in each["x"].to_pylist()] == list(range(0, count, 2))
    assert all(each.schema.equals(schema) for each in found)
    kept.close()


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        (lambda df: df.where(f"x >= {df.count() * 0}"), "a function reads its rows"),
        (lambda df: df.where("current_timestamp() IS NOT NULL"), "it contains the current time"),
        (lambda df: df.where("rand() >= 0"), "it differs from call to call"),
        (lambda df: df.where(f"x > -{next(CALLS) + 10_000}"), "it differs from call to call"),
        (lambda df: df.orderBy("x"), "it contains a sort (SortExec)"),
        (lambda df: df.where("x <= (SELECT max(id) FROM range(100000))"), "a subquery"),
        (
            lambda df: df.join(df.sparkSession.range(100).toDF("x"), "x"),
            "it contains a join with rows from outside",
        ),
        (lambda df: 1 / (df.limit(5).count() * 0) if df.isEmpty() else df, "ZeroDivisionError"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_plans_that_may_not_be_cached(engine: SparkEngine, function: Any, reason: str) -> None:
    operator = SparkTransformStage(transforms(function), None)
    harness = OperatorHarness(operator, [SCHEMA], spark=engine.session).open()
    for first in (0, 50):
        harness.process(batch([{"k": "a", "x": x, "t": 0} for x in range(first, first + 50)]))
        harness.flush()
    harness.end()
    assert sorted(row["x"] for row in harness.rows()) == list(range(100))
    assert operator._plans is not None
    assert operator._plans.frame is None
    counts = harness.metrics.plan_counts
    assert (counts.made, counts.cached_runs) == (2, 0)
    assert reason in counts.not_cached
    assert counts.choice == Choice("", choose.NEW_PLAN, f"plan: {counts.not_cached}")


def test_only_large_bundles_are_grouped_before_the_exchange(engine: SparkEngine) -> None:
    spec = parsed_aggregate("count(*) AS n", "sum(x) AS total", "max(x + 1) AS most")
    operator = SparkTransformStage([spec], None)
    harness = OperatorHarness(operator, [SCHEMA], spark=engine.session).open()
    sizes = (3, choose.FEW_ROWS, choose.FEW_ROWS + 1, 2, 5 * choose.FEW_ROWS)
    emitted: list[int] = []
    for size in sizes:
        harness.process(batch([{"k": "ab"[x % 2], "x": x, "t": 0} for x in range(size)]))
        harness.flush()
        emitted.append(len(harness.rows()) - sum(emitted))
    harness.end()
    assert emitted == [3, choose.FEW_ROWS, 2, 2, 2]
    merges = spec.merges | {"_rows": "sum"}
    table = pa.Table.from_pylist(harness.rows())
    merged = merge_partials(table, ["k", "window_start", "window_end"], merges)
    counts = {row["k"]: row["_rows"] for row in merged.to_pylist()}
    assert counts == {"a": sum((n + 1) // 2 for n in sizes), "b": sum(n // 2 for n in sizes)}
    assert harness.metrics.plan_counts.made == 2


TWICE = pa.schema([("x", pa.int64()), ("X", pa.int64())])  # one name, by Spark's rules


@pytest.mark.parametrize(
    ("schema", "function"),
    [(SCHEMA, lambda df: df.selectExpr("x", "NULL AS c")), (TWICE, lambda df: df.where("true"))],
    ids=["a column of nothing", "a name twice"],
)
def test_what_columns_cannot_have_goes_row_by_row(
    engine: SparkEngine, schema: pa.Schema, function: Any
) -> None:
    kept = BundlePlans(engine, schema, transforms(function), PlanMeter(TaskClock()))
    kept.make()
    assert isinstance(kept._plan, MessageBundles)
    assert kept.frame is not None
    numbers = [dict.fromkeys(schema.names, n) | {"k": "a"} for n in range(5)]
    out = to_arrow(kept.frame.schema)
    found = list(kept.run([pa.RecordBatch.from_pylist(numbers, schema=schema)], out, "test"))
    assert [row["x"] for each in found for row in each.to_pylist()] == list(range(5))
    kept.close()


def test_another_table_in_place_of_the_input_is_not_taken_for_it(engine: SparkEngine) -> None:
    other = rows.frame(engine, to_spark(SCHEMA))
    leaf = other._jdf.queryExecution().executedPlan()
    assert rows.columns_read(engine, leaf) == SCHEMA.names
    with pytest.raises(NotReusable, match="does not read its input"):
        rows.columns_read(engine, engine.session.range(1)._jdf.queryExecution().executedPlan())
    both = other.crossJoin(rows.frame(engine, to_spark(SCHEMA)))
    with pytest.raises(NotReusable, match="reads other data as well"):
        rows.columns_read(engine, both._jdf.queryExecution().executedPlan())


def test_only_columns_that_the_plan_needs_are_passed(engine: SparkEngine) -> None:
    kept = made(engine, transforms(lambda df: df.where("x > 1").select("x")))
    assert kept._plan.columns == {"x"}  # type: ignore[union-attr]
    schema = pa.schema([("x", pa.int64())])
    assert run(kept, [{"k": "a" * 10, "x": x, "t": 0} for x in range(4)], schema) == [
        {"x": 2},
        {"x": 3},
    ]
    kept.close()


def test_the_function_is_not_called_for_every_bundle(engine: SparkEngine) -> None:
    calls = []
    operator = SparkTransformStage(
        transforms(lambda df: calls.append(1) or df.where("x > 0")), SCHEMA
    )
    harness = OperatorHarness(operator, [SCHEMA], output_schema=SCHEMA, spark=engine.session).open()
    for x in range(5):
        harness.process(batch([{"k": "a", "x": x, "t": 0}]))
        harness.flush()
        if x == 0:
            made = len(calls)
    harness.end()
    assert len(harness.rows()) == 4
    assert len(calls) == made
    counts = harness.metrics.plan_counts
    assert (counts.made, counts.cached_runs, counts.not_cached) == (1, 5, "")
    spent_ns = harness.environment.clock.read_ns()
    assert all(
        spent_ns[kind] > 0 for kind in (TimeKind.PLANNING, TimeKind.SPARK, TimeKind.CONVERTING)
    )


def test_errors_of_a_row_are_reported_and_nothing_is_left(engine: SparkEngine) -> None:
    gc.collect()
    before = slabs.total_bytes()
    kept = made(engine, transforms(lambda df: df.selectExpr("10 / x AS y")))
    schema = pa.schema([("y", pa.float64())])
    for _ in range(2):
        with pytest.raises(Exception, match="DIVIDE_BY_ZERO"):
            run(kept, [{"k": "a", "x": 0, "t": 0}], schema)
        assert run(kept, [{"k": "a", "x": 4, "t": 0}], schema) == [{"y": 2.5}]
    assert engine.local_tasks.used_bytes == 0
    assert slabs.total_bytes() > before
    kept.close()
    gc.collect()  # the errors' frames
    assert slabs.total_bytes() == before


def test_results_that_are_given_up_leave_no_memory(engine: SparkEngine) -> None:
    kept = made(engine, [window_aggregate(*NUMBERS)])
    rows = [{"k": str(x), "x": x, "t": 0} for x in range(70_000)]
    schema, _ = planned(engine, [window_aggregate(*NUMBERS)], rows[:1])
    result = kept.run([batch(rows)], schema, "test")
    assert next(result).num_rows > 0
    result.close()
    assert engine.local_tasks.used_bytes == 0
    kept.close()


def test_concurrent_tasks(engine: SparkEngine) -> None:
    rows = [{"k": "a", "x": x, "t": 0} for x in range(300)]
    schema, _ = planned(engine, [window_aggregate(*NUMBERS)], rows)
    plans = [
        made(
            engine,
            [*transforms(lambda df, n=n: df.where(f"x % 3 = {n}")), window_aggregate(*NUMBERS)],
        )
        for n in range(3)
    ]
    found: dict[int, list[int]] = {}

    def work(number: int) -> None:
        found[number] = [
            row["_p1"]
            for _ in range(10)
            for row in run(plans[number], rows, schema, f"test {number}")
        ]

    threads = [threading.Thread(target=work, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for plan in plans:
        plan.close()
    assert found == {number: [sum(range(number, 300, 3))] * 10 for number in range(3)}


def test_functions_of_a_time_s_second(engine: SparkEngine) -> None:
    """Evaluated once for each, in a zone whose distance from UTC once had seconds."""
    chance = random.Random(1)
    boundaries = [chance.randrange(-4_000_000_000, 4_000_000_000) * 1_000_000 for _ in range(100)]
    times = [at + off for at in boundaries for off in (-1, 0, 1, 999_999)] * 2
    chance.shuffle(times)
    table: list[dict[str, Any]] = [{"k": "a", "x": 1, "t": at} for at in [0, *times]]
    table.append({"k": "a", "x": 1, "t": None})
    by_second = {
        "date_format(t, 'yyyy-MM-dd')": True,
        "date_format(t, 'HH:mm')": True,
        "date_format(t, 'EEE d MMM yyyy, h ''h'' mm:ss a z XXX')": True,
        "date_format(t, 'HH:mm:ss.SSS')": False,
        "hour(t)": True,
        "minute(t)": True,
        "second(t)": True,
        "CAST(t AS DATE)": True,
        "year(t)": True,
        "hour(CAST(t AS TIMESTAMP_NTZ))": False,
        "extract(SECOND FROM t)": False,
    }
    specs = transforms(
        lambda df: df.selectExpr(*(f"{text} AS c{n}" for n, text in enumerate(by_second)))
    )
    schema, right = planned(engine, specs, table)
    kept = made(engine, specs)
    assert run(kept, table, schema) == right
    kept.close()
    for text, expected in by_second.items():
        plan = made(engine, transforms(lambda df, text=text: df.selectExpr(f"{text} AS c")))
        assert isinstance(plan._plan, ColumnBundles)
        changed = engine.code.type("FiresteelExpressions").replaced(plan._plan.cached.physical)
        assert ("FiresteelTimeOfDayCache" in changed.toString()) == expected, text
        plan.close()


def test_products_of_decimals(engine: SparkEngine) -> None:
    """Exact ones are those of longs where they are small enough."""
    chance = random.Random(1)
    numbers = [chance.randrange(2**bits) * sign for bits in range(64) for sign in (1, -1)]
    numbers += [2**63 - 1, -(2**63), 10**18, -(10**18), 10**18 - 1, 1 - 10**18]
    table = [{"k": "a", "x": x, "t": 0} for x in [*numbers, None]]
    in_longs = {
        "0.908 * x": True,
        "x * -999999999.99999999": True,
        "0.001 * CAST(x % 1000000 AS INT) * x": True,
        "CAST(x % 100000 AS DECIMAL(12, 2)) * CAST(x % 777 / 8 AS DECIMAL(7, 4))": True,
        "0.908 * x + 0.002 * x": True,
        "CAST(x AS DECIMAL(21, 1)) * 0.5": False,  # no long has its digits
        "CAST(x AS DECIMAL(20, 0)) * CAST(x AS DECIMAL(20, 0))": False,  # rounded, if too long
        "x % 1000 * 3": False,
    }
    for text, expected in in_longs.items():
        specs = transforms(
            lambda df, text=text: df.selectExpr(f"{text} AS c", f"{text} > 1000 AS more")
        )
        schema, right = planned(engine, specs, table)
        kept = made(engine, specs)
        assert run(kept, table, schema) == right, text
        assert isinstance(kept._plan, ColumnBundles)
        changed = engine.code.type("FiresteelExpressions").replaced(kept._plan.cached.physical)
        assert ("FiresteelDecimalProducts" in changed.toString()) == expected, text
        kept.close()


def test_whole_numbers_as_texts(engine: SparkEngine) -> None:
    """Digit by digit."""
    powers = [
        sign * 10**exponent + off
        for exponent in range(19)
        for sign in (1, -1)
        for off in (-1, 0, 1)
    ]
    numbers = [*powers, 2**31 - 1, -(2**31), 2**63 - 1, -(2**63), None]
    table = [{"k": "a", "x": x, "t": 0} for x in numbers]
    by_digits = {
        "CAST(x AS STRING)": True,
        "CAST(CAST(x % 2147483648 AS INT) AS STRING)": True,
        "concat(k, x, '-', x % 7)": True,
        "CAST(x AS DOUBLE) || 'd'": False,
        "CAST(t AS STRING)": False,
    }
    for text, expected in by_digits.items():
        specs = transforms(lambda df, text=text: df.selectExpr(f"{text} AS c"))
        schema, right = planned(engine, specs, table)
        kept = made(engine, specs)
        assert run(kept, table, schema) == right, text
        assert isinstance(kept._plan, ColumnBundles)
        changed = engine.code.type("FiresteelExpressions").replaced(kept._plan.cached.physical)
        assert ("FiresteelIntegerTexts" in changed.toString()) == expected, text
        kept.close()
