"""Queries that Spark has analysed, as streams of Firesteel: what is refused, and what a plan becomes.

The results are compared with Spark's in tests/e2e/spark_connect.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.classic.dataframe import DataFrame as ClassicDataFrame

from firesteel import Environment
from firesteel.common.job_graph import Partitioner
from firesteel.errors import InvalidProgram
from firesteel.operators import (
    DropDuplicatesSpec,
    EventTimeWatermarkSpec,
    JoinSpec,
    PartialWindowAggregateSpec,
    RunningAggregateSpec,
    SessionAggregateSpec,
    SessionParts,
    SessionSpec,
    SlidingSpec,
    SourceSpec,
    Spec,
    TransformSpec,
    TransformWithStateSpec,
    TumblingSpec,
)
from firesteel.operators.joins import IntervalSpec
from firesteel.spark_connect.catalyst import Catalyst, children, kind, output
from firesteel.spark_connect.conditions import condition_of, conjuncts_of
from firesteel.spark_connect.planner import PlannedStream, Planner
from firesteel.spark_connect.starter import _growing_state, _state_backend
from taskexecutor.executor.columnar.jvm.engine import SparkEngine

HOUR_US = 3_600_000_000
MS = 1_000  # microseconds
NEAR = "paid BETWEEN at AND at + INTERVAL 1 HOUR"
EVER_US = 3_650 * 24 * HOUR_US


def average(column: str) -> Column:
    @F.pandas_udf("double")
    def mean(values: pd.Series) -> float:
        return float(values.mean())

    return mean(column)


@pytest.fixture
def spark(engine: SparkEngine) -> SparkSession:
    return engine.session


@pytest.fixture
def orders(spark: SparkSession, tmp_path: Path) -> DataFrame:
    schema = "id LONG, at TIMESTAMP, shop STRING, price DOUBLE"
    return spark.readStream.schema(schema).json(str(tmp_path)).withWatermark("at", "10 minutes")


@pytest.fixture
def payments(spark: SparkSession, tmp_path: Path) -> DataFrame:
    schema = "order LONG, paid TIMESTAMP, amount DOUBLE"
    return spark.readStream.schema(schema).json(str(tmp_path)).withWatermark("paid", "5 minutes")


def no_static_side(plan: Any) -> pa.Table:
    pytest.fail("it has no static side")


def no_metrics(plan: Any) -> pa.Table:
    return pa.table({})


def planned(
    query: DataFrame,
    output_mode: str = "append",
    batches: bool = False,
    static_rows: Callable[[Any], pa.Table] = no_static_side,
) -> PlannedStream:
    planner = Planner(
        query.sparkSession._jvm,
        query.sparkSession._jsparkSession,
        Environment(),
        output_mode=output_mode,
        batches=batches,
        begun_us=lambda: 10**15,
        static_rows=static_rows,
    )
    return planner.planned(query._jdf.queryExecution().analyzed())


def specs(stream: PlannedStream) -> list[Spec]:
    return [node.spec for node in stream.environment._program.graph.nodes]


@pytest.mark.parametrize(
    ("query", "reason"),
    [
        (
            lambda o, p: o.join(p, F.expr(f"id = order AND {NEAR} AND amount < price"), "left"),
            "filter the streams before the join",
        ),
        (
            lambda o, p: o.groupBy(F.window("at", "1 hour")).agg(average("price")),
            "Spark does not support pandas aggregate functions on streams",
        ),
    ],
)
def test_what_cannot_run_is_refused_with_the_reason(
    orders: DataFrame,
    payments: DataFrame,
    query: Callable[[DataFrame, DataFrame], DataFrame],
    reason: str,
) -> None:
    with pytest.raises(InvalidProgram, match=reason):
        planned(query(orders, payments))


def test_first_values_need_an_event_time(orders: DataFrame, tmp_path: Path) -> None:
    stream = orders.sparkSession.readStream.schema("id LONG, at TIMESTAMP, shop STRING")
    untimed = stream.json(str(tmp_path)).groupBy("shop").agg(F.expr("any_value(id)"))
    with pytest.raises(InvalidProgram, match=r"^first\(.* depends on the order of rows.*min_by"):
        planned(untimed, "complete")
    timed = orders.groupBy(F.window("at", "1 hour")).agg(F.first("id"), F.last("id"))
    (partial,) = (s for s in specs(planned(timed)) if isinstance(s, PartialWindowAggregateSpec))
    assert [each.whole.partition("(")[0] for each in partial.aggregates] == ["min_by", "max_by"]


@pytest.mark.parametrize(
    ("timeout", "column"), [("EventTimeTimeout", "at"), ("ProcessingTimeTimeout", "")]
)
def test_functions_with_timers_in_event_time_leave_out_late_rows(
    orders: DataFrame, timeout: str, column: str
) -> None:
    def nothing(key: Any, frames: Any, state: Any) -> Any:
        yield from ()

    def late_column(query: DataFrame) -> str:
        run = query.groupBy("shop").applyInPandasWithState(
            nothing, "shop STRING", "n LONG", "update", timeout
        )
        found = specs(planned(run, "update"))
        (spec,) = (each for each in found if isinstance(each, TransformWithStateSpec))
        return spec.late_column

    assert late_column(orders.select("shop", "price", "at")) == column
    assert late_column(orders.select("shop", F.col("at").alias("then"))) == (column and "then")
    assert late_column(orders.select("shop", F.window("at", "1 hour"))) == (column and "window")


def test_only_an_aggregate_without_groups_has_a_result_without_rows(orders: DataFrame) -> None:
    def without_groups(query: DataFrame) -> bool:
        found = specs(planned(query, "complete"))
        (spec,) = (each for each in found if isinstance(each, PartialWindowAggregateSpec))
        return spec.without_groups

    assert without_groups(orders.agg(F.count("*"), F.first("price")))
    assert not without_groups(orders.groupBy("shop").count())
    assert not without_groups(orders.groupBy(F.window("at", "1 hour")).count())
    assert not without_groups(orders.groupBy(F.session_window("at", "1 hour")).count())


@pytest.mark.parametrize(
    "called",
    [
        lambda: F.percentile("price", 0.5),
        lambda: F.approx_count_distinct("id", rsd=0.01),  # SQL has no text for it
        lambda: F.product("price"),  # nor a name
        lambda: F.expr("listagg(shop) WITHIN GROUP (ORDER BY at)"),
    ],
    ids=["percentile", "approx_count_distinct", "product", "listagg"],
)
def test_values_are_collected_for_functions_whose_result_cannot_be_updated(
    orders: DataFrame, called: Callable[[], Column]
) -> None:
    function = called()
    by_window = orders.groupBy(F.window("at", "1 hour")).agg(
        F.collect_set("id"), F.sum("id"), function
    )
    observed = orders.observe("seen", F.count("*"), function)
    for query in (by_window, observed):
        found = specs(planned(query, static_rows=no_metrics))
        (partial,) = (s for s in found if isinstance(s, PartialWindowAggregateSpec))
        assert [list(each.merge.values()) for each in partial.aggregates] == [["sum"], ["list"]]
    assert not list(_growing_state(planned(by_window)))
    (warning,) = _growing_state(planned(orders.groupBy("shop").agg(function), "update"))
    assert "keeps all values of each group forever" in warning


def test_planning_makes_few_calls(orders: DataFrame, asked: list[str]) -> None:
    counts = orders.groupBy(F.window("at", "10 minutes"), "shop").count()
    planned(counts)
    asked.clear()
    planned(counts)
    assert len(asked) < 600, asked


def test_what_spark_refuses_is_refused_as_by_spark(orders: DataFrame, payments: DataFrame) -> None:
    with pytest.raises(AnalysisException, match="streaming aggregations without watermark"):
        planned(orders.groupBy("shop").count())
    with pytest.raises(AnalysisException, match="Distinct aggregations are not supported"):
        planned(orders.groupBy("shop").agg(F.count_distinct("id")), "update")


def test_sources_that_firesteel_does_not_have_are_refused(
    spark: SparkSession, tmp_path: Path
) -> None:
    files = spark.readStream.schema("id LONG").option("cleanSource", "delete")
    with pytest.raises(InvalidProgram, match="cleanSource='delete': Firesteel does not remove"):
        planned(files.json(str(tmp_path)))
    files = spark.readStream.schema("id LONG").option("fileNameOnly", "true")
    with pytest.raises(InvalidProgram, match="fileNameOnly='true': Firesteel knows the files"):
        planned(files.json(str(tmp_path)))
    files = spark.readStream.schema("id LONG").option("modifiedBefore", "2024-01-01T00:00:00")
    with pytest.raises(InvalidProgram, match="'modifiedBefore' is not allowed in file stream"):
        planned(files.json(str(tmp_path)))
    slow = spark.readStream.format("rate").option("rampUpTime", "5s").load()
    with pytest.raises(InvalidProgram, match="rampUpTime is not supported"):
        planned(slow)


def test_options_without_effect_are_named(spark: SparkSession, tmp_path: Path) -> None:
    files = spark.readStream.schema("id LONG").option("maxFilesPerTrigger", 1)
    files = files.option("fileNameOnly", "false").option("Headr", "true").option("mode", "FAILFAST")
    files = files.option("maxFilesPerTriger", 1)
    stream = planned(files.csv(str(tmp_path)))
    assert sorted(stream.warnings) == [
        "readStream: the format csv has no option 'Headr', which is ignored; did you mean header?",
        "readStream: the format csv has no option 'maxFilesPerTriger', which is ignored;"
        " did you mean maxFilesPerTrigger?",
    ]


@pytest.mark.parametrize(
    ("condition", "lower", "upper", "others"),
    [
        ("paid >= at AND paid <= at + INTERVAL 1 HOUR", (0, MS), (HOUR_US, MS), 0),
        ("paid >= at AND paid < at + INTERVAL 1 HOUR", (0, MS), (HOUR_US - 1, 1), 0),
        ("paid BETWEEN at - INTERVAL 1 HOUR AND at", (-HOUR_US, MS), (0, MS), 0),
        ("at < paid AND at + INTERVAL 1 HOUR > paid", (1, 1), (HOUR_US - 1, 1), 0),
        ("at - INTERVAL 2 HOURS <= paid - INTERVAL 1 HOUR", (-HOUR_US, MS), (EVER_US, 0), 0),
        ("paid = at AND paid >= at AND paid <= at", (0, 0), (0, 0), 0),
        ("paid <= at + INTERVAL 1 HOUR AND amount > price", (-EVER_US, 0), (HOUR_US, MS), 1),
    ],
)
def test_bounds_between_event_times(
    orders: DataFrame,
    payments: DataFrame,
    condition: str,
    lower: tuple[int, int],
    upper: tuple[int, int],
    others: int,
) -> None:
    join = orders.join(payments, F.expr(f"id = order AND {condition}"))
    plan = join._jdf.queryExecution().analyzed()
    sides = [output(side) for side in (plan.left(), plan.right())]
    found = condition_of(
        Catalyst(join.sparkSession._jvm), conjuncts_of(plan.condition().get()), *sides
    )
    assert found.between is not None
    assert (found.between.lower, found.between.upper) == (lower, upper)
    assert (found.between.left.name(), found.between.right.name()) == ("at", "paid")
    assert len(found.others) == others


@pytest.mark.parametrize(
    "query",
    [
        lambda o, p: o.groupBy(F.window("at", "1 hour"), "shop").agg(F.sum("price"), F.count("*")),
        lambda o, p: o.groupBy(F.session_window("at", "1 hour"), F.lower("shop")).count(),
        lambda o, p: o.join(p, F.expr(f"id = order AND {NEAR}"), "left_semi"),
        lambda o, p: o.withColumn("n", F.col("id") + 1).dropDuplicates(["n", "at"]),
    ],
)
def test_state_has_the_same_names_whenever_a_query_is_planned(
    orders: DataFrame, payments: DataFrame, query: Callable[[DataFrame, DataFrame], DataFrame]
) -> None:
    def state() -> list[tuple[str, Spec]]:
        nodes = planned(query(orders, payments)).environment._program.graph.nodes
        return [(node.uid, node.spec) for node in nodes if node.uid and "source" not in node.uid]

    assert state() == state()
    assert len(state()) > 1


def test_outer_joins_may_have_conditions_on_each_side(
    orders: DataFrame, payments: DataFrame
) -> None:
    near = F.expr(f"id = order AND {NEAR} AND amount > 1 AND price > 2")
    for how in ("left", "right", "full", "left_semi"):
        assert planned(orders.join(payments, near, how)).schema is not None


@pytest.mark.parametrize("how", ["inner", "left", "right", "full", "left_semi"])
def test_an_event_time_that_equals_another_key_bounds_a_join(
    orders: DataFrame, payments: DataFrame, how: str
) -> None:
    join = orders.join(payments, F.expr("id = order AND date_trunc('hour', at) = paid"), how)
    (spec,) = (each for each in specs(planned(join)) if isinstance(each, JoinSpec))
    assert isinstance(spec.within, IntervalSpec)
    assert (spec.within.lower_us, spec.within.upper_us) == (0, 0)
    assert spec.within.times.columns == ("time_1_time", "paid_1_time")
    assert spec.within.late_by == ("at_1_time", "paid_1_time")


def test_a_stream_without_a_watermark_has_no_late_rows(
    spark: SparkSession, payments: DataFrame, tmp_path: Path
) -> None:
    hours = spark.readStream.schema("hour TIMESTAMP, n LONG").json(str(tmp_path))
    join = hours.join(payments, F.expr("hour = paid"), "left")
    (spec,) = (each for each in specs(planned(join)) if isinstance(each, JoinSpec))
    assert isinstance(spec.within, IntervalSpec)
    assert spec.within.late_by == ("", "paid_1_time")


@pytest.mark.parametrize("how", ["left", "full"])
def test_a_window_may_equal_a_struct(orders: DataFrame, payments: DataFrame, how: str) -> None:
    """Spark Connect's withColumn adds a window of a stream without a watermark as such a struct."""
    windows = payments.select("order", F.window("paid", "1 hour").alias("hour"))
    rows = orders.selectExpr("id", "struct(at AS start, at AS end) AS times")
    join = rows.join(windows, F.expr("id = order AND times = hour"), how)
    (spec,) = (each for each in specs(planned(join)) if isinstance(each, JoinSpec))
    assert isinstance(spec.within, IntervalSpec)
    assert spec.within.times.columns == ("time_1_time", "hour_1_time")
    assert len(spec.left_keys) == 3


