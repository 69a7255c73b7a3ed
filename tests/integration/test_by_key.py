"""Which functions of windows are refused because they relate rows of different keys."""

from __future__ import annotations

import re
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import Window
from pyspark.sql import functions as sql

from firesteel import Environment, Session, Tumbling
from firesteel.connectors import FileSource
from firesteel.errors import FiresteelError
from taskexecutor.executor.columnar.jvm.engine import SparkEngine
from tests.integration.analysis import analyzed, json_rows

KEY = ["shop", "window_start"]


rows = partial(json_rows, parallelism=2, schema="shop STRING, other STRING, n LONG, at TIMESTAMP")


def visits(tmp_path: Path) -> Any:
    return rows(tmp_path).key_by("shop").window(Session("1 h"))


def renamed(df: Any) -> Any:
    return df.select("*", sql.col("shop").alias("place"), sql.col("other").alias("shop2"))


def ranked(df: Any, *by: str) -> Any:
    return df.withColumn("rank", sql.row_number().over(Window.partitionBy(*by).orderBy("n")))


def in_sql(query: str) -> Any:
    def function(df: Any) -> Any:
        df.createOrReplaceTempView("visits")
        return df.sparkSession.sql(query)

    return function


@pytest.mark.parametrize(
    ("function", "what"),
    [
        (lambda df: df.groupBy("window_start").count(), "groupBy (Aggregate)"),
        (lambda df: df.groupBy("shop").sum("n"), "groupBy (Aggregate)"),  # of several sessions
        (lambda df: df.agg({"n": "sum"}), "groupBy (Aggregate)"),
        (lambda df: df.rollup(*KEY).count(), "groupBy (Aggregate)"),
        (lambda df: df.groupBy(sql.upper("shop"), "window_start").count(), "groupBy (Aggregate)"),
        (lambda df: df.na.fill("x").groupBy(*KEY).count(), "groupBy (Aggregate)"),
        (lambda df: renamed(df).groupBy("shop2", "window_end").count(), "groupBy (Aggregate)"),
        (lambda df: df.groupBy(*KEY).count().distinct().limit(3), "limit (LocalLimit)"),
        (lambda df: df.orderBy("n").limit(1), "limit (LocalLimit)"),
        (lambda df: ranked(df, "other"), "a window function (Window)"),
        (lambda df: df.dropDuplicates(["other"]), "dropDuplicates (Deduplicate)"),
        (lambda df: df.select("shop", "n").distinct(), "dropDuplicates (Deduplicate)"),
        (lambda df: df.join(df.select("n"), "n"), "a join of its input with itself (Join)"),
        (lambda df: df.alias("a").crossJoin(df.alias("b")), "a join of its input with itself"),
        (
            lambda df: df.groupBy("n").applyInPandas(lambda p: p, df.schema),
            "applyInPandas (FlatMapGroupsInPandas)",
        ),
        (
            lambda df: (
                df.select("shop", "window_end", "n")
                .union(df.select("other", "window_end", "n"))
                .groupBy("shop", "window_end")
                .count()
            ),
            "groupBy (Aggregate)",
        ),
        (in_sql("SELECT * FROM visits WHERE n = (SELECT max(n) FROM visits)"), "groupBy (Aggregat"),
        (lambda df: df.withColumn("i", sql.monotonically_increasing_id()), "monotonically_increas"),
    ],
)
def test_what_relates_rows_of_different_keys_is_refused(
    engine: SparkEngine, tmp_path: Path, function: Any, what: str
) -> None:
    with pytest.raises(FiresteelError) as refused:
        analyzed(visits(tmp_path).apply(function, name="Visits"), engine)
    text = str(refused.value)
    assert re.search(rf"test_by_key\.py, line \d+: Visits: {re.escape(what)}.* works on", text)
    assert text.endswith("or apply(..., across_keys=True) if that is meant")
    if what.startswith("groupBy"):
        assert "relate only rows with the same shop, window_start" in text
    analyzed(visits(tmp_path).apply(function, across_keys=True), engine)


@pytest.mark.parametrize(
    "function",
    [
        lambda df: df.where("n > 1").orderBy("n"),
        lambda df: df.groupBy("SHOP", "window_end").agg({"n": "median"}),
        lambda df: df.groupBy(*KEY).pivot("other", ["a", "b"]).sum("n"),
        lambda df: renamed(df).groupBy("place", "window_start", "n").count(),
        lambda df: df.groupBy(sql.col("shop").alias("s"), "window_start").count().distinct(),
        lambda df: ranked(df, *KEY).where("rank <= 3"),
        lambda df: df.dropDuplicates([*KEY, "n"]).drop("n"),
        lambda df: df.join(df.groupBy(*KEY).agg(sql.max("n").alias("m")), KEY).where("n = m"),
        lambda df: (
            df.alias("a")
            .join(
                df.alias("b"),
                sql.expr("a.shop = b.shop AND b.n > a.n AND a.window_end <=> b.window_end"),
                "left",
            )
            .select("a.n", "a.shop")
        ),
        lambda df: df.groupBy(*KEY).applyInPandas(lambda pandas: pandas, df.schema),
        lambda df: df.where("n > 1").union(df.where("n < 1")).groupBy(*KEY).count(),
        lambda df: df.mapInPandas(lambda frames: frames, df.schema),
        in_sql(
            "WITH a AS (SELECT shop AS s, window_start AS w, n FROM visits) "
            "SELECT s, sum(n) FROM a GROUP BY s, w UNION ALL SELECT s, max(n) FROM a GROUP BY s, w"
        ),
    ],
)
def test_what_stays_within_keys_is_allowed(
    engine: SparkEngine, tmp_path: Path, function: Any
) -> None:
    analyzed(visits(tmp_path).apply(function), engine)


