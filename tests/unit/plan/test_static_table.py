"""Errors in a static table name the line of the program that creates it."""

from __future__ import annotations

import re
import threading
from datetime import timedelta
from typing import Any

import cloudpickle
import pytest

from firesteel import Environment
from firesteel.errors import FiresteelError, InvalidProgram

LOCK = threading.Lock()


def read(spark: Any) -> Any:
    return spark.read.parquet("prices")


@pytest.mark.parametrize(
    ("function", "settings", "message"),
    [
        ("prices.parquet", {}, "static() takes a function that reads the table, such as"),
        (lambda: None, {}, "the function is called with the slot's SparkSession and nothing else"),
        (lambda spark, lock=LOCK: None, {}, "cannot be shipped"),
        (read, {"refresh": "often"}, "refresh is 'often'; specify a duration"),
        (read, {"refresh": timedelta(0)}, "it must be positive"),
        (
            read,
            {"max_size": "2 gb"},
            "max_size is '2 gb'; specify a size such as '32 mb', at most 1",
        ),
        (read, {"max_size": "much"}, "max_size is 'much'; specify a size"),
    ],
)
def test_mistakes_are_named(function: Any, settings: Any, message: str) -> None:
    with pytest.raises(InvalidProgram, match=re.escape(message)):
        Environment().static(function, **settings)


def test_rows_are_in_the_slots_only() -> None:
    prices = Environment().static(read)
    with pytest.raises(FiresteelError, match=r"static table 'read' \(.*\) has no rows here"):
        prices.dataframe()
    with pytest.raises(AttributeError, match=r"no select; its rows are a DataFrame: .*\.datafr"):
        prices.select("k")


def test_it_is_the_same_table_in_all_operators_that_ship_it() -> None:
    env = Environment()
    prices = env.static(read, refresh="10 min")
    shipped = cloudpickle.loads(cloudpickle.dumps(prices))
    assert (shipped.id, shipped.refresh_s) == (prices.id, 600)
    assert env.static(read).id != prices.id


def test_tables_that_are_equal_are_one() -> None:
    """Also those of two jobs, whose plans have its rows."""

    def table(function: Any = read, **settings: Any) -> str:
        return Environment().static(function, **settings).id

    assert table() == table()
    others = [table(refresh="10 min"), table(name="other"), table(allow_empty=True)]
    others += [table(lambda spark, day=day: spark.read.parquet(day)) for day in ("1", "2")]
    assert len({table(), *others}) == 1 + len(others)
