"""Static tables in transforms: joined on cached plans, read once, and never changed in a bundle."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import functions as sql

from firesteel import Environment, StaticTable
from firesteel.errors import FiresteelError
from firesteel.operators import (
    AggregateExpression,
    PartialWindowAggregateSpec,
    Spec,
    TransformSpec,
    TumblingSpec,
)
from firesteel.testing import OperatorHarness
from taskexecutor.executor.columnar.cached_plans import static_tables
from taskexecutor.executor.columnar.cached_plans.static_tables import StaticTables
from taskexecutor.executor.columnar.jvm.engine import SparkEngine
from taskexecutor.executor.columnar.stages.transform_stage import SparkTransformStage
from tests.integration.analysis import analyzed, schema_of

SCHEMA = pa.schema([("k", pa.int64()), ("t", pa.timestamp("us", "UTC"))])


@pytest.fixture
def tables(engine: SparkEngine) -> Iterator[StaticTables]:
    tables = StaticTables(engine)
    yield tables
    tables.close()


def written(path: Path, prices: dict[int, float]) -> str:
    """Replaces the file in one step."""
    lines = "".join(f'{{"k": {key}, "price": {price}}}\n' for key, price in prices.items())
    path.with_name("new").write_text(lines)
    os.replace(path.with_name("new"), path)
    return str(path)


def table(path: str, **settings: Any) -> StaticTable:
    return Environment().static(
        lambda spark: spark.read.schema("k LONG, price DOUBLE").json(path),
        name="prices",
        **settings,
    )


class Stage:
    """A stage of these functions, and the rows that each bundle gives."""

    def __init__(self, engine: SparkEngine, *specs: Any) -> None:
        self.operator = SparkTransformStage([_spec(each) for each in specs], None)
        harness = OperatorHarness(self.operator, [SCHEMA], spark=engine.session)
        self.harness = harness.open()
        self._seen = 0

    def bundle(self, *keys: int) -> list[dict[str, Any]]:
        rows = [{"k": key, "t": 1_000_000 * key} for key in keys]
        self.harness.process(pa.RecordBatch.from_pylist(rows, schema=SCHEMA))
        self.harness.flush()
        found = self.harness.rows()[self._seen :]
        self._seen += len(found)
        return found

    @property
    def kept(self) -> bool:
        plans = self.operator._plans
        return plans is not None and plans.frame is not None


def _spec(each: Any) -> Spec:
    return TransformSpec(function=each) if callable(each) else each


def ordered(rows: list[dict[str, Any]]) -> list[str]:
    return sorted(map(repr, rows))


COUNTED = PartialWindowAggregateSpec(
    key_columns=("price",),
    window=TumblingSpec(size_us=2_000_000),
    time_column="t",
    aggregates=(
        AggregateExpression(sql="", name="n", partial={"_n": "count(1)"}, merge={}, final=""),
    ),
)
# Functions of the stream's rows and the table's.
JOINS = {
    "inner": [lambda df, prices: df.join(prices, "k")],
    "left": [lambda df, prices: df.join(prices, "k", "left")],
    "semi": [lambda df, prices: df.join(prices, "k", "semi")],
    "anti": [lambda df, prices: df.join(prices, "k", "anti")],
    "table first": [lambda df, prices: prices.join(df, "k", "right")],
    "by a condition": [lambda df, prices: df.join(prices, df.k > prices.k, "left").drop(prices.k)],
    "every pair": [lambda df, prices: df.crossJoin(prices.select("price"))],
    "twice": [
        lambda df, prices: df.join(prices, "k", "left").join(
            prices.withColumnRenamed("price", "other"), "k", "left"
        )
    ],
    "aggregated": [
        lambda df, prices: df.join(prices.groupBy("k").agg(sql.max("price").alias("most")), "k"),
    ],
    "in two transforms": [
        lambda df, prices: df.join(prices.where("price > 1"), "k", "left").where("k < 9"),
        lambda df, prices: df.join(prices.select("k"), "k", "anti"),
    ],
    "before a window": [
        lambda df, prices: df.join(prices.repartition(3, "k").distinct(), "k"),
        COUNTED,
    ],
}


@pytest.mark.one_in(3)
@pytest.mark.parametrize("name", JOINS)
def test_joins_run_by_a_cached_plan(
    engine: SparkEngine, tables: StaticTables, tmp_path: Path, name: str
) -> None:
    path = written(tmp_path / "prices.json", {1: 1.5, 2: 2.5, 4: 1.5})
    prices = table(path)

    def plain(each: Any) -> Any:
        return lambda df: each(df, df.sparkSession.read.schema("k LONG, price DOUBLE").json(path))

    def static(each: Any) -> Any:
        return lambda df: each(df, prices.dataframe())

    oracle = Stage(engine, *[plain(each) if callable(each) else each for each in JOINS[name]])
    stage = Stage(engine, *[static(each) if callable(each) else each for each in JOINS[name]])
    bundles = [(1, 2, 3), (4, 4, 9), (10,)]
    found = [row for keys in bundles for row in stage.bundle(*keys)]
    assert stage.kept
    assert ordered(found) == ordered(oracle.bundle(*(key for keys in bundles for key in keys)))


def test_a_table_is_read_once_for_all_stages_of_a_slot(
    engine: SparkEngine, tables: StaticTables, tmp_path: Path
) -> None:
    path = written(tmp_path / "prices.json", {1: 1.5})
    reads = []
    prices = Environment().static(lambda spark: reads.append(1) or spark.read.json(path))
    stages = [Stage(engine, lambda df: df.join(prices.dataframe(), "k")) for _ in range(2)]
    for _ in range(2):
        for stage in stages:
            assert [row["price"] for row in stage.bundle(1, 2)] == [1.5]
    assert len(reads) == 1


@pytest.mark.parametrize("kept", [True, False])
def test_a_refresh_is_seen_by_the_next_bundle(
    engine: SparkEngine, tables: StaticTables, tmp_path: Path, kept: bool
) -> None:
    path = tmp_path / "prices.json"
    written(path, {1: 1.0, 2: 1.0})
    prices = table(str(path), refresh="1 hour")
    found: list[float] = []

    def function(df: Any) -> Any:
        """Both joins see one version, whatever happens between them."""
        df = df.join(prices.dataframe(), "k")
        tables._held[prices.id]._refresh()
        df = df.join(prices.dataframe().withColumnRenamed("price", "again"), "k")
        return df if kept else df.where("rand() >= 0")

    stage = Stage(engine, function)
    for version in (1.0, 2.0, 3.0):
        written(path, {1: version, 2: version})
        if stage.operator._plans is not None:
            tables._held[prices.id]._refresh()
        rows = stage.bundle(1, 2)
        assert [row["price"] for row in rows] == [row["again"] for row in rows]
        found += [row["price"] for row in rows]
    assert found == [1.0, 1.0, 2.0, 2.0, 3.0, 3.0]


def test_a_bundle_in_parts_sees_one_version(
    engine: SparkEngine, tables: StaticTables, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("taskexecutor.executor.columnar.columns.bundles._PART_BYTES", 1)
    path = tmp_path / "prices.json"
    written(path, dict.fromkeys(range(4), 1.0))
    prices = table(str(path), refresh="1 hour")
    stage = Stage(engine, lambda df: df.join(prices.dataframe(), "k"))
    stage.bundle(0)
    assert stage.kept
    emit, emitted = stage.operator._emit, itertools.count()

    def refreshing(batch: pa.RecordBatch) -> None:
        if next(emitted) == 1:
            written(path, dict.fromkeys(range(4), 2.0))
            tables._held[prices.id]._refresh()
        emit(batch)

    monkeypatch.setattr(stage.operator, "_emit", refreshing)
    assert [row["price"] for row in stage.bundle(0, 1, 2, 3)] == [1.0] * 4
    assert [row["price"] for row in stage.bundle(0, 1)] == [2.0] * 2
    assert stage.kept


def test_a_refresh_that_keeps_failing_fails_the_next_bundle(
    engine: SparkEngine, tables: StaticTables, tmp_path: Path
) -> None:
    path = tmp_path / "prices.json"
    written(path, {1: 1.0})
    prices = table(str(path), refresh="1 hour")
    stage = Stage(engine, lambda df: df.join(prices.dataframe(), "k"))
    assert len(stage.bundle(1)) == 1
    path.write_text("")
    held = tables._held[prices.id]
    read_s = held._read_s
    for failures in range(1, static_tables.REFRESH_ATTEMPTS):
        assert held._refresh() <= static_tables.RETRY_S
        assert len(stage.bundle(1)) == 1  # the rows it has
        (status,) = tables.status()
        assert (status.name, status.failed_refreshes) == ("prices", failures)
        assert held._read_s == read_s
    assert held._refresh() == 3600
    with pytest.raises(FiresteelError, match=r"static table 'prices' \(.*\): it has no rows"):
        stage.bundle(1)


def test_a_table_is_refreshed_at_its_interval(
    engine: SparkEngine, tables: StaticTables, tmp_path: Path
) -> None:
    path = tmp_path / "prices.json"
    written(path, {1: 1.0})
    prices = table(str(path), refresh="50 ms")
    stage = Stage(engine, lambda df: df.join(prices.dataframe(), "k"))
    assert stage.bundle(1)[0]["price"] == 1.0
    written(path, {1: 2.0})
    while stage.bundle(1)[0]["price"] == 1.0:
        pass


@pytest.mark.parametrize(
    ("read", "settings", "message"),
    [
        (lambda spark: None, {}, "its function returned NoneType; it must return a"),
        (lambda spark: spark.readStream.format("rate").load(), {}, "a streaming DataFrame"),
        (
            lambda spark: spark.range(0),
            {},
            "it has no rows; check the data that its function reads",
        ),
        (lambda spark: spark.range(100_000), {"max_size": "64 kb"}, "it has more than 64 kb of"),
        (lambda spark: spark.read.parquet("/none"), {}, "Path does not exist: file:/none"),
        (lambda spark: 1 / 0, {}, "ZeroDivisionError: division by zero"),
    ],
)
def test_tables_that_cannot_be_held(
    engine: SparkEngine, tables: StaticTables, read: Any, settings: Any, message: str
) -> None:
    prices = Environment().static(read, name="prices", **settings)
    stage = Stage(engine, lambda df: df.join(prices.dataframe().toDF("k"), "k"))
    with pytest.raises(FiresteelError) as raised:
        stage.bundle(1)
    assert str(raised.value).startswith("static table 'prices' (test_static_tables.py, line ")
    assert message in str(raised.value)


def test_a_table_may_be_empty_if_the_program_says_so(
    engine: SparkEngine, tables: StaticTables
) -> None:
    blocked = Environment().static(lambda spark: spark.range(0).toDF("k"), allow_empty=True)
    stage = Stage(engine, lambda df: df.join(blocked.dataframe(), "k", "anti"))
    assert len(stage.bundle(1, 2)) == 2
    assert stage.kept


def test_columns_must_stay_the_same(
    engine: SparkEngine, tables: StaticTables, tmp_path: Path
) -> None:
    path = tmp_path / "prices.json"
    written(path, {1: 1.0})
    prices = Environment().static(lambda spark: spark.read.json(str(path)), refresh="1 hour")
    stage = Stage(engine, lambda df: df.join(prices.dataframe(), "k"))
    stage.bundle(1)
    path.write_text('{"k": 1, "price": "free"}\n')
    held = tables._held[prices.id]
    for _ in range(static_tables.REFRESH_ATTEMPTS):
        held._refresh()
    with pytest.raises(FiresteelError, match="its columns have changed: they were"):
        stage.bundle(1)


def test_analysis_finds_columns_and_reads_no_rows(engine: SparkEngine) -> None:
    env = Environment()
    prices = env.static(lambda spark: spark.range(3).selectExpr("id AS k", "1 / (id - id) AS p"))
    joined = env.from_sequence(0, 9, column="k").transform(
        lambda df: df.join(prices.dataframe(), "k", "left")
    )
    assert schema_of(joined, engine).names == ["k", "p"]


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda df, prices: df.join(prices, "k", "full"), "a full outer join with its input on"),
        (lambda df, prices: df.join(prices, "k", "right"), "a right outer join with its input on"),
        (lambda df, prices: prices.join(df, "k", "left"), "a left outer join with its input on"),
        (lambda df, prices: prices.join(df, "k", "anti"), "a left anti join with its input on"),
        (lambda df, prices: prices, "whose plan does not start with its argument"),
        (lambda df, prices: df.select("k").union(prices), "union with rows from outside"),
        (lambda df, prices: df.join(prices.nope, "k"), "nope"),
    ],
)
def test_joins_that_do_not_match_each_row_on_its_own_are_refused(
    engine: SparkEngine, function: Any, message: str
) -> None:
    env = Environment()
    prices = env.static(lambda spark: spark.range(3).toDF("k"))
    stream = env.from_sequence(0, 9, column="k").transform(
        lambda df: function(df, prices.dataframe())
    )
    with pytest.raises(Exception, match=message):
        analyzed(stream, engine)


class TestOverJobs:
    """State that one job leaves to the next job in the slot."""

    @pytest.fixture(autouse=True)
    def cache(self, engine: SparkEngine) -> Iterator[None]:
        engine.plan_cache.close()
        yield
        engine.plan_cache.close()

    def test_the_same_rows_are_joined_by_the_same_plan(
        self, engine: SparkEngine, tmp_path: Path
    ) -> None:
        path = written(tmp_path / "prices", {1: 1.5})
        before = engine.session_properties()
        found = [job(engine, path) for _ in range(3)]
        assert found == [(True, [1.5]), (False, [1.5]), (False, [1.5])]
        assert engine.session_properties().equals(before)

    def test_other_rows_are_joined_by_another_plan(
        self, engine: SparkEngine, tmp_path: Path
    ) -> None:
        file = tmp_path / "prices"
        for price in (0.0, -0.0, 1.5):
            made, prices = job(engine, written(file, {1: price}))
            assert made
            assert list(map(str, prices)) == [str(price)]

    def test_a_large_table_leaves_no_plan(
        self, engine: SparkEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(static_tables, "_KEPT_BYTES", 10)
        path = written(tmp_path / "prices", {1: 1.5})
        assert [job(engine, path) for _ in range(2)] == [(True, [1.5])] * 2

    def test_what_python_has_computed_is_computed_again(
        self, engine: SparkEngine, tmp_path: Path
    ) -> None:
        """The next job may have different modules."""
        path = written(tmp_path / "prices", {1: 1.5})
        factor = str(tmp_path / "factor")

        def join(df: Any, prices: Any) -> Any:
            multiplied = sql.udf(lambda price: price * float(Path(factor).read_text()), "double")
            return df.join(prices.select("k", multiplied("price").alias("price")), "k")

        Path(factor).write_text("2")
        assert job(engine, path, join) == (True, [3.0])
        Path(factor).write_text("3")
        assert job(engine, path, join) == (True, [4.5])

    def test_a_refresh_that_finds_the_same_rows_changes_nothing(
        self, engine: SparkEngine, tmp_path: Path
    ) -> None:
        path = written(tmp_path / "prices", {1: 1.5})
        tables = StaticTables(engine)
        prices = table(path, refresh="1 hour")
        stage = Stage(engine, lambda df: df.join(prices.dataframe(), "k"))
        first = stage.bundle(1)
        (held,) = tables._held.values()
        version = held.version()
        held._refresh()
        assert held.version() is version
        assert not version.superseded
        assert stage.bundle(1) == first
        written(tmp_path / "prices", {1: 2.5})
        held._refresh()
        assert version.superseded
        assert [row["price"] for row in stage.bundle(1)] == [2.5]
        written(tmp_path / "prices", {1: 1.5})
        held._refresh()
        assert [row["price"] for row in stage.bundle(1)] == [1.5]
        stage.operator.close()
        tables.close()


def job(
    engine: SparkEngine,
    path: str,
    join: Any = lambda df, prices: df.join(prices, "k"),
) -> tuple[bool, list[float]]:
    """Whether it made a plan, and the prices of key 1."""
    tables = StaticTables(engine)
    try:
        prices = table(path)
        stage = Stage(engine, lambda df: join(df, prices.dataframe()))
        found = [row["price"] for row in stage.bundle(1)]
        assert stage.kept
        made = stage.operator.context.plan_meter.counts.made
        stage.operator.close()
        return made > 0, found
    finally:
        tables.close()
