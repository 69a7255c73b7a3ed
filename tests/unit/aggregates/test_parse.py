"""Parsing, checking and splitting `aggregate(...)` items."""

from __future__ import annotations

import pytest

from firesteel.errors import InvalidProgram
from firesteel.plan.aggregates import parse_aggregates


def test_an_average_is_split_into_sum_and_count() -> None:
    (item,) = parse_aggregates(["avg(dep_delay) AS avg_delay"])
    assert item.name == "avg_delay"
    assert item.partial == {"_p0_sum": "sum(dep_delay)", "_p0_count": "count(dep_delay)"}
    assert item.merge == {"_p0_sum": "sum", "_p0_count": "sum"}


def test_arithmetic_over_aggregates_shares_partials() -> None:
    (item,) = parse_aggregates(["(sum(a) - min(b)) / count(*) + sum(a) AS x"])
    assert list(item.partial.values()) == ["sum(a)", "min(b)", "count(1)"]
    assert item.merge == {"_p0_sum": "sum", "_p0_min": "min", "_p0_count": "sum"}


def test_a_filter_clause_stays_with_its_partials() -> None:
    (item,) = parse_aggregates(["avg(x) FILTER (WHERE x > 1) AS a"])
    assert item.partial["_p0_count"] == "count(x) FILTER (WHERE x > 1)"


def test_simple_aggregates_need_no_name() -> None:
    assert [item.name for item in parse_aggregates(["count(*)", "max(dep_delay)"])] == ["count", "max_dep_delay"]


def test_partials_of_different_items_do_not_meet() -> None:
    first, second = parse_aggregates(["sum(a) AS a", "sum(b) AS b"])
    assert not set(first.partial) & set(second.partial)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("sum(x", "does not parse"),
        ("sum('abc) AS x", "unfinished"),
        ("", "empty"),
        ("x AS y", "column x must be inside an aggregate"),
        ("1 AS y", "aggregates nothing"),
        ("median(x) AS m", "median cannot be used here; allowed now: count, sum, min, max, avg"),
        ("my_udf(x) AS m", "my_udf cannot be used"),
        ("count(DISTINCT x) AS d", "DISTINCT"),
        ("sum(max(x)) AS q", "sum of an aggregate"),
        ("sum(x) OVER (PARTITION BY y) AS z", "OVER"),
        ("count(*), sum(x)", "a text of its own"),
        ("sum(x) FROM t", "not one expression"),
        ("sum(*) AS s", "has no meaning"),
        ("sum(a + b)", "give the expression a name"),
        ("count(*) AS window_start", "choose another name"),
    ],
)
def test_what_is_wrong_is_named(text: str, message: str) -> None:
    with pytest.raises(InvalidProgram, match=message.replace("(", r"\(")):
        parse_aggregates([text])


def test_the_caret_is_under_the_place() -> None:
    with pytest.raises(InvalidProgram) as caught:
        parse_aggregates(["sum(x) + median(y) AS z"])
    line, caret = str(caught.value).splitlines()[-2:]
    assert line[caret.index("^") :].startswith("median(")


def test_names_are_unique() -> None:
    with pytest.raises(InvalidProgram, match="two expressions are named 'n'"):
        parse_aggregates(["count(*) AS n", "sum(x) AS n"])
    with pytest.raises(InvalidProgram, match="at least one"):
        parse_aggregates([])
