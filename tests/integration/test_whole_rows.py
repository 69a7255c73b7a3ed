"""`apply`: functions over all rows of one or two inputs, compared with Spark's own answer."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as sql
from structlog.testing import capture_logs

from firesteel.errors import FiresteelError
from firesteel.operators import (
    ApplySpec,
    PartialWindowAggregateSpec,
    Spec,
    TransformSpec,
    TumblingSpec,
)
from firesteel.plan.aggregates.parse import parse_aggregates
from taskexecutor.executor.columnar.cached_plans import composed
from taskexecutor.executor.columnar.cached_plans.reusable_plan import temporary_conf
from taskexecutor.executor.columnar.columns import rows, spool
from taskexecutor.executor.columnar.jvm.engine import SparkEngine
from taskexecutor.executor.columnar.jvm.local_tasks import LocalTasks
from taskexecutor.executor.columnar.jvm.transfer import collect_in_files
from taskexecutor.executor.columnar.schemas import to_arrow, to_spark
from taskexecutor.executor.columnar.stages.hash_joins import with_hash_joins
from taskexecutor.executor.columnar.stages.transform_stage import SparkTransformStage
from taskexecutor.executor.columnar.stages.whole_rows import ApplyToAll
from taskexecutor.executor.harness import OperatorHarness
from taskexecutor.executor.timing.clock import PlanMeter, TaskClock

from .conftest import Slot

LEFT = pa.schema(
    [
        ("k", pa.int64()),
        ("s", pa.string()),
        ("d", pa.decimal128(12, 2)),
        ("at", pa.timestamp("us", "UTC")),
        ("tags", pa.list_(pa.string())),
        ("b", pa.bool_()),
    ]
)
RIGHT = pa.schema([("k2", pa.int64()), ("name", pa.string())])


def left_rows(count: int, seed: int = 1) -> list[dict[str, Any]]:
    chance = random.Random(seed)

    def row() -> dict[str, Any]:
        return {
            "k": chance.randrange(20) if chance.random() < 0.95 else None,
            "s": chance.choice(["", "a", "ü" * chance.randrange(30), None]),
            "d": Decimal(chance.randrange(10**6)) / 100,
            "at": chance.randrange(10**15),
            "tags": chance.choice([None, [], ["x", None, "yy"]]),
            "b": chance.choice([True, False, None]),
        }

    return [row() for _ in range(count)]


def right_rows(count: int) -> list[dict[str, Any]]:
    return [{"k2": n % 25, "name": f"name {n}"} for n in range(count)]


def batches(rows: list[dict[str, Any]], schema: pa.Schema, size: int) -> list[pa.RecordBatch]:
    return [
        pa.RecordBatch.from_pylist(rows[start : start + size], schema)
        for start in range(0, len(rows), size)
    ]


def applied(
    engine: SparkEngine,
    function: Callable[..., DataFrame],
    inputs: Sequence[tuple[pa.Schema, Sequence[pa.RecordBatch]]],
    following: SparkTransformStage | None = None,
) -> pa.Table:
    """Returns the rows that the operator emits."""
    spec = ApplySpec(function=function, key_columns=((),) * len(inputs))
    operator = ApplyToAll(spec, None, following)
    schemas = [schema for schema, _ in inputs]
    harness = OperatorHarness(operator, schemas, spark=engine.session).open()
    try:
        for number, (_, given) in enumerate(inputs):
            for batch in given:
                harness.process(batch, number)
        harness.finish()
        found = harness.batches
    finally:
        harness.close()
    return pa.Table.from_batches(found, found[0].schema) if found else pa.table({})


def expected(
    engine: SparkEngine,
    function: Callable[..., DataFrame],
    inputs: Sequence[tuple[pa.Schema, Sequence[pa.RecordBatch]]],
) -> pa.Table:
    """Returns Spark's result for the same rows."""
    frames = [
        engine.session.createDataFrame(pa.Table.from_batches(given, schema))
        for schema, given in inputs
    ]
    found = function(*frames)
    return found.toArrow().cast(to_arrow(found.schema))


def ordered(table: pa.Table) -> list[str]:
    return sorted(map(repr, table.to_pylist()))


