"""`apply`: functions over all rows of one or two inputs, compared with Spark's own answer."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as sql

from firesteel.errors import FiresteelError
from firesteel.plan.specs import ApplySpec
from taskexecutor.executor.harness import OperatorHarness
from taskexecutor.executor.spark.columns import spool
from taskexecutor.executor.spark.jvm.engine import SparkEngine
from taskexecutor.executor.spark.result_files import collect_in_files
from taskexecutor.executor.spark.schemas import to_arrow
from taskexecutor.executor.spark.whole_rows import ApplyToAll
from taskexecutor.executor.timing.clock import TaskClock
from taskexecutor.executor.timing.plan_meter import PlanMeter

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
) -> pa.Table:
    """What the operator emits."""
    spec = ApplySpec(function=function, key_columns=((),) * len(inputs))
    operator = ApplyToAll(spec, None)
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
    """What Spark makes of the same rows."""
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
