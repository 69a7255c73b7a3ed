"""select, with_column and similar methods on Spark: their results, and refused arguments."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import Window
from pyspark.sql import functions as F

from firesteel import DataStream, Environment
from firesteel.errors import FiresteelError
from taskexecutor.executor.columnar.jvm.engine import SparkEngine
from tests.integration.analysis import analyzed, json_rows

# Columns of a program, which has no session: made before the engine starts.
Environment()
MORE = F.col("n") + 0.5
ONE = F.lit(1)
LARGE = F.col("n") > 1
UPPER = F.upper("store").alias("upper")
SUM = F.sum("n").alias("s")
RANK = F.row_number().over(Window.partitionBy("shop").orderBy("n"))
SHOP_AS_N = F.col("shop").alias("N")


rows = partial(json_rows, schema="shop STRING, n LONG, place STRUCT<town: STRING>")


def columns(stream: DataStream, engine: SparkEngine) -> list[str]:
    *_, last, _sink = analyzed(stream, engine)
    assert last.schema is not None
    return [f"{field.name} {field.type}" for field in last.schema]


def test_they_are_those_of_dataframes(engine: SparkEngine, tmp_path: Path) -> None:
    stream = (
        rows(tmp_path)
        .with_column("twice", "n * 2")
        .with_columns({"N": MORE, "one": ONE})
        .with_column_renamed("Shop", "store")
        .where(LARGE)
        .select("STORE", "place.town", "n", UPPER)
        .drop("town")
        .select_expr("*", "length(upper) AS length")
        .map(lambda row: row, "n DOUBLE, length INT")
        .select("length", "n")
    )
    assert columns(stream, engine) == ["length int32", "n double"]
    kept = rows(tmp_path).with_columns({"N": "1"}).with_column_renamed("shop", "SHOP").drop("n")
    assert [name.split()[0] for name in columns(kept, engine)] == ["SHOP", "place"]


@pytest.mark.parametrize(
    ("add", "message"),
    [
        (lambda s: s.select(SUM), "Select(sum(n) AS s): an aggregate function"),
        (lambda s: s.select_expr("count(*) AS n"), "SelectExpr(count(*) AS n): an aggregate"),
        (
            lambda s: s.with_column("r", "row_number() OVER (PARTITION BY shop ORDER BY n)"),
            "WithColumn(r): a window function (Window) works on one bundle of rows at a time",
        ),
        (lambda s: s.with_column("r", RANK), "WithColumn(r): a window function (Window)"),
        (lambda s: s.with_column("sum", SUM), "; for aggregates, use key_by(...).window"),
        (
            lambda s: s.select("pricee"),
            "Select(pricee): [UNRESOLVED_COLUMN.WITH_SUGGESTION] A column",
        ),
        (lambda s: s.select("n + 1"), "; pass SQL text to select_expr()"),
        (lambda s: s.where("shp = 'a'"), "Filter(shp = 'a'): [UNRESOLVED_COLUMN"),
        (lambda s: s.where("n >"), "Filter(n >): [PARSE_SYNTAX_ERROR]"),
        (lambda s: s.with_column("m", "north"), "WithColumn(m): [UNRESOLVED_COLUMN"),
        (lambda s: s.drop("shopp"), "Drop(shopp): no such column; the stream has: shop, n, place;"),
        (lambda s: s.with_column_renamed("m", "k"), "WithColumnRenamed(m, k): no such column"),
        (lambda s: s.with_column_renamed("n", "SHOP"), "the stream already has a column 'shop'"),
        (lambda s: s.select("n", SHOP_AS_N), "has 2 columns named 'n'"),
        (lambda s: s.drop("n", "shop", "place"), "no column is left"),
        (lambda s: s.map(lambda row: row, "n LNG"), "Map: its schema 'n LNG' does not parse"),
    ],
)
def test_what_is_refused_names_the_call_and_its_line(
    engine: SparkEngine, tmp_path: Path, add: Callable[[Any], DataStream], message: str
) -> None:
    line = add.__code__.co_firstlineno
    place = rf"^test_row_operations\.py, line ({line}|{line + 1}): "
    with pytest.raises(FiresteelError, match=place) as raised:
        columns(add(rows(tmp_path)), engine)
    assert message in str(raised.value)


def test_the_place_of_a_missing_key_is_named(engine: SparkEngine, tmp_path: Path) -> None:
    town = rows(tmp_path).key_by("place.town").map(lambda row: row)
    with pytest.raises(FiresteelError, match=r'name: key_by\(F.expr\("place.town"\).alias\("...'):
        columns(town, engine)
    keyed = rows(tmp_path).key_by("shp")
    with pytest.raises(FiresteelError, match=r"^test_row_operations\.py, line \d+: key_by") as seen:
        columns(keyed.map(lambda row: row), engine)
    assert re.search(r'key_by\("shp"\): no such column.*did you mean \'shop\'', str(seen.value))
