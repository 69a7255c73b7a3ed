"""Random functions are reseeded for each run of a plan and for each subtask. A program's seeds are
refused, as their numbers would be the same.
"""

from __future__ import annotations

import functools
import random
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import cloudpickle
import pyarrow as pa
import pytest
from pyspark.sql import functions as F

from firesteel import DataStream, Environment, Session, Tumbling
from firesteel.connectors import ForeachBatchSink
from firesteel.errors import FiresteelError
from firesteel.operators import TransformSpec
from firesteel.plan import frame_methods
from firesteel.testing import OperatorHarness
from taskexecutor.executor.analysis.random_numbers import is_repeatable
from taskexecutor.executor.columnar.jvm.engine import SparkEngine
from taskexecutor.executor.columnar.stages.transform_stage import SparkTransformStage
from taskexecutor.executor.connectors.foreach_batch import ForeachBatch
from tests.integration.analysis import analyzed, json_rows

# Columns of a program, which has no session: made before the engine starts.
Environment()
UUID = F.uuid()
RAND = F.rand().cast("string")
SEEDED = F.uuid(7)
SHUFFLED = F.shuffle(F.array("n", "n"), 7).alias("x")
KEY = F.randn(5).alias("k")
NUMBERS = pa.schema([("n", pa.int64())])
DRAWN: dict[str, Callable[[Any], Any]] = {
    "a Column of the program": frame_methods.with_column("id", UUID),
    "one that a function refers to": lambda df: df.withColumn("id", RAND),
    "one of the function": lambda df: df.withColumn("id", F.rand().cast("string")),
    "SQL": frame_methods.selected_by_sql(["n", "randstr(20) AS id"]),
}


rows = partial(
    json_rows,
    schema="shop STRING, n LONG, at TIMESTAMP",
    row='{"shop": "a", "n": 1, "at": "2020-01-01 00:00:00"}',
)


def numbers(first: int, count: int) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"n": range(first, first + count)}, schema=NUMBERS)


@pytest.mark.parametrize("function", DRAWN.values(), ids=list(DRAWN))
def test_each_bundle_of_each_subtask_has_its_own(engine: SparkEngine, function: Any) -> None:
    shipped = cloudpickle.dumps(TransformSpec(function=function))
    ids = []
    for subtask in range(2):
        operator = SparkTransformStage([cloudpickle.loads(shipped)], None)
        harness = OperatorHarness(
            operator, [NUMBERS], spark=engine.session, subtask=subtask, parallelism=2
        ).open()
        for bundle in range(3):
            harness.process(numbers(bundle * 10, 10))
            harness.flush()
        harness.end()
        ids += [row["id"] for row in harness.rows()]
    assert len(ids) == len(set(ids)) == 60


def test_a_column_is_made_once_in_each_call_of_a_function(engine: SparkEngine) -> None:
    def twice(df: Any) -> Any:
        return df.withColumn("one", UUID).withColumn("other", UUID)

    operator = SparkTransformStage([TransformSpec(function=twice)], None)
    harness = OperatorHarness(operator, [NUMBERS], spark=engine.session).open()
    harness.process(numbers(0, 10))
    harness.end()
    assert all(row["one"] == row["other"] for row in harness.rows()), "as in PySpark"


def test_each_batch_of_foreach_batch_has_its_own(engine: SparkEngine) -> None:
    ids: list[str] = []

    def keep(df: Any, _: int) -> None:
        ids.extend(row.id for row in df.select(UUID.alias("id")).collect())

    harness = OperatorHarness(
        ForeachBatch(ForeachBatchSink(keep)), [NUMBERS], spark=engine.session
    ).open()
    for bundle in range(2):
        harness.process(numbers(bundle * 10, 10))
        harness.flush()
    harness.end()
    assert len(ids) == len(set(ids)) == 20


# ---- seeds


def in_sql(query: str, df: Any) -> Any:
    df.createOrReplaceTempView("sales")
    return df.sparkSession.sql(query)