def test_an_equal_key_counts_rather_than_a_missing_bound(
    orders: DataFrame, payments: DataFrame
) -> None:
    on = F.expr("date_trunc('hour', at) = paid AND at >= paid")
    (spec,) = (each for each in specs(planned(orders.join(payments, on))) if type(each) is JoinSpec)
    assert isinstance(spec.within, IntervalSpec)
    assert (spec.within.lower_us, spec.within.upper_us) == (0, 0)
    with pytest.raises(InvalidProgram, match="the condition of a right join of two streams"):
        planned(orders.join(payments, on, "right"))
    assert planned(orders.join(payments, on, "left_semi")).schema is not None


def test_columns_may_have_the_same_name(orders: DataFrame) -> None:
    stream = planned(orders.select("id", F.col("shop").alias("ID"), "id"))
    assert stream.is_renamed
    assert stream.schema.names == ["id", "ID", "id"]
    assert not planned(orders).is_renamed


def test_a_month_is_no_bound(orders: DataFrame, payments: DataFrame) -> None:
    join = orders.join(payments, F.expr("id = order AND paid <= at + INTERVAL 1 MONTH"))
    stream = planned(join.select("id", "amount"))
    (spec,) = (spec for spec in specs(stream) if isinstance(spec, JoinSpec))
    assert spec.within is None


