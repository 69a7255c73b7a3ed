"""select, with_column and the like: what they take, and how operators are named."""

from __future__ import annotations

import functools
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from pyspark.sql import Row
from pyspark.sql import functions as F

from firesteel import (
    AsyncFunction,
    DataStream,
    Environment,
    ExponentialBackoffDelayRetryStrategy,
    FixedDelayRetryStrategy,
    Tumbling,
    Watermarks,
)
from firesteel.errors import InvalidProgram
from firesteel.operators import MapAsyncSpec, MapRowsSpec


async def answer(row: Row) -> Row:
    return row


async def two(row: Row, other: Row) -> Row:
    return row


async def yielding(row: Row) -> AsyncIterator[Row]:
    yield row


def plain(row: Row) -> Row:
    return row


class Answers(AsyncFunction):
    async def async_invoke(self, value: Row) -> Row:
        return value


class Plain(AsyncFunction):
    def async_invoke(self, value: Row) -> Row:  # type: ignore[override]
        return value


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
        (lambda s: s.map_async(answer), "MapAsync(answer)"),
        (lambda s: s.map_async(Answers()), "MapAsync(Answers)"),
        (lambda s: s.select("value", name="mine"), "mine"),
    ],
)
def test_operators_are_named_by_their_calls(
    add: Callable[[DataStream], DataStream], name: str
) -> None:
    operator = add(numbers())._operator()
    assert operator.name == name
    assert operator.runs_on_spark == (not isinstance(operator.spec, (MapRowsSpec, MapAsyncSpec)))
    assert operator.place.file == __file__


@pytest.mark.parametrize(
    ("add", "message"),
    [
        (lambda s: s.select(), r"takes the columns to keep: select\(\"shop\""),
        (lambda s: s.select(3), "names of columns and Columns .* not int 3"),
        (lambda s: s.select(lambda row: row), r"map\(...\) calls a function for each row"),
        (lambda s: s.select_expr(F.col("x")), r"takes SQL text.*and pass Columns to select\(...\)"),
        (lambda s: s.with_column("n", 1), r"the column 'n' is int 1; .*such as F.lit\(1\)"),
        (lambda s: s.with_column(F.col("n"), "1"), "takes the name of a column as text"),
        (lambda s: s.with_columns([("n", "1")]), "takes a dictionary of columns by name"),
        (lambda s: s.drop(F.col("value")), "takes the name of a column as text, not Column"),
        (lambda s: s.drop(), "names of the columns to remove"),
        (lambda s: s.map("value + 1"), r"map\(\) takes a function, not str"),
        (lambda s: s.map_async("value"), r"map_async\(\) takes a function, not str"),
        (
            lambda s: s.map_async(plain),
            r"takes a coroutine function \(async def\), and plain is an ordinary function",
        ),
        (lambda s: s.map_async(lambda row: answer(row)), "<lambda> is an ordinary function"),
        (
            lambda s: s.map_async(yielding),
            "yielding is an async generator; return a list of rows",
        ),
        (lambda s: s.map_async(two), "a function of one argument, not two"),
        (lambda s: s.map_async(Answers), r"takes an object: Answers\(...\), not the class"),
        (lambda s: s.map_async(AsyncFunction()), "AsyncFunction does not define async_invoke"),
        (lambda s: s.map_async(Plain()), "Plain.async_invoke is an ordinary function"),
        (
            lambda s: s.map_async(Answers(), on_timeout=plain),
            r"Answers is an AsyncFunction; define its method timeout\(self, value\)",
        ),
        (
            lambda s: s.map_async(answer, on_timeout=(0,)),
            r"on_timeout of map_async\(\) takes a function",
        ),
        (lambda s: s.map_async(answer, capacity=0), r"capacity=0\): specify the number of calls"),
        (lambda s: s.map_async(answer, capacity=True), "capacity=True"),
        (lambda s: s.map_async(answer, timeout="0 s"), "timeout of map_async.* must be positive"),
        (
            lambda s: s.map_async(answer, timeout=5),
            r"timeout of map_async\(\) is 5; specify a dura",
        ),
        (lambda s: s.map_async(answer, ordered="no"), "ordered='no'"),
        (lambda s: s.map_async(answer, retry=3), r"retry=3\): .*FixedDelayRetryStrategy\("),
        (lambda s: FixedDelayRetryStrategy(max_attempts=0, delay="1 s"), "max_attempts=0"),
        (lambda s: FixedDelayRetryStrategy(max_attempts=1, delay="0 s"), "delay of Fixed"),
        (
            lambda s: FixedDelayRetryStrategy(max_attempts=1, delay="1 s", result_predicate="no"),
            r"FixedDelayRetryStrategy\(result_predicate='no'\)",
        ),
        (
            lambda s: ExponentialBackoffDelayRetryStrategy(
                max_attempts=1, initial_delay="1 s", max_retry_delay="2 s", multiplier=0.5
            ),
            "multiplier=0.5",
        ),
    ],
)
def test_what_they_do_not_take(add: Callable[[Any], Any], message: str) -> None:
    with pytest.raises(InvalidProgram, match=message):
        add(numbers())


def test_coroutine_functions_of_every_kind_are_taken() -> None:
    class Asking:
        async def __call__(self, row: Row) -> Row:
            return row

    for function in (answer, functools.partial(two, other=Row()), Asking(), Answers().async_invoke):
        numbers().map_async(function)


def test_event_time_goes_with_its_renamed_column() -> None:
    timed = numbers().with_column("at", "timestamp_seconds(value)")
    timed = timed.assign_timestamps_and_watermarks(Watermarks.bounded("at"))
    windows = timed.with_column_renamed("AT", "when").key_by("value").window(Tumbling("1 s"))
    assert windows._time_column == "when"