@pytest.mark.parametrize(
    ("add", "message"),
    [
        (lambda s: s.with_column("id", "uuid(7)"), "WithColumn(id): uuid() has the seed 7, with"),
        (lambda s: s.with_column("id", SEEDED), "WithColumn(id): uuid() has the seed 7"),
        (lambda s: s.select(SHUFFLED), "shuffle() has the seed 7"),
        (lambda s: s.where("rand(3) < 0.1"), "Filter(rand(3) < 0.1): rand() has the seed 3"),
        (lambda s: s.key_by(KEY), "randn() has the seed 5"),
        (lambda s: s.select_expr("randstr(4, 7) AS t"), "randstr() has the seed 7"),
        (lambda s: s.select_expr("uniform(0, 9, 7) + n AS t"), "uniform() has the seed 7"),
        (lambda s: s.select_expr("transform(array(1), x -> x + rand(7)) AS t"), "the seed 7"),
        (
            lambda s: s.transform(lambda df: df.sample(fraction=0.1, seed=7)),
            "sample() has the seed 7",
        ),
        (
            lambda s: s.transform(lambda df: df.randomSplit([1.0, 1.0], 7)[0]),
            "sample() has the seed 7",
        ),
        (
            lambda s: s.transform(lambda df: df.sampleBy("shop", {"a": 0.5}, 7)),
            "rand() has the seed 7",
        ),
        (
            lambda s: s.transform(
                functools.partial(in_sql, "FROM sales TABLESAMPLE (10 PERCENT) REPEATABLE (7)")
            ),
            "sample() has the seed 7",
        ),
        (
            lambda s: s.transform(
                functools.partial(
                    in_sql, "WITH a AS (SELECT rand(7), n FROM sales) SELECT * FROM a"
                )
            ),
            "rand() has the seed 7",
        ),
        (
            lambda s: s.transform(lambda df: df.where("rand() < 0.5 AND rand(7) < 0.5")),
            "rand() has the seed 7",
        ),
    ],
)
def test_a_seed_in_a_transform_is_refused(
    engine: SparkEngine, tmp_path: Path, add: Any, message: str
) -> None:
    with pytest.raises(FiresteelError) as raised:
        analyzed(add(rows(tmp_path)), engine)
    assert message in str(raised.value)
    assert "remove the seed, or, in a batch, use apply(...)" in str(raised.value)
    assert "test_random_numbers.py, line" in str(raised.value)


def ids_of_window(df: Any) -> Any:
    return df.groupBy("shop").count().withColumn("id", F.uuid(7))


@pytest.mark.parametrize(
    "windowed",
    [
        lambda s: s.key_by("shop").window(Tumbling("1 hour")).apply(ids_of_window),
        lambda s: s.key_by("shop").window(Session("1 hour")).apply(ids_of_window, across_keys=True),
        lambda s: s.window_all(Tumbling("1 hour")).apply(ids_of_window),
    ],
)
def test_a_seed_in_a_function_of_windows_is_refused(
    engine: SparkEngine, tmp_path: Path, windowed: Any
) -> None:
    message = r"uuid\(\) has the seed 7, .* for each window that fires .*; remove the seed$"
    with pytest.raises(FiresteelError, match=message):
        analyzed(windowed(rows(tmp_path)), engine)


@pytest.mark.parametrize(
    "applied",
    [
        lambda s: s.key_by("shop").apply(lambda df: df.withColumn("id", F.uuid(7))),
        lambda s: s.key_by("shop").apply(ids_of_window, across_keys=True),
        lambda s: (
            s.key_by("shop")
            .connect(s.key_by("shop"))
            .apply(lambda df, other: df.join(other, "shop").select("shop", F.rand(7).alias("x")))
        ),
    ],
)
def test_a_seed_in_a_function_of_a_subtask_s_rows_is_refused(
    engine: SparkEngine, tmp_path: Path, applied: Any
) -> None:
    message = r"has the seed 7, with which it returns the same values again in each subtask; remove .*keys"
    with pytest.raises(FiresteelError, match=message):
        analyzed(applied(rows(tmp_path)), engine)


def some(df: Any) -> Any:
    return df.sparkSession.range(9).sample(fraction=0.5, seed=7).withColumn("x", F.rand(7))