def test_windows_that_are_joined_are_planned_with_the_rows(
    orders: DataFrame, payments: DataFrame
) -> None:
    """The join leaves out rows without a window: those without a time, which no watermark needs."""
    left = orders.select("id", "shop", F.window("at", "1 hour").alias("hour"))
    right = payments.select(F.col("order").alias("id"), F.window("paid", "1 hour").alias("hour"))
    kinds = [type(each) for each in specs(planned(left.join(right, ["id", "hour"])))]
    side = [SourceSpec, TransformSpec, EventTimeWatermarkSpec]
    assert kinds[:7] == [*side, *side, JoinSpec]


def test_a_filter_above_an_outer_join_may_make_it_an_inner_one(
    orders: DataFrame, payments: DataFrame
) -> None:
    """The watermark of the orders then does not see those that have no shop."""
    joined = orders.join(payments, F.expr(f"id = order AND shop = 'a' AND {NEAR}"), "full")
    for condition, how in (("amount > 1", "right"), ("amount > 1 AND price > 1", "inner")):
        _, rows, *others = specs(planned(joined.where(condition)))
        assert isinstance(rows, TransformSpec)
        assert "isnotnull(id" in rows.function.text
        assert [each.how for each in others if isinstance(each, JoinSpec)] == [how]


def test_keys_of_a_join_that_are_columns_are_not_added(
    orders: DataFrame, payments: DataFrame
) -> None:
    on = F.expr(f"id = order AND id = amount AND lower(shop) = 'a' AND {NEAR}")
    (join,) = (
        each for each in specs(planned(orders.join(payments, on))) if isinstance(each, JoinSpec)
    )
    assert join.left_keys == ("id_1", "k1_left")
    assert join.right_keys == ("order_1", "amount_1")


