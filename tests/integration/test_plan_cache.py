"""Plans that a job leaves to the next ones: used again only where they are what would be made."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from firesteel.operators import Spec, TransformSpec, WatermarkSpec
from firesteel.plan.catalyst_plan import CatalystPlan
from firesteel.spark_connect.catalyst import Catalyst, children, output
from taskexecutor.executor.columnar.cached_plans.cache_keys import cache_key
from taskexecutor.executor.columnar.columns import slabs
from taskexecutor.executor.columnar.jvm import plan_cache
from taskexecutor.executor.columnar.jvm.engine import SparkEngine
from taskexecutor.executor.columnar.runners.bundle_plans import BundlePlans
from taskexecutor.executor.columnar.runners.column_plans import ColumnPlans
from taskexecutor.executor.columnar.schemas import to_arrow, to_spark
from taskexecutor.executor.timing.clock import PlanMeter, TaskClock
from tests.integration.conftest import Slot
from tests.integration.test_bundle_plans import window_aggregate

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

SCHEMA = pa.schema(
    [
        ("k", pa.string()),
        ("x", pa.int64()),
        ("a", pa.float64()),
        ("b", pa.float64()),
        ("t", pa.timestamp("us", "UTC")),
    ]
)
ROWS = [{"k": k, "x": x, "a": 0.1, "b": 0.2, "t": x} for x, k in enumerate("abcab")]

Function = Callable[["DataFrame"], "DataFrame"]


@pytest.fixture
def engine(slot: Slot) -> Iterator[SparkEngine]:
    engine = slot.spark()
    engine.plan_cache.close()
    yield engine
    engine.plan_cache.close()


_program: list[Function] = []


def program(df: DataFrame) -> DataFrame:
    """A function of a module: it may do something else in the next job."""
    return _program[-1](df)


class Job:
    """An operator that is given bundles."""

    def __init__(self, engine: SparkEngine, function: Function, then: Spec | None = None) -> None:
        _program[:] = [function]
        specs: list[Spec] = [TransformSpec(function=program)]
        specs += [then] if then is not None else []
        self.meter = PlanMeter(TaskClock())
        self.plans = BundlePlans(engine, SCHEMA, specs, self.meter)
        self.plans.make()

    @property
    def plan(self) -> Any:
        return self.plans._plan

    @property
    def reused(self) -> bool:
        return self.plan is not None and self.meter.counts.made == 0

    def run(self, rows: list[dict[str, Any]] = ROWS) -> list[dict[str, Any]]:
        assert self.plans.frame is not None
        given = pa.RecordBatch.from_pylist(rows, schema=SCHEMA)
        found = self.plans.run([given], to_arrow(self.plans.frame.schema), "test")
        return [row for batch in found for row in batch.to_pylist()]


def _added(number: int) -> Function:
    return lambda df: df.where("x > 0").selectExpr("k", f"x + {number} AS y")


def test_the_same_program_uses_the_plan_again(engine: SparkEngine) -> None:
    first = Job(engine, _added(1))
    rows, plan = first.run(), first.plan
    first.plans.close()
    second = Job(engine, _added(1))
    assert second.reused and second.plan is plan
    assert second.run() == rows
    assert first.meter.counts.cached_runs == second.meter.counts.cached_runs == 1
    third = Job(engine, _added(1))  # another task is using the plan
    assert not third.reused
    assert third.run() == second.run() == rows
    for job in (second, third):
        job.plans.close()


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("k", "x"),
        ("x + 1 AS y", "x + 2 AS y"),
        ("x AS y", "x AS z"),
        ("a + b + 0.3D AS y", "b + 0.3D + a AS y"),  # other digits; to Spark, they are the same
        ("named_struct('p', x) AS y", "named_struct('q', x) AS y"),
        ("CAST(x AS INT) AS y", "CAST(x AS SMALLINT) AS y"),
    ],
)
def test_another_program_makes_its_own(engine: SparkEngine, one: str, other: str) -> None:
    many = [f"x + {number} AS _{number}" for number in range(30)]  # more than Spark's texts show
    expected = []
    for column in (other, one):
        job = Job(engine, lambda df, column=column: df.selectExpr(*many, column))
        expected.append(job.run())
        job.plans.close()
        engine.plan_cache.close()
    job = Job(engine, lambda df: df.selectExpr(*many, one))
    assert job.run() == expected[1]
    job.plans.close()
    job = Job(engine, lambda df: df.selectExpr(*many, other))
    assert not job.reused
    assert job.run() == expected[0]
    job.plans.close()


def _analysed(engine: SparkEngine, function: Function) -> CatalystPlan:
    """Returns what Spark has analysed now, with new ids of its expressions."""
    rows = engine.session.createDataFrame([], to_spark(SCHEMA))
    plan = Catalyst(engine.session._jvm)
    leaf = plan.leaf(output(rows._jdf.queryExecution().analyzed()))
    analyzed = function(rows)._jdf.queryExecution().analyzed()
    assert len(children(analyzed)) == 1
    return plan.stretch(analyzed.withNewChildren(plan.seq([leaf])))


class Query(Job):
    """An operator with a part of a query."""

    def __init__(self, engine: SparkEngine, part: CatalystPlan) -> None:
        self.meter = PlanMeter(TaskClock())
        self.plans = BundlePlans(engine, SCHEMA, [TransformSpec(function=part)], self.meter)
        self.plans.make()


def test_a_query_that_is_analysed_again_uses_the_plan_again(engine: SparkEngine) -> None:
    def query(df: DataFrame) -> DataFrame:
        return df.selectExpr("k", "transform(array(x, 2), y -> y + x) AS y")

    parts = [_analysed(engine, query) for _ in range(2)]
    assert parts[0].pieces != parts[1].pieces
    found, reused = [], []
    for part in parts:
        job = Query(engine, part)
        found.append(job.run())
        reused.append(job.reused)
        job.plans.close()
    assert found[0] == found[1] and found[0][1] == {"k": "b", "y": [2, 3]}
    assert reused == [False, True]


def test_a_query_that_looks_alike_makes_its_own_plan(engine: SparkEngine) -> None:
    """The text of a plan does not have all columns."""

    def query(last: int) -> Function:
        return lambda df: df.selectExpr(*(f"x + {n} AS c{n}" for n in range(40)), f"{last} AS y")

    parts = [_analysed(engine, query(last)) for last in (1, 2)]
    assert parts[0].likeness == parts[1].likeness
    for part, last in zip(parts, (1, 2), strict=True):
        job = Query(engine, part)
        assert not job.reused
        assert {row["y"] for row in job.run()} == {last}
        job.plans.close()


def test_a_plan_whose_text_is_cut_is_not_used_again(engine: SparkEngine) -> None:
    values = ", ".join(map(str, range(10_000)))
    for _ in range(2):
        job = Job(engine, lambda df: df.where(f"x IN ({values})").select("x"))
        assert not job.reused
        assert len(job.run()) == len(ROWS)
        job.plans.close()


def test_what_a_function_reads_may_have_changed(engine: SparkEngine) -> None:
    number = [1]

    def function(df: DataFrame) -> DataFrame:
        return df.selectExpr(f"x * {number[0]} AS y")

    for number[0] in (1, 2, 2):
        job = Job(engine, function)
        assert [row["y"] for row in job.run()] == [number[0] * row["x"] for row in ROWS]
        reused = job.reused
        job.plans.close()
    assert reused


def test_another_aggregate_makes_its_own(engine: SparkEngine) -> None:
    for aggregates, reused in ((["sum(x)"], False), (["max(x)"], False), (["max(x)"], True)):
        job = Job(engine, lambda df: df, then=window_aggregate(*aggregates))
        assert job.reused == reused
        found = {row["k"]: row["_p0"] for row in job.run()}
        assert found == ({"a": 3, "b": 5, "c": 2} if aggregates == ["sum(x)"] else
                         {"a": 3, "b": 4, "c": 2})  # fmt: skip
        job.plans.close()


def test_other_settings_make_another_plan(engine: SparkEngine) -> None:
    def function(df: DataFrame) -> DataFrame:
        return df.selectExpr("hour(t) AS hour")

    conf = engine.session.conf
    before = conf.get("spark.sql.session.timeZone")
    hours = []
    for zone in ("UTC", "Asia/Tokyo"):
        conf.set("spark.sql.session.timeZone", zone)
        try:
            job = Job(engine, function)
            assert not job.reused
            hours.append(job.run()[0]["hour"])
            job.plans.close()
        finally:
            conf.set("spark.sql.session.timeZone", str(before))
    assert hours == [0, 9]


def test_a_function_that_looks_at_its_rows_has_no_plan(engine: SparkEngine) -> None:
    looks = [False]

    def function(df: DataFrame) -> DataFrame:
        if looks[0]:
            df.count()
        return df.select("x")

    job = Job(engine, function)
    job.run()
    job.plans.close()
    looks[0] = True
    job = Job(engine, function)
    assert job.plan is None
    job.plans.close()


def test_a_function_that_cannot_be_pickled_has_no_plan_to_leave(engine: SparkEngine) -> None:
    lock = threading.Lock()
    specs: list[Spec] = [TransformSpec(function=lambda df: df.where(f"'{lock}' <> ''"))]
    for _ in range(2):
        meter = PlanMeter(TaskClock())
        plans = BundlePlans(engine, SCHEMA, specs, meter)
        plans.make()
        assert meter.counts.made == 1
        plans.close()


def test_a_function_that_fails_now_fails(engine: SparkEngine) -> None:
    fails = [False]

    def function(df: DataFrame) -> DataFrame:
        return df.select("missing" if fails[0] else "x")

    job = Job(engine, function)
    job.run()
    job.plans.close()
    fails[0] = True
    job = Job(engine, function)
    assert job.plan is None and "missing" in job.meter.counts.not_cached
    job.plans.close()


def test_a_plan_that_was_interrupted_is_not_used_again(engine: SparkEngine) -> None:
    job = Job(engine, lambda df: df.selectExpr("1 DIV x AS y"))
    with pytest.raises(Exception, match="DIVIDE_BY_ZERO"):
        job.run()
    job.plans.close()
    job = Job(engine, lambda df: df.selectExpr("1 DIV x AS y"))
    assert not job.reused
    many = pa.RecordBatch.from_pylist(ROWS[1:] * 100_000, schema=SCHEMA)
    found = job.plans.run([many], pa.schema([("y", pa.int64())]), "test")
    next(found)
    found.close()
    job.plans.close()
    assert not Job(engine, lambda df: df.selectExpr("1 DIV x AS y")).reused


def test_a_plan_that_waits_has_no_shared_memory(engine: SparkEngine) -> None:
    before = slabs.total_bytes()
    job = Job(engine, _added(1))
    batches = list(
        job.plans.run(
            [pa.RecordBatch.from_pylist(ROWS * 50_000, schema=SCHEMA)],
            pa.schema([("k", pa.string()), ("y", pa.int64())]),
            "test",
        )
    )
    assert slabs.total_bytes() > before
    job.plans.close()
    assert batches[0].column("y")[0].as_py() == 2  # what is in use stays
    del batches
    assert slabs.total_bytes() == before
    job = Job(engine, _added(1))
    assert job.reused and job.run()[0]["y"] == 2
    job.plans.close()


def test_the_last_plans_are_cached(engine: SparkEngine) -> None:
    def aggregate(number: int) -> Spec:
        return window_aggregate(f"sum(x + {number})")

    for number in range(plan_cache.MOST + 1):
        Job(engine, lambda df: df, then=aggregate(number)).plans.close()
    jobs = [Job(engine, lambda df: df, then=aggregate(each)) for each in (plan_cache.MOST, 1, 0)]
    assert [job.reused for job in jobs] == [True, True, False]
    for job in jobs:
        job.plans.close()


@pytest.mark.parametrize("aggregates", [["max(x)"], ["sum(x + 1)"]])
def test_columns_of_files_use_plans_again(engine: SparkEngine, aggregates: list[str]) -> None:
    """Covers columns that Arrow groups and columns that Spark groups."""
    found = []
    made = []
    for _ in range(2):
        meter = PlanMeter(TaskClock())
        specs = [TransformSpec(function=lambda df: df), window_aggregate(*aggregates)]
        times = WatermarkSpec(column="t", max_out_of_orderness_us=0)
        plans = ColumnPlans(engine, to_spark(SCHEMA), specs, times, meter)
        plan = plans.plan()
        assert plan is not None and plan.meter is meter
        given = pa.Table.from_pylist(ROWS, schema=SCHEMA).select(sorted(plan.columns))
        schema = to_arrow(plan.frame.schema)
        found.append([row for each in plan.run(given, schema, "test") for row in each.to_pylist()])
        assert plan.latest_us == 4
        assert meter.counts.cached_runs == 1
        made.append(meter.counts.made)
        plans.close()
    assert found[0] == found[1] and len(found[0]) == 3
    assert made == [1, 0]


def test_texts_that_are_one_object_or_two_make_no_other_program() -> None:
    one = "".join(["in", "put"])
    two = "".join(["in", "put"])
    assert one is not two

    def key(*texts: object) -> object:
        return cache_key(to_spark(SCHEMA), [TransformSpec(function=lambda df: (df, *texts))])

    assert key(one, one, [1], b"x") == key(one, two, [1], b"x")
    assert key(one, two) == key(two, two)
    assert key(one, one) != key(one, "inpu")
    assert key(one, one, "t") != key(one, "t", one)
    same, other = [1], [2]
    assert key(same, same) != key(same, [1])  # changed in one place, or in two
    assert key(same, other, same) != key(same, other, other)
    assert key(1) != key("1") != key(b"1") != key(1.0)
    long = [str(number) for number in range(300_000)]
    assert key(long) == key(list(long)) != key(long[1:])