def test_a_window_per_row_needs_no_window_column_and_no_key_columns(
    engine: SparkEngine, tmp_path: Path
) -> None:
    by_shop = rows(tmp_path).key_by("shop").window(Tumbling("1 h"))
    analyzed(by_shop.apply(lambda df: df.groupBy("shop").count()), engine)
    whole = rows(tmp_path).window_all(Tumbling("1 h"))
    analyzed(whole.apply(lambda df: df.orderBy("n").limit(1)), engine)
    sessions = rows(tmp_path).window_all(Session("1 h"))
    with pytest.raises(FiresteelError, match="limit .* relate only rows with the same window_star"):
        analyzed(sessions.apply(lambda df: df.orderBy("n").limit(1)), engine)


def beside(tmp_path: Path) -> Any:
    """Visits, connected with shops by their id."""
    env = Environment(parallelism=2)
    of_visits = FileSource(str(tmp_path), format="json", schema="shop STRING, n LONG")
    of_shops = FileSource(str(tmp_path), format="json", schema="id STRING, place STRING, n LONG")
    visits, shops = env.from_source(of_visits), env.from_source(of_shops)
    return visits.connect(shops).key_by("shop", "id")


def joined(how: str, *by: str) -> Any:
    def function(visits: Any, shops: Any) -> Any:
        found = visits.select("shop").join(shops, visits.shop == shops.id, how)
        return found.groupBy(*by).count() if by else found

    return function


@pytest.mark.parametrize(
    ("function", "what"),
    [
        (lambda visits, shops: visits.join(shops, "n"), "a join of its input with itself (Join)"),
        (lambda visits, shops: visits.select("n").crossJoin(shops), "a join of its input with"),
        (joined("inner", "place"), "groupBy (Aggregate)"),
        (joined("left", "id"), "groupBy (Aggregate)"),  # null for all shops without a visit
        (joined("full", "shop"), "groupBy (Aggregate)"),
        (lambda visits, shops: visits.select("shop").exceptAll(shops.select("id")), "exceptAll"),
    ],
)
def test_what_relates_rows_of_different_keys_of_two_streams_is_refused(
    engine: SparkEngine, tmp_path: Path, function: Any, what: str
) -> None:
    message = re.escape(what) + ".*relate only rows with the same shop, or apply"
    with pytest.raises(FiresteelError, match=message):
        analyzed(beside(tmp_path).apply(function), engine)
    analyzed(beside(tmp_path).apply(function, across_keys=True), engine)


@pytest.mark.parametrize(
    "function",
    [
        joined("inner", "shop"),
        joined("inner", "id"),
        joined("left", "shop", "place"),
        joined("right", "id"),
        joined("full"),
        joined("left_semi", "shop"),
        lambda visits, shops: (
            visits.select("shop").union(shops.select("id")).groupBy("shop").count()
        ),
    ],
)
def test_what_stays_within_keys_of_two_streams_is_allowed(
    engine: SparkEngine, tmp_path: Path, function: Any
) -> None:
    analyzed(beside(tmp_path).apply(function), engine)


def test_a_whole_stream_may_relate_all_rows_only_without_keys(
    engine: SparkEngine, tmp_path: Path
) -> None:
    analyzed(rows(tmp_path).apply(lambda df: df.groupBy("other").count()), engine)
    with pytest.raises(FiresteelError, match="relate only rows with the same shop, or apply"):
        analyzed(rows(tmp_path).key_by("shop").apply(lambda df: df.distinct().limit(1)), engine)
    analyzed(rows(tmp_path).key_by("shop").apply(lambda df: df.groupBy("shop").count()), engine)


def test_updates_are_no_rows_of_a_whole_stream_but_a_batch_has_none(
    engine: SparkEngine, tmp_path: Path
) -> None:
    def totals(mode: str) -> Any:
        source = FileSource(str(tmp_path), format="json", schema="shop STRING, n LONG")
        counted = Environment(mode=mode).from_source(source).key_by("shop")  # type: ignore[arg-type]
        return counted.aggregate("sum(n) AS n").apply(lambda df: df.orderBy("n"))

    with pytest.raises(FiresteelError, match="it would count each update of 'Aggregate"):
        analyzed(totals("streaming"), engine)
    analyzed(totals("batch"), engine)