def test_null_keys_may_be_equal(orders: DataFrame, payments: DataFrame) -> None:
    join = orders.join(payments, F.expr(f"id <=> order AND {NEAR}"), "left")
    (spec,) = (each for each in specs(planned(join)) if isinstance(each, JoinSpec))
    assert spec.left_keys == ("k0_left", "k1_left")
    assert spec.right_keys == ("k0_right", "k1_right")


def test_a_filter_above_a_join_bounds_it(orders: DataFrame, payments: DataFrame) -> None:
    join = orders.join(payments).where("id = order AND paid BETWEEN at AND at + INTERVAL 1 HOUR")
    (spec,) = (spec for spec in specs(planned(join)) if isinstance(spec, JoinSpec))
    assert isinstance(spec.within, IntervalSpec)
    assert (spec.within.lower_us, spec.within.upper_us) == (0, HOUR_US)


def test_an_order_is_for_the_batches_of_the_sink(orders: DataFrame) -> None:
    counts = orders.groupBy("shop").count()
    stream = planned(counts.orderBy(F.desc("count")).limit(3), "complete", batches=True)
    assert stream.per_batch is not None
    assert stream.schema.simpleString() == "struct<shop:string,count:bigint>"
    (spec,) = (spec for spec in specs(stream) if isinstance(spec, RunningAggregateSpec))
    assert (spec.mode, spec.at_barriers, spec.expires) == ("complete", True, "")
    assert spec.fixed_parallelism == 1


