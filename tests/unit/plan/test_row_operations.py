"""select, with_column and the like: what they take, and how operators are named."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from pyspark.sql import functions as F

from firesteel import DataStream, Environment, Tumbling, Watermarks
from firesteel.errors import InvalidProgram
from firesteel.plan.specs import MapRowsSpec


def numbers() -> DataStream:
    return Environment().from_sequence(0, 10)


@pytest.mark.parametrize(
    ("add", "name"),
    [
        (
            lambda s: s.select("value", (F.col("value") + 1).alias("n")),
            "Select(value, (value + 1) AS n)",
        ),
        (lambda s: s.select(["value"]), "Select(value)"),
        (lambda s: s.select(*"abcdef"), "Select(a, b, c, d, e, ...)"),
        (lambda s: s.select_expr("value + 1 AS n"), "SelectExpr(value + 1 AS n)"),
        (lambda s: s.where("value > 1"), "Filter(value > 1)"),
        (lambda s: s.where(F.col("value") > 1), "Filter((value > 1))"),
        (lambda s: s.with_column("n", "value + 1"), "WithColumn(n)"),
        (lambda s: s.with_columns({"n": F.lit(1), "m": "2"}), "WithColumns(n, m)"),
        (lambda s: s.with_column_renamed("value", "n"), "WithColumnRenamed(value, n)"),
        (lambda s: s.drop("value", "n"), "Drop(value, n)"),
        (lambda s: s.map(str), "Map(str)"),
        (lambda s: s.flat_map(lambda row: []), "FlatMap"),
        (lambda s: s.select("value", name="mine"), "mine"),
    ],
)
def test_operators_are_named_by_their_calls(
    add: Callable[[DataStream], DataStream], name: str
) -> None:
    operator = add(numbers())._operator()
    assert operator.name == name
    assert operator.runs_on_spark == (not isinstance(operator.spec, MapRowsSpec))
    assert operator.place.file == __file__


@pytest.mark.parametrize(
    ("add", "told"),
    [
        (lambda s: s.select(), r"takes the columns to keep: select\(\"shop\""),
        (lambda s: s.select(3), "names of columns and Columns .* not int 3"),
        (lambda s: s.select(lambda row: row), r"map\(...\) calls a function for each row"),
        (lambda s: s.select_expr(F.col("x")), r"takes SQL text.*and Columns as select\(...\)"),
        (lambda s: s.with_column("n", 1), r"the column 'n' is int 1; .*such as F.lit\(1\)"),
        (lambda s: s.with_column(F.col("n"), "1"), "takes the name of a column as text"),
        (lambda s: s.with_columns([("n", "1")]), "takes a dictionary of columns by name"),
        (lambda s: s.drop(F.col("value")), "takes the name of a column as text, not Column"),
        (lambda s: s.drop(), "names of the columns to leave out"),
        (lambda s: s.map("value + 1"), r"map\(\) takes a function, not str"),
    ],
)
def test_what_they_do_not_take(add: Callable[[Any], Any], told: str) -> None:
    with pytest.raises(InvalidProgram, match=told):
        add(numbers())


def test_event_time_goes_with_its_renamed_column() -> None:
    timed = numbers().with_column("at", "timestamp_seconds(value)")
    timed = timed.assign_timestamps_and_watermarks(Watermarks.bounded("at"))
    windows = timed.with_column_renamed("AT", "when").key_by("value").window(Tumbling("1 s"))
    assert windows._time_column == "when"