ONE: dict[str, Callable[[DataFrame], DataFrame]] = {
    "unchanged": lambda df: df,
    "one column": lambda df: df.select("s"),
    "no column of its input": lambda df: df.select(sql.lit(1).alias("one")),
    "groups": lambda df: df.groupBy("k").agg(sql.sum("d"), sql.max("s"), sql.count("*").alias("n")),
    "extremes of all": lambda df: df.agg(sql.max("s").alias("s"), sql.min("at").alias("at")),
    "lists": lambda df: df.groupBy("b").agg(sql.sort_array(sql.collect_list("s")).alias("all")),
    "distinct": lambda df: df.select("k", "s").distinct(),
    "rank": lambda df: df.select(
        "k", sql.rank().over(Window.partitionBy("k").orderBy("d", "at")).alias("rank")
    ),
    "with itself": lambda df: df.select("k").join(df.select("k", "d"), "k").groupBy("k").count(),
    "count of distinct": lambda df: df.groupBy("k").agg(sql.countDistinct("s").alias("n")),
    "a shuffle": lambda df: df.repartition(3, "k").groupBy("k").count(),
    "partitions in order": lambda df: df.repartitionByRange(3, "at").sortWithinPartitions("at"),
    "a user-defined function": lambda df: df.select(
        sql.udf(len, "int")(sql.coalesce("s", sql.lit("none")))
    ),
    "pandas": lambda df: (
        df.select("k", "b")
        .groupBy("k")
        .applyInPandas(lambda rows: rows.head(1), "k LONG, b BOOLEAN")
    ),
}


@pytest.mark.one_in(3)
@pytest.mark.parametrize("case", ONE)
def test_of_one_input(engine: SparkEngine, case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spool, "_FILE_BYTES", 60_000)  # several files
    monkeypatch.setattr(spool, "_BATCH_ROWS", 100)  # of several batches
    inputs = [(LEFT, batches(left_rows(2_000), LEFT, 70))]
    found, wanted = applied(engine, ONE[case], inputs), expected(engine, ONE[case], inputs)
    if case == "pandas":  # which row comes first is not defined
        found, wanted = found.select(["k"]), wanted.select(["k"])
    assert ordered(found) == ordered(wanted)
    if case == "partitions in order":
        assert found["at"].to_pylist() == sorted(wanted["at"].to_pylist())
    assert found.schema.names == wanted.schema.names


TWO: dict[str, Callable[[DataFrame, DataFrame], DataFrame]] = {
    how: lambda left, right, how=how: left.join(right, left.k == right.k2, how)  # type: ignore[misc]
    for how in ("inner", "left", "right", "full", "left_semi", "left_anti")
} | {
    "both in order": lambda left, right: left.select("k", "d").union(
        right.selectExpr("k2", "CAST(1 AS DECIMAL(12, 2))")
    ),
    "groups of both": lambda left, right: (
        left.select("k").union(right.select("k2")).groupBy("k").count()
    ),
    "small side": lambda left, right: left.join(sql.broadcast(right), left.k == right.k2),
}


@pytest.mark.parametrize("case", TWO)
def test_of_two_inputs(engine: SparkEngine, case: str) -> None:
    inputs = [
        (LEFT, batches(left_rows(600), LEFT, 70)),
        (RIGHT, batches(right_rows(50), RIGHT, 7)),
    ]
    found = applied(engine, TWO[case], inputs)
    assert ordered(found) == ordered(expected(engine, TWO[case], inputs))


@pytest.fixture
def no_broadcasts(engine: SparkEngine) -> Iterator[None]:
    """As if all sides of joins were too large."""
    with temporary_conf(engine.session, {"spark.sql.autoBroadcastJoinThreshold": "-1"}):
        yield