def test_observations_do_not_change_the_names_of_state(orders: DataFrame) -> None:
    def state(query: DataFrame) -> list[tuple[str, Spec]]:
        nodes = planned(query, "update", static_rows=no_metrics).environment._program.graph.nodes
        return [(node.uid, node.spec) for node in nodes if node.uid == "aggregate-1"]

    observed = orders.observe("read", F.sum("price").alias("sum"), F.count("*"))
    with_observation, without = (
        each.groupBy("shop").agg(F.sum("price")) for each in (observed, orders)
    )
    assert state(with_observation) == state(without)


def test_observed_aggregates_emit_each_key_once_per_batch(orders: DataFrame) -> None:
    counts = orders.groupBy("shop").count()
    for query, at_barriers in ((counts, False), (counts.observe("o", F.count("*")), True)):
        found = specs(planned(query, "update", static_rows=no_metrics))
        (spec,) = (s for s in found if isinstance(s, RunningAggregateSpec) and not s.forgets)
        assert spec.at_barriers is at_barriers


def test_an_order_is_not_observed(orders: DataFrame) -> None:
    top = orders.groupBy("shop").count().orderBy("count")
    with pytest.raises(InvalidProgram, match=r"^observe\(\) is not supported after orderBy"):
        planned(top.observe("top", F.count("*")), "complete", batches=True)


def test_columns_that_nobody_uses_are_dropped_below_watermarks(orders: DataFrame) -> None:
    counts = orders.groupBy(F.window("at", "1 hour"), "shop").count()
    nodes = _nodes(Catalyst(_jvm(orders)).pruned(_analyzed(counts)))
    (at,) = (at for at, node in enumerate(nodes) if kind(node) == "EventTimeWatermark")
    assert [each.name() for each in output(nodes[at + 1])] == ["at", "shop"]


@pytest.mark.parametrize("unions", [False, True])
def test_rows_that_are_only_counted_keep_their_columns(orders: DataFrame, unions: bool) -> None:
    rows = orders.union(orders) if unions else orders
    for node in _nodes(Catalyst(_jvm(orders)).pruned(_analyzed(rows.groupBy().count()))):
        assert output(node)


def _jvm(query: DataFrame) -> Any:
    return query.sparkSession._jvm


def _analyzed(query: DataFrame) -> Any:
    return query._jdf.queryExecution().analyzed()


def _nodes(plan: Any) -> list[Any]:
    """Returns the plan's nodes, parents first."""
    return [plan, *(node for child in children(plan) for node in _nodes(child))]


def test_a_stretch_computes_in_another_session(spark: SparkSession, orders: DataFrame) -> None:
    query = orders.selectExpr("upper(shop) AS shop", "explode(array(price, -price)) AS price")
    catalyst = Catalyst(spark._jvm)
    analyzed = query._jdf.queryExecution().analyzed()
    base = orders._jdf.queryExecution().analyzed()

    def on_leaf(plan: object) -> object:
        parts = [plan.child()] if plan.children().size() else []  # type: ignore[attr-defined]
        if plan.sameResult(base):  # type: ignore[attr-defined]
            return catalyst.leaf(output(plan))
        return plan.withNewChildren(catalyst.seq(map(on_leaf, parts)))  # type: ignore[attr-defined]

    stretch = catalyst.stretch(on_leaf(analyzed))
    rows = spark.newSession().createDataFrame(
        [(1, None, "a", 2.0)], "other LONG, time TIMESTAMP, name STRING, cost DOUBLE"
    )
    assert stretch(rows).collect() == [("A", 2.0), ("A", -2.0)]


SECOND_US = 1_000_000


def partial_of(query: DataFrame) -> PartialWindowAggregateSpec:
    (partial,) = (
        each for each in specs(planned(query)) if isinstance(each, PartialWindowAggregateSpec)
    )
    return partial