@pytest.mark.parametrize(
    "add",
    [
        lambda s: s.with_columns({"id": UUID, "x": RAND, "t": "randstr(4)"}),
        lambda s: s.transform(lambda df: df.select(F.shuffle(F.array("n")), F.uniform(1, 9))),
        lambda s: s.transform(lambda df: df.sample(0.5).sampleBy("shop", {"a": 0.5})),
        lambda s: s.transform(
            functools.partial(in_sql, "SELECT *, rand() FROM sales TABLESAMPLE (10 PERCENT)")
        ),
        lambda s: s.transform(lambda df: df.join(some(df), df.n == F.col("id"))),
        lambda s: s.transform(lambda df: df.sample(fraction=0.5, seed=7), per_bundle=True),
        lambda s: s.apply(lambda df: df.withColumn("id", F.uuid(7))),
        lambda s: s.key_by("shop").apply(lambda df: df.withColumn("id", F.uuid())),
        lambda s: s.window_all(Tumbling("1 hour")).apply(lambda df: df.withColumn("id", F.uuid())),
        lambda s: s.window_all(Tumbling("1 hour")).apply(
            lambda df: df.join(some(df), df.n == F.col("id")).orderBy("x").limit(3)
        ),
    ],
)
def test_what_is_drawn_or_static_or_runs_once_is_allowed(
    engine: SparkEngine, tmp_path: Path, add: Any
) -> None:
    analyzed(add(rows(tmp_path)), engine)


# ---- rows that differ when they are produced again


@F.udf("long")
def plus_one(n):  # type: ignore[no-untyped-def]
    return n + 1


@F.udf("long")
def plus_some(n):  # type: ignore[no-untyped-def]
    return n + random.randrange(9)


plus_some.asNondeterministic()


def salted(df: Any) -> Any:
    return df.withColumn("salt", F.rand())


def latest_hour(stream: DataStream) -> Any:
    return stream.window_all(Tumbling("1 hour"))


@pytest.mark.parametrize(
    ("add", "others"),
    [
        (lambda s: s.select_expr("n", "CAST(rand() * 16 AS INT) AS salt").key_by("salt"), True),
        (lambda s: s.with_column("id", UUID).map_in_arrow(lambda batches: batches), True),
        (lambda s: s.where("at < now()").where("n > 1"), True),
        (lambda s: s.transform(lambda df: df.sample(0.5)).where("n > 1"), True),
        (lambda s: s.transform(lambda df: df.select(plus_some("n"))), True),
        (lambda s: s.transform(lambda df: df.where("rand() < 0.5"), per_bundle=True), True),
        (lambda s: s.transform(salted).transform(lambda df: df, per_bundle=True), True),
        (lambda s: s.transform(salted).key_by("shop").aggregate("sum(salt) AS salt"), True),
        (lambda s: latest_hour(s).apply(salted), True),
        (lambda s: s.apply(salted), True),
        (lambda s: s.select_expr("n % 16 AS salt", "upper(shop) AS shop").key_by("salt"), False),
        (lambda s: s.transform(lambda df: df.select(plus_one("n"))), False),
        (
            lambda s: s.key_by("shop").aggregate("collect_list(n) AS ns", "count(DISTINCT n) AS d"),
            False,
        ),
        (lambda s: latest_hour(s).apply(lambda df: df.orderBy("n").limit(3)), False),
        (lambda s: s.map_in_arrow(lambda batches: batches), False),
    ],
)
def test_which_rows_are_others_when_they_are_made_again(
    engine: SparkEngine, tmp_path: Path, add: Any, *, others: bool
) -> None:
    operators = analyzed(add(rows(tmp_path)), engine)
    assert [each.repeatable for each in operators].count(False) == int(others)


# ---- plans that give other rows when they run again


def test_the_kind_of_a_node_says_whether_a_plan_takes_samples(engine: SparkEngine) -> None:
    session = engine.session
    numbers = session.range(9)
    numbers.createOrReplaceTempView("all_numbers")
    numbers.sample(0.5).createOrReplaceTempView("some_numbers")
    named = numbers.selectExpr("id AS `Sample `", "'Sample 0.5' AS text")
    assert is_repeatable(numbers) and is_repeatable(named)
    for query in (
        "SELECT * FROM some_numbers",
        "SELECT * FROM all_numbers WHERE id IN (SELECT id FROM some_numbers)",
        "SELECT (SELECT max(id) FROM some_numbers) FROM all_numbers",
        "SELECT * FROM all_numbers a WHERE EXISTS (SELECT 1 FROM some_numbers s WHERE s.id = a.id)",
        "WITH s AS (SELECT * FROM some_numbers) SELECT * FROM s JOIN s t USING (id)",
    ):
        assert not is_repeatable(session.sql(query)), query
