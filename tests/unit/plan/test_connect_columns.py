"""Columns of Spark Connect in a program."""

from __future__ import annotations

import datetime
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import pytest

from firesteel import Environment
from firesteel.errors import InvalidProgram
from firesteel.plan.aggregates.parse import parse_aggregates
from firesteel.plan.column_sql import expression_sql

pytest.importorskip("zstandard", reason="Spark Connect needs it")
from pyspark.sql.connect import functions as F
from pyspark.sql.connect.window import Window
from pyspark.sql.types import IntegerType, ShortType


@pytest.mark.parametrize(
    ("column", "sql"),
    [
        (lambda: F.sum("x"), "sum(x)"),
        (lambda: F.count("*"), "count(*)"),
        (lambda: F.count_distinct("a", "b"), "count(DISTINCT a, b)"),
        (lambda: F.max("a.case"), "max(a.`case`)"),
        (lambda: F.sum(F.col("x") * 2) / F.lit(0.5), "sum((x * 2)) / 0.5D"),
        (
            lambda: F.max(F.when(F.col("x") == 1, "it's").otherwise(None)),
            "max(CASE WHEN (x = 1) THEN 'it\\'s' ELSE NULL END)",
        ),
        (lambda: F.sum(F.col("x").cast("int")), "sum(CAST(x AS int))"),
        (lambda: F.sum(F.col("x").cast(IntegerType())), "sum(CAST(x AS int))"),
        (lambda: F.sum(F.col("x").try_cast("int")), "sum(TRY_CAST(x AS int))"),
        (
            lambda: F.count_if(~F.col("x").isin(1, 2) & F.col("y").isNull()),
            "count_if(((NOT (x IN (1, 2))) AND isNull(y)))",
        ),
        (lambda: F.max(F.col("s")["a"]), "max(s['a'])"),
        (lambda: F.max(-F.col("x").getItem(0)), "max((- x[0]))"),
        (lambda: F.max(F.lit(datetime.date(2024, 3, 1))), "max(DATE'2024-03-01')"),
        (lambda: F.max(F.lit(Decimal("1.50"))), "max(1.50BD)"),
        (lambda: F.max(F.lit(2**40)), "max(1099511627776)"),
        (
            lambda: F.max(F.lit(datetime.datetime(1970, 1, 2, tzinfo=datetime.UTC))),
            "max(timestamp_micros(86400000000))",
        ),
        (lambda: F.expr("sum(x)"), "sum(x)"),
        (
            lambda: F.percentile_approx("x", [0.5, 0.9]),
            "percentile_approx(x, array(0.5D, 0.9D), 10000)",
        ),
        (
            lambda: F.max(F.size(F.filter("x", lambda v: v > 1))),
            "max(size(filter(x, (x_0) -> (x_0 > 1))))",
        ),
    ],
)
def test_they_have_sql_text(column: Callable[[], Any], sql: str) -> None:
    assert expression_sql("aggregate", column()) == f"({sql})"
    (named,) = parse_aggregates([column().alias("the name")])
    assert named.name == "the name"


def test_a_program_takes_them_wherever_it_takes_columns() -> None:
    rows = Environment().from_sequence(0, 10)
    stream = (
        rows.filter(F.col("value") > 1)
        .select("value", F.upper("value").alias("upper"))
        .with_column("n", F.lit(1))
    )
    keyed = stream.key_by(F.col("value"), F.lower("upper").alias("lower"))
    assert keyed.key_columns == ("value", "lower")
    keyed.aggregate(F.sum("n").alias("s")).print()
    names = [
        operator.name
        for vertex in rows._program.job_graph("columns").vertices
        for operator in vertex.operators
    ]
    assert names[1:5] == [
        "Filter((value > 1))",
        "Select(value, (upper(value)) AS upper)",
        "WithColumn(n)",
        "KeyBy(lower)",
    ]


@pytest.mark.parametrize(
    ("column", "message"),
    [
        (
            lambda: F.col("x").withField("a", F.lit(1)),
            r"update_field\(x, a, 1\) has no known SQL text",
        ),
        (
            lambda: F.row_number().over(Window.partitionBy("x")),
            "WindowExpression.* has no known SQL text, in a Column of Spark Connect; "
            "create it with pyspark.sql.functions instead of pyspark.sql.connect.functions",
        ),
        (lambda: F.lit(b"a"), "the value b'a' of type binary"),
    ],
)
def test_what_has_no_sql_text_says_what_to_do(column: Callable[[], Any], message: str) -> None:
    with pytest.raises(InvalidProgram, match=rf"^select\(\): {message}"):
        Environment().from_sequence(0, 10).select(column().alias("n"))


def test_types_without_a_literal_are_cast() -> None:
    from pyspark.sql.connect.column import Column
    from pyspark.sql.connect.expressions import LiteralExpression

    column = Column(LiteralExpression(3, ShortType()))
    assert expression_sql("aggregate", column) == "(CAST(3 AS SMALLINT))"