def aggregates_of(
    query: DataFrame, output_mode: str
) -> tuple[PartialWindowAggregateSpec, RunningAggregateSpec]:
    partial, final = (
        spec
        for spec in specs(planned(query, output_mode))
        if isinstance(spec, PartialWindowAggregateSpec | RunningAggregateSpec)
    )
    assert isinstance(partial, PartialWindowAggregateSpec)
    assert isinstance(final, RunningAggregateSpec)
    return partial, final


@pytest.mark.parametrize(
    ("arguments", "window"),
    [
        (["1 hour"], TumblingSpec(size_us=HOUR_US)),
        (
            ["10 seconds", "10 seconds", "-3 seconds"],
            TumblingSpec(size_us=10 * SECOND_US, offset_us=-3 * SECOND_US),
        ),
        (
            ["10 seconds", "2 seconds"],
            SlidingSpec(size_us=10 * SECOND_US, slide_us=2 * SECOND_US),
        ),
        (
            ["10 seconds", "3 seconds", "1 second"],
            SlidingSpec(size_us=10 * SECOND_US, slide_us=3 * SECOND_US, offset_us=SECOND_US),
        ),
    ],
)
def test_windows_are_computed_by_firesteel(
    orders: DataFrame, arguments: list[str], window: TumblingSpec | SlidingSpec
) -> None:
    query = orders.groupBy("shop", F.window("at", *arguments)).agg(F.sum("price"), F.max("at"))
    partial, final = aggregates_of(query, "update")
    assert partial.window == final.window == window
    assert partial.whole_windows
    assert partial.key_columns == ("shop_1",)


@pytest.mark.parametrize("groups", [["shop"], []])
def test_windows_that_are_emitted_once_are_divided_into_panes(
    orders: DataFrame, groups: list[str]
) -> None:
    """All panes of a key are at one subtask."""
    query = orders.groupBy(*groups, F.window("at", "10 seconds", "4 seconds")).count()
    partial, final = aggregates_of(query, "append")
    assert final.window == SlidingSpec(size_us=10 * SECOND_US, slide_us=4 * SECOND_US)
    assert partial.window == TumblingSpec(size_us=2 * SECOND_US)
    (edge,) = (
        edge
        for edge in planned(query).environment._program.graph.edges
        if isinstance(edge.target.spec, RunningAggregateSpec)
    )
    assert edge.key_columns == (("shop_1",) if groups else ("all_rows_1",))
    assert edge.target.name == f"Aggregate({', '.join([*groups, 'window'])})"


@pytest.mark.parametrize(
    "query",
    [
        # The window is more than a key.
        lambda o: o.groupBy(F.window("at", "1 hour"), F.expr("window(at, '1 hour').end")).count(),
        # Spark's windows of local times are not those of timestamps.
        lambda o: (
            o.select(F.expr("CAST(at AS TIMESTAMP_NTZ)").alias("local"), "at")
            .groupBy("at", F.window("local", "1 hour"))
            .count()
        ),
        # The length of a gap varies.
        lambda o: o.groupBy(F.session_window("at", "1 day"), "shop").count(),
        lambda o: o.groupBy(F.session_window("at", F.expr("CONCAT(id, ' s')")), "shop").count(),
        # The watermark and the sessions see different rows.
        lambda o: o.where("at > '2026'").groupBy(F.session_window("at", "1 hour"), "shop").count(),
        lambda o: (
            o.dropDuplicates(["id", "at"]).groupBy(F.session_window("at", "1 hour"), "shop").count()
        ),
    ],
)
def test_other_windows_are_columns(
    orders: DataFrame, query: Callable[[DataFrame], DataFrame]
) -> None:
    assert partial_of(query(orders)).window is None