@pytest.mark.one_in(3)
@pytest.mark.parametrize("room_bytes", [2**30, 0], ids=["hash tables", "sorts"])
@pytest.mark.parametrize("case", TWO)
@pytest.mark.usefixtures("no_broadcasts")
def test_of_two_large_inputs(
    engine: SparkEngine, case: str, room_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(LocalTasks, "free_bytes", room_bytes)
    test_of_two_inputs(engine, case)


def of_spool(engine: SparkEngine, folder: Path, name: str, count: int) -> DataFrame:
    waiting = spool.Spool(folder, name, ["k2", "name"])
    for batch in batches(right_rows(count), RIGHT, 1_000):
        waiting.add(batch)
    return rows.frame(engine, to_spark(RIGHT), waiting.java(engine))


Join = Callable[[DataFrame, DataFrame], DataFrame]
HASHED: dict[str, tuple[Join, str]] = {
    "inner": (lambda few, many: few.join(many, "k2"), "Inner, BuildLeft"),
    "left": (lambda few, many: few.join(many, "k2", "left"), "LeftOuter, BuildRight"),
    "right": (lambda few, many: few.join(many, "k2", "right"), "RightOuter, BuildLeft"),
    "full": (lambda few, many: few.join(many, "k2", "full"), "FullOuter, BuildLeft"),
    "semi": (lambda few, many: few.join(many, "k2", "left_semi"), "LeftSemi, BuildRight"),
    "anti": (lambda few, many: many.join(few, "k2", "left_anti"), "LeftAnti, BuildRight"),
    "groups": (
        lambda few, many: many.join(few.where("k2 > 3").groupBy("k2").count(), "k2"),
        "Inner, BuildRight",
    ),
}
SORTED: dict[str, Join] = {
    "of unknown rows": lambda few, many: few.selectExpr("explode(array(k2, 1)) AS k").join(
        many.selectExpr("explode(array(k2, 1)) AS k"), "k"
    ),
    "by a hint": lambda few, many: few.hint("merge").join(many, "k2"),
    "not of equal columns": lambda few, many: few.alias("a").join(
        many.alias("b"), sql.expr("a.k2 < b.k2")
    ),
}


@pytest.mark.parametrize("case", HASHED)
@pytest.mark.usefixtures("no_broadcasts")
def test_a_join_has_a_hash_table_of_the_smaller_side(
    engine: SparkEngine, tmp_path: Path, case: str
) -> None:
    join, how = HASHED[case]
    few, many = (of_spool(engine, tmp_path, str(count), count) for count in (10, 2_000))
    plan = with_hash_joins(engine, join(few, many), 2**20).toString()
    assert f"ShuffledHashJoin [k2#], [k2#], {how}" in re.sub(r"#\d+L", "#", plan)
    assert with_hash_joins(engine, join(few, many), 1_000) is None, "there is no room"


@pytest.mark.parametrize("case", SORTED)
@pytest.mark.usefixtures("no_broadcasts")
def test_a_join_has_no_hash_table(engine: SparkEngine, tmp_path: Path, case: str) -> None:
    few, many = (of_spool(engine, tmp_path, str(count), count) for count in (10, 2_000))
    plan = with_hash_joins(engine, SORTED[case](few, many), 2**30)
    assert plan is None


def test_a_join_has_no_hash_table_if_a_side_is_broadcast(
    engine: SparkEngine, tmp_path: Path
) -> None:
    few, many = (of_spool(engine, tmp_path, str(count), count) for count in (10, 2_000))
    assert with_hash_joins(engine, few.join(many, "k2"), 2**20) is None
    assert with_hash_joins(engine, few.join(many, "k2", "full"), 2**20) is not None


@pytest.mark.one_in(2)
@pytest.mark.parametrize("same", ["na = nb", "na = nb AND sa = sb"])
def test_a_join_sorts_if_a_hash_table_has_no_room_after_all(
    slot: Slot, same: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The heap may hold 200 MB of such rows; both sides are larger."""
    engine = slot.spark(heap_bytes=512 * 2**20)
    monkeypatch.setattr(LocalTasks, "free_bytes", 2**40)
    count, size, word = 800_000, 100_000, "x" * 200
    schemas = [pa.schema([(f"n{side}", pa.int64()), (f"s{side}", pa.string())]) for side in "ab"]

    def numbers(schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        text = pa.array([word] * size)
        for start in range(0, count, size):
            mixed = pa.array([(start + i) * 7_919 % count for i in range(size)])
            yield pa.RecordBatch.from_arrays([mixed, text], schema=schema)

    def joined(a: DataFrame, b: DataFrame) -> DataFrame:
        rows = a.join(b, sql.expr(same))
        length = sql.sum(sql.expr("length(sa) + length(sb)"))
        return rows.agg(length.alias("length"), sql.sum("nb").alias("sum"))

    with capture_logs() as logs:
        found = applied(engine, joined, [(s, numbers(s)) for s in schemas])  # type: ignore[misc]
    assert found.to_pylist() == [{"length": 400 * count, "sum": count * (count - 1) // 2}]
    assert "falling back to sort joins" in str(logs)
    assert "memory" in str(logs)
    assert engine.local_tasks.used_bytes == 0


def following(schema: pa.Schema, given: pa.Schema, *specs: Spec) -> SparkTransformStage:
    return SparkTransformStage(specs, schema, given)


def joined_rows(engine: SparkEngine, *specs: Spec) -> tuple[pa.Table, pa.Table]:
    """Returns the rows of a join with these operators, and the same from the join's rows in bundles."""
    inputs = [
        (LEFT, batches(left_rows(600), LEFT, 70)),
        (RIGHT, batches(right_rows(50), RIGHT, 7)),
    ]

    def join(left: DataFrame, right: DataFrame) -> DataFrame:
        return left.join(right, left.k == right.k2).select("k", "s", "d", "at", "name")

    given = expected(engine, join, inputs)
    frame = composed.apply(engine.session.createDataFrame(given), specs, cores=0)
    schema = to_arrow(frame.schema)
    after = following(schema, given.schema, *specs)
    found = applied(engine, join, inputs, after)
    return found, frame.toArrow().cast(schema)


LARGE = TransformSpec(function=lambda df: df.where("d > 1000").withColumn("k", sql.expr("k + 1")))
AGGREGATED = PartialWindowAggregateSpec(
    key_columns=("name",),
    window=None,
    time_column="",
    aggregates=parse_aggregates(["count(*) AS n", "sum(d) AS d", "max(s) AS s"], time_column=""),
)
WINDOWED = replace(AGGREGATED, window=TumblingSpec(size_us=10**14), time_column="at")
BY_PYTHON = TransformSpec(function=lambda df: df.withColumn("n", sql.udf(len, "int")("name")))


@pytest.mark.parametrize(
    "specs",
    [(LARGE,), (AGGREGATED,), (LARGE, AGGREGATED), (WINDOWED,), (BY_PYTHON,), (BY_PYTHON, LARGE)],
    ids=["transform", "aggregate", "both", "window", "Python", "Python and transform"],
)
def test_what_follows_has_the_rows(engine: SparkEngine, specs: tuple[Spec, ...]) -> None:
    found, wanted = joined_rows(engine, *specs)
    assert ordered(found) == ordered(wanted)
    assert found.schema == wanted.schema


def test_what_follows_is_in_the_same_plan(
    engine: SparkEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SparkTransformStage, "process_batch", fails)
    found, wanted = joined_rows(engine, LARGE, AGGREGATED)
    assert ordered(found) == ordered(wanted)


def fails(*arguments: Any) -> None:
    raise AssertionError("not called")


def test_what_is_meant_for_bundles_has_bundles(engine: SparkEngine) -> None:
    counted = TransformSpec(
        function=lambda df: df.limit(df.count()).select("name"), per_bundle=True
    )
    found, wanted = joined_rows(engine, counted)
    assert ordered(found) == ordered(wanted)


def test_the_order_of_a_join_and_a_sort_by_its_keys_is_kept(engine: SparkEngine) -> None:
    inputs = [
        (LEFT, batches(left_rows(600), LEFT, 70)),
        (RIGHT, batches(right_rows(50), RIGHT, 7)),
    ]

    def function(left: DataFrame, right: DataFrame) -> DataFrame:
        return left.join(right, left.k == right.k2).orderBy("k").select("k")

    found = applied(engine, function, inputs)["k"].to_pylist()
    assert found == sorted(found)
    assert len(found) == expected(engine, function, inputs).num_rows


def test_the_order_of_a_sort_is_kept(engine: SparkEngine) -> None:
    rows = left_rows(5_000)
    found = applied(
        engine, lambda df: df.select("at").orderBy("at"), [(LEFT, batches(rows, LEFT, 500))]
    )
    times = [value.value for value in found["at"].combine_chunks()]
    assert times == sorted(row["at"] for row in rows)


@pytest.mark.parametrize("given", [(), (0,)])
def test_an_input_without_rows(engine: SparkEngine, given: tuple[int, ...]) -> None:
    empty = [pa.RecordBatch.from_pylist([], LEFT) for _ in given]
    counted = applied(engine, lambda df: df.agg(sql.count("*").alias("n")), [(LEFT, empty)])
    assert counted.to_pylist() == [{"n": 0}]
    assert not applied(engine, lambda df: df, [(LEFT, empty)]).num_rows


def test_nothing_is_left_behind(engine: SparkEngine) -> None:
    before = sorted(engine.temp_dir.rglob("*.rows"))
    applied(engine, lambda df: df.distinct(), [(RIGHT, batches(right_rows(50), RIGHT, 7))])

    def fails(df: DataFrame) -> DataFrame:
        return df.select(sql.raise_error(sql.lit("no such row")).cast("int").alias("x"))

    with pytest.raises(Exception, match="no such row"):
        applied(engine, fails, [(RIGHT, batches(right_rows(50), RIGHT, 7))])
    assert sorted(engine.temp_dir.rglob("*.rows")) == before
    assert engine.local_tasks.used_bytes == 0


def test_a_full_disk_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    full = spool.Spool(tmp_path, "input", ["k2", "name"])
    monkeypatch.setattr(spool.Spool, "_path", property(lambda _: Path("/dev/full")))
    batch = pa.RecordBatch.from_pylist(right_rows(200_000), RIGHT)
    with pytest.raises(FiresteelError, match="/dev/full: No space left on device"):
        full.add(batch)
    full.close()


def test_more_rows_than_the_heap_has_room_for_are_spilled(slot: Slot) -> None:
    engine = slot.spark(heap_bytes=512 * 2**20)
    rows, size = 6_000_000, 250_000  # 600 MB as Spark sorts them
    text = pa.array(["x" * 40] * size)
    schema = pa.schema([("n", pa.int64()), ("s", pa.string())])

    def numbers(start: int) -> pa.RecordBatch:
        mixed = [(start + i) * 7_919 % rows for i in range(size)]
        return pa.RecordBatch.from_arrays([pa.array(mixed), text], schema=schema)

    given = (numbers(start) for start in range(0, rows, size))
    found = applied(engine, lambda df: df.orderBy("n", "s"), [(schema, given)])  # type: ignore[list-item]
    assert found["n"].combine_chunks().equals(pa.array(range(rows)))


def test_results_of_a_job_of_sparks_may_be_larger_than_the_heap(slot: Slot, tmp_path: Path) -> None:
    engine = slot.spark(heap_bytes=512 * 2**20)
    frame = engine.session.range(500_000, numPartitions=2)
    frame = frame.selectExpr("id", "repeat(char(97 + id % 26), 1000) AS s")
    schema, found = to_arrow(frame.schema), 0
    for batch in collect_in_files(frame, schema, unmetered(), engine.code, tmp_path):
        assert batch.schema == schema
        assert batch["id"].to_pylist() == list(range(found, found + batch.num_rows))
        last = batch.num_rows - 1
        assert batch["s"][last].as_py() == chr(97 + (found + last) % 26) * 1000
        found += batch.num_rows
    assert found == 500_000
    assert not list(tmp_path.iterdir())


def test_a_disk_that_results_fill_is_named(engine: SparkEngine, tmp_path: Path) -> None:
    (tmp_path / "result-0").symlink_to("/dev/full")
    frame = engine.session.range(10)
    results = collect_in_files(frame, to_arrow(frame.schema), unmetered(), engine.code, tmp_path)
    with pytest.raises(Exception, match=r"cannot write results to .*/result-0: No space left on"):
        next(results)


def unmetered() -> PlanMeter:
    return PlanMeter(TaskClock())
