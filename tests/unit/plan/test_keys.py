"""key_by: names of columns, and Columns."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from pyspark.sql import functions as F

from firesteel import DataStream, Environment, Tumbling, Watermarks
from firesteel.errors import InvalidProgram
from firesteel.operators import TransformSpec


def numbers() -> DataStream:
    return Environment().from_sequence(0, 10)


def test_a_column_by_its_name_adds_nothing() -> None:
    stream = numbers()
    keyed = stream.key_by(F.col("value"), "other")
    assert keyed.key_columns == ("value", "other")
    assert keyed._unkeyed is stream


def test_a_computed_key_is_a_separate_column() -> None:
    keyed = numbers().key_by("value", (F.col("value") % 3).alias("rest"))
    assert keyed.key_columns == ("value", "rest")
    operator = keyed._unkeyed._operator()
    assert operator.name == "KeyBy(rest)"
    assert operator.runs_on_spark
    assert isinstance(operator.spec, TransformSpec)


def test_both_keys_of_connected_streams() -> None:
    env = Environment()
    first, second = env.from_sequence(0, 10), env.from_sequence(0, 10)
    connected = first.connect(second).key_by(("value", "b"), (F.col("value"), F.lit(1).alias("c")))
    assert connected._first.key_columns == ("value", "b")  # type: ignore[attr-defined]
    assert connected._second.key_columns == ("value", "c")  # type: ignore[attr-defined]
    assert first.connect(second).key_by(F.col("value"), "b")._first.key_columns == ("value",)  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("add", "message"),
    [
        (lambda s: s.key_by(), "name at least one column"),
        (lambda s: s.key_by(F.upper("shop")), r"the key upper\(shop\) needs a name: add .alias"),
        (lambda s: s.key_by(F.col("place.town")), r"the key place.town needs a name"),
        (
            lambda s: s.key_by(lambda row: row.value),
            r"not function .*compute the function's result as a column first, with with_column",
        ),
        (lambda s: s.key_by(3), "not int 3"),
        (lambda s: s.key_by("value", "VALUE"), "names the column 'VALUE' twice"),
        (
            lambda s: s.key_by("WINDOW_end").window(Tumbling("1 s", on="at")),
            "its results have a column WINDOW_end already",
        ),
        (
            lambda s: (
                s.key_by("value").window(Tumbling("1 s", on="at")).aggregate("count(*) AS Value")
            ),
            "'Value' is a key column",
        ),
        (
            lambda s: s.key_by("value").window(Tumbling("1 s", on=F.col("at"))),  # type: ignore[arg-type]
            r"Tumbling\(on=...\) takes the name of the event-time column, .* not Column",
        ),
        (
            lambda s: Watermarks.bounded(F.col("at")),  # type: ignore[arg-type]
            r"Watermarks.bounded\(\) takes the name of the event-time column",
        ),
    ],
)
def test_what_is_no_key(add: Callable[[Any], Any], message: str) -> None:
    with pytest.raises(InvalidProgram, match=message):
        add(numbers())