def test_sessions_are_divided_after_their_watermark(orders: DataFrame) -> None:
    counts = orders.groupBy(F.session_window("at", "90 minutes"), "shop").count()
    _, rows, watermark, partial, sessions, *_ = specs(planned(counts))
    assert isinstance(rows, TransformSpec)
    assert isinstance(watermark, EventTimeWatermarkSpec)
    assert watermark.parts == SessionParts(column="session_part", gap_us=HOUR_US * 3 // 2)
    assert isinstance(partial, PartialWindowAggregateSpec)
    assert partial.window == SessionSpec(gap_us=HOUR_US * 3 // 2)
    assert (partial.time_column, partial.part_column) == (watermark.column, "session_part")
    assert isinstance(sessions, SessionAggregateSpec)
    assert sessions.key_columns == ("shop_1", "window_start", "window_end")


@pytest.mark.parametrize("window", [F.session_window, F.window], ids=["sessions", "windows"])
def test_rows_without_a_time_are_filtered_where_they_might_fail(
    orders: DataFrame, window: Callable[[str, str], Column]
) -> None:
    def filters(rows: DataFrame, *aggregates: Column) -> bool:
        counts = rows.groupBy(window("at", "1 hour"), "shop").agg(*aggregates)
        _, before, *_ = specs(planned(counts))
        assert isinstance(before, TransformSpec)
        return "isnotnull(at" in before.function.text

    failing = F.expr("10 / CAST(at IS NOT NULL AS INT)")
    assert not filters(orders, F.count("*"), F.max(F.struct("price", "id")))
    assert filters(orders.withColumn("n", failing), F.sum("n"))
    assert filters(orders, F.sum(failing))
    assert filters(orders, F.expr("count(*) FILTER (WHERE 10 / CAST(at IS NOT NULL AS INT) > 1)"))


def test_sessions_that_are_emitted_again_have_no_late_rows(orders: DataFrame) -> None:
    counts = orders.groupBy(F.session_window("at", "1 hour"), "shop").count()
    for each in specs(planned(counts, output_mode="complete")):
        assert not isinstance(each, EventTimeWatermarkSpec) or each.parts is None


def test_a_watermark_follows_the_plan_that_keeps_its_rows(orders: DataFrame) -> None:
    counts = orders.select("shop", "at").groupBy(F.window("at", "1 hour"), "shop").count()
    _, rows, partial, watermark, aggregate, *_ = specs(planned(counts))
    assert isinstance(rows, TransformSpec)
    assert isinstance(partial, PartialWindowAggregateSpec)
    assert partial.latest == partial.time_column
    assert watermark == EventTimeWatermarkSpec(
        column="_latest", delay_us=600 * SECOND_US, drops_column=True
    )
    assert isinstance(aggregate, RunningAggregateSpec)
    assert aggregate.expires == "window_end"


def test_a_watermark_sees_the_rows_that_are_filtered_by_their_time(orders: DataFrame) -> None:
    recent = orders.where("at > '2026-01-01'").groupBy(F.window("at", "1 hour")).count()
    kinds = [type(each) for each in specs(planned(recent))]
    watermark = kinds.index(EventTimeWatermarkSpec)
    assert kinds[watermark + 1 : watermark + 3] == [TransformSpec, PartialWindowAggregateSpec]


def test_a_watermark_sees_rows_without_the_time_of_a_window(
    spark: SparkSession, tmp_path: Path
) -> None:
    rows = spark.readStream.schema("at TIMESTAMP, sent TIMESTAMP").json(str(tmp_path))
    counts = rows.withWatermark("at", "1 minute").groupBy(F.window("sent", "1 hour"), "at").count()
    kinds = [type(each) for each in specs(planned(counts))]
    partial = kinds.index(PartialWindowAggregateSpec)
    assert EventTimeWatermarkSpec in kinds[:partial]
    assert partial_of(counts).whole_windows


def test_a_watermark_sees_rows_whose_columns_are_not_needed(orders: DataFrame) -> None:
    *_, watermark = specs(planned(orders.select("shop")))
    assert watermark == EventTimeWatermarkSpec(
        column="time_of_watermark", delay_us=600 * SECOND_US, drops_column=True
    )


def test_state_that_grows_forever_is_on_disk(orders: DataFrame, payments: DataFrame) -> None:
    forever = planned(orders.join(payments, F.expr("id = order")))
    bounded = planned(orders.join(payments, F.expr(f"id = order AND {NEAR}")))
    rocksdb = {"state.backend.type": "rocksdb"}
    assert _state_backend(forever, "") == rocksdb
    assert _state_backend(bounded, "") == {}
    package = "org.apache.spark.sql.execution.streaming.state"
    assert _state_backend(bounded, f"{package}.RocksDBStateStoreProvider") == rocksdb
    memory = _state_backend(forever, f"{package}.HDFSBackedStateStoreProvider")
    assert memory == {"state.backend.type": "hashmap"}


def test_state_below_a_union_ends_by_the_watermarks_of_all_inputs(
    orders: DataFrame, payments: DataFrame
) -> None:
    one = orders.groupBy(F.window("at", "1 hour")).count()
    other = payments.dropDuplicates(["order", "paid"]).select(F.window("paid", "1 hour"), "order")
    graph = planned(one.union(other)).environment._program.graph
    assert all(graph.nodes.index(e.source) < graph.nodes.index(e.target) for e in graph.edges)
    shared = [edge for edge in graph.edges if edge.partitioner is Partitioner.WATERMARKS]
    assert sorted((edge.source.name, edge.target.name) for edge in shared) == [
        ("Watermark(at)", "DropDuplicates(order, paid)"),
        ("Watermark(paid)", "Aggregate(window)"),
    ]


def test_state_above_a_join_has_the_watermarks_of_all_inputs(
    orders: DataFrame, payments: DataFrame
) -> None:
    joined = orders.join(payments, F.expr(f"id = order AND {NEAR}"))
    graph = planned(joined.groupBy(F.window("at", "1 hour")).count()).environment._program.graph
    assert not [edge for edge in graph.edges if edge.partitioner is Partitioner.WATERMARKS]


@pytest.mark.parametrize("within", [False, True])
def test_keys_without_a_time_are_forgotten_only_within_a_watermark(
    orders: DataFrame, within: bool
) -> None:
    drop = orders.dropDuplicatesWithinWatermark if within else orders.dropDuplicates
    (spec,) = (s for s in specs(planned(drop(["id", "at"]))) if isinstance(s, DropDuplicatesSpec))
    assert (spec.time_is_key, spec.expires_after_us) == ((False, 600e6) if within else (True, 0))


def test_rows_are_distributed_by_the_parts_of_a_window(
    orders: DataFrame, payments: DataFrame
) -> None:
    left = orders.select("id", F.window("at", "1 hour"))
    right = payments.select(F.col("order").alias("id"), F.window("paid", "1 hour"))
    unique = planned(left.dropDuplicates(["id", "window"]))
    (spec,) = (each for each in specs(unique) if isinstance(each, DropDuplicatesSpec))
    assert spec.key_columns == ("id_1", "window_1_start", "window_1_end")
    joined = planned(left.select("window").join(right, ["window"]))
    (join,) = (each for each in specs(joined) if isinstance(each, JoinSpec))
    assert join.left_keys == ("k0_left", "k1_left")
    assert join.right_keys == ("k0_right", "k1_right")


@pytest.mark.parametrize(
    ("hours", "how", "keys"),
    [
        (["1 hour"], "inner", ("id_1",)),
        (["1 hour"], "left_outer", ("id_1",)),
        (["1 hour"], "full_outer", ("id_1", "k1_left", "k2_left")),  # rows without a time, too
        (["1 hour", "10 minutes"], "inner", ("id_1",)),
        (["2 hours"], "inner", ("id_1", "k1_left")),
    ],
)
def test_a_join_has_no_keys_that_follow_from_its_times(
    orders: DataFrame, payments: DataFrame, hours: list[str], how: str, keys: tuple[str, ...]
) -> None:
    slide = hours[1:] or ["1 hour"]
    left = orders.select("id", F.window("at", "1 hour", *slide).alias("w"), "shop")
    right = payments.select(F.col("order").alias("id"), F.window("paid", *hours).alias("w"))
    (join,) = (s for s in specs(planned(left.join(right, ["id", "w"], how))) if type(s) is JoinSpec)
    assert join.left_keys == keys
    assert len(join.right_keys) == len(keys)
    assert isinstance(join.within, IntervalSpec)
    times = orders.join(payments, F.expr("id = order AND at = paid"), how)
    (join,) = (each for each in specs(planned(times)) if isinstance(each, JoinSpec))
    assert join.left_keys == (("id_1", "at_1") if how == "full_outer" else ("id_1",))


def test_the_value_of_a_subquery_is_joined_to_the_rows(
    orders: DataFrame, spark: SparkSession
) -> None:
    orders.createOrReplaceTempView("orders")
    spark.createDataFrame([(1, 2.0), (2, 3.0)], "shop INT, price DOUBLE").createOrReplaceTempView(
        "prices"
    )

    def plan(query: str, mode: str = "append") -> PlannedStream:
        return planned(spark.sql(query), mode, static_rows=read)

    def read(rows: Any) -> pa.Table:
        dataset = spark._jvm.org.apache.spark.sql.classic.Dataset  # type: ignore[union-attr]
        return ClassicDataFrame(dataset.ofRows(spark._jsparkSession, rows), spark).toArrow()

    assert plan("SELECT id FROM orders WHERE price > (SELECT max(price) FROM prices)")
    with pytest.raises(InvalidProgram, match="a scalar subquery has 2 rows, and one at most"):
        plan("SELECT id, (SELECT price FROM prices) AS p FROM orders")
    with pytest.raises(
        InvalidProgram, match=r"in filters and among the columns of select\(\) only"
    ):
        plan("SELECT sum(price - (SELECT max(price) FROM prices)) FROM orders", "complete")
