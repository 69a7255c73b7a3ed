"""Which transforms are refused because they relate rows to each other, and which are not."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import Window
from pyspark.sql import functions as sql

from firesteel import DataStream
from firesteel.errors import FiresteelError
from taskexecutor.executor.columnar.jvm.engine import SparkEngine
from tests.integration.analysis import analyzed, json_rows

rows = partial(
    json_rows,
    schema="shop STRING, n LONG, tags ARRAY<STRING>",
    row='{"shop": "a", "n": 1, "tags": ["x"]}',
)


def static(df: Any) -> Any:
    return df.sparkSession.createDataFrame([("a", 1)], "shop STRING, x LONG")


def ranked(df: Any) -> Any:
    return df.withColumn("rank", sql.row_number().over(Window.partitionBy("shop").orderBy("n")))


def in_sql(query: str, df: Any) -> Any:
    df.createOrReplaceTempView("sales")
    static(df).createOrReplaceTempView("prices")
    return df.sparkSession.sql(query)


def query(text: str) -> Callable[[Any], Any]:
    return functools.partial(in_sql, text)


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (
            lambda df: df.dropDuplicates(["shop"]),
            "dropDuplicates (Deduplicate) works on one bundle",
        ),
        (lambda df: df.distinct().where("n > 1").select("n"), "dropDuplicates (Deduplicate)"),
        (lambda df: df.limit(3), "limit (LocalLimit)"),
        (lambda df: df.offset(3), "offset (Offset)"),
        (lambda df: df.groupBy("shop").count(), "groupBy (Aggregate)"),
        (lambda df: df.groupBy("shop").sum().orderBy("shop").limit(1), "groupBy (Aggregate)"),
        (lambda df: df.describe(), "an aggregate function (Aggregate)"),
        (lambda df: df.orderBy("n"), "orderBy (Sort)"),
        (ranked, "a window function (Window)"),
        (lambda df: df.groupBy("shop").applyInPandas(lambda p: p, df.schema), "applyInPandas"),
        (lambda df: df.exceptAll(df.where("n > 1")), "exceptAll or subtract (Except)"),
        (lambda df: df.zipWithIndex(), "zipWithIndex (AttachDistributedSequence)"),
        (lambda df: df.join(df.select("shop"), "shop"), "a join of its input with itself (Join)"),
        (lambda df: df.where("n > 1").join(df.groupBy().sum("n")), "an aggregate function"),
        (lambda df: static(df).join(df, "shop", "left"), "left outer join with its input on the r"),
        (lambda df: df.join(static(df), "shop", "full"), "full outer join with its input on the l"),
        (lambda df: static(df).join(df, "shop", "anti"), "left anti join with its input on the r"),
        (
            lambda df: df.select("shop").union(static(df).select("shop")),
            "union with rows from outside",
        ),
        (lambda df: static(df), "whose plan does not start with its argument"),
        (lambda df: df.withColumn("id", sql.monotonically_increasing_id() + 1), "use uuid()"),
        (lambda df: df.where(sql.spark_partition_id() == 0), "spark_partition_id()"),
        (query("SELECT shop, count(*) FROM sales GROUP BY shop"), "groupBy (Aggregate)"),
        (query("SELECT * FROM sales WHERE n = (SELECT max(n) FROM sales)"), "an aggregate f"),
        (query("SELECT * FROM prices WHERE shop IN (SELECT shop FROM sales)"), "a subquery over"),
        (query("WITH a AS (SELECT * FROM sales LIMIT 3) SELECT n FROM a"), "limit (LocalLimit)"),
    ],
)
def test_what_relates_rows_is_refused(
    engine: SparkEngine, tmp_path: Path, function: Any, message: str
) -> None:
    with pytest.raises(FiresteelError, match=re.escape(message)):
        analyzed(rows(tmp_path).transform(function), engine)


@pytest.mark.parametrize(
    "function",
    [
        lambda df: df,
        lambda df: functools.reduce(lambda d, i: d.withColumn(f"c{i}", d.n + i), range(150), df),
        lambda df: df.where("n > rand()").withColumn("at", sql.current_timestamp()),
        lambda df: df.select("n", sql.explode("tags")).sample(0.5).withColumn("id", sql.uuid()),
        lambda df: df.unpivot(["shop"], ["n"], "name", "value").dropna().na.fill(0),
        lambda df: df.mapInPandas(lambda frames: frames, df.schema),
        lambda df: df.withColumn("w", sql.window(sql.timestamp_seconds("n"), "1 hour").start),
        lambda df: df.repartition(2).coalesce(1).sortWithinPartitions("n").hint("broadcast"),
        lambda df: df.where("n > 1").select("n").union(df.where("n < 1").select("n")),
        lambda df: df.join(sql.broadcast(static(df)), "shop"),
        lambda df: df.join(static(df).groupBy("shop").sum(), "shop", "left"),
        lambda df: df.join(static(df).orderBy("x").limit(1), "shop", "anti"),
        lambda df: static(df).distinct().join(df, "shop", "right"),
        lambda df: df.where(df.n > static(df).select(sql.max("x")).scalar()),
        query("SELECT s.n + 1 AS n FROM sales s LEFT JOIN prices p ON s.shop = p.shop"),
        query("SELECT * FROM sales WHERE shop IN (SELECT shop FROM prices)"),
        query("WITH a AS (SELECT * FROM sales), b AS (SELECT max(x) FROM prices) SELECT * FROM a"),
        query("SELECT s.n, t.tag FROM sales s, LATERAL explode(s.tags) AS t(tag)"),
        query(
            "SELECT n, y FROM sales s, LATERAL (SELECT max(x) y FROM prices WHERE shop = s.shop)"
        ),
        query("FROM sales |> WHERE n > 1 |> EXTEND n + 1 AS m |> SELECT m"),
    ],
)
def test_what_treats_rows_independently_is_allowed(
    engine: SparkEngine, tmp_path: Path, function: Any
) -> None:
    behind_another = rows(tmp_path).rebalance().transform(lambda df: df.where("n > 0"))
    analyzed(behind_another.transform(function), engine)


def count_in_sql(df: Any) -> Any:
    df.createOrReplaceTempView("sales")
    static(df).createOrReplaceTempView("prices")
    found = df.sparkSession.sql("SELECT count(*) FROM sales JOIN prices USING (shop)").collect()
    return df.where(f"n > {found[0][0]}")


def wrapped(df: Any) -> Any:
    try:
        return df.where(f"n > {df.count()}")
    except Exception:
        raise ValueError("cannot count") from None


def used(method: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """A transform that calls the method and returns its input."""
    return lambda df: [method(df), df][1]


READING: dict[str, Callable[[Any], Any]] = {
    "count": used(lambda df: df.where("n > 1").count()),
    "collect": used(lambda df: df.agg(sql.sum("n")).collect()),
    "toPandas": used(lambda df: df.limit(3).toPandas()),
    "toArrow": used(lambda df: df.orderBy("n").toArrow()),
    "first": used(lambda df: df.join(sql.broadcast(static(df)), "shop").first()),
    "head": used(lambda df: static(df).join(sql.broadcast(df), "shop").head(2)),
    "take": used(lambda df: df.take(1)),
    "tail": used(lambda df: df.tail(1)),
    "isEmpty": used(lambda df: df.isEmpty()),
    "show": used(lambda df: df.show()),
    "foreach": used(lambda df: df.foreach(print)),
    "sum": used(lambda df: df.rdd.map(lambda row: row.n).sum()),
    "getNumPartitions": used(lambda df: df.rdd.getNumPartitions()),
    "save": used(lambda df: df.write.format("noop").mode("append").save()),
    "approxQuantile": used(lambda df: df.approxQuantile("n", [0.5], 0.1)),
    "pivot": used(lambda df: df.groupBy("shop").pivot("n")),
    "localCheckpoint": used(lambda df: df.localCheckpoint()),
    "code that reads its rows": used(lambda df: list(df.toLocalIterator())),
}


def few(df: Any) -> Any:
    return df.limit(9) if df.count() else df


@pytest.mark.filterwarnings("ignore:toPandas attempted Arrow optimization")
def test_what_reads_rows_is_refused(engine: SparkEngine, tmp_path: Path) -> None:
    def behind_others() -> DataStream:
        stream = rows(tmp_path).rebalance().transform(few, per_bundle=True)
        return stream.filter("n > 0")

    for functions in (READING, {"collect": count_in_sql, "count": wrapped}):
        for name, function in functions.items():
            with pytest.raises(FiresteelError) as refused:
                analyzed(behind_others().transform(function, name="Looks"), engine)
            what = name if " " in name else f"{name}()"
            place = r"test_row_by_row\.py, line \d+"
            assert re.match(
                rf"{place}: Looks: {re.escape(what)} \({place}\) works on one bundle of rows at a "
                r"time, not on the whole stream; use .* per_bundle=True\) if that is meant$",
                str(refused.value),
            ), refused.value


def test_rows_that_are_not_the_streams_may_be_read(engine: SparkEngine, tmp_path: Path) -> None:
    stream = rows(tmp_path).rebalance()
    for function in READING.values():
        stream.transform(function, per_bundle=True).print()
    stream.transform(lambda df: df.where(f"n > {static(df).count()}")).print()
    stream.transform(used(lambda df: df.explain())).print()
    analyzed(stream.transform(used(lambda df: (df.cache().schema, df.isLocal()))), engine)


def test_each_transform_is_checked_on_its_own(engine: SparkEngine, tmp_path: Path) -> None:
    bundles = rows(tmp_path).transform(lambda df: df.limit(3), per_bundle=True)
    analyzed(bundles.transform(lambda df: df.where("n > 1").union(df)), engine)

    def first(df: Any) -> Any:
        return df.limit(1)

    place = r"^test_row_by_row\.py, line \d+: "
    with pytest.raises(FiresteelError, match=place + r"Transform\(first\): limit"):
        analyzed(bundles.transform(lambda df: df.where("n > 1")).transform(first), engine)
    with pytest.raises(
        FiresteelError, match=place + r"Filter\(spark_partition_id\(\) = 0\): spark_part"
    ):
        analyzed(rows(tmp_path).filter("spark_partition_id() = 0"), engine)


def test_only_a_plan_over_files_knows_their_names(engine: SparkEngine, tmp_path: Path) -> None:
    def named(stream: DataStream) -> DataStream:
        return stream.transform(lambda df: df.withColumn("file", sql.input_file_name()))

    analyzed(named(rows(tmp_path).transform(lambda df: df.where("n > 1"))), engine)
    behind_an_exchange = rows(tmp_path).rebalance()
    one_of_two = rows(tmp_path)
    one_of_two.print()
    for stream in (behind_an_exchange, one_of_two):
        with pytest.raises(FiresteelError, match=r"input_file_name\(\) works on one bundle"):
            analyzed(named(stream), engine)
