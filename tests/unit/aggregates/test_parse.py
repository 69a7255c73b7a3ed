"""Parsing, checking and splitting `aggregate(...)` items."""

from __future__ import annotations

import re

import pytest

from firesteel.errors import InvalidProgram
from firesteel.plan.aggregates.parse import parse_aggregates


def test_an_average_is_split_into_sum_and_count() -> None:
    (item,) = parse_aggregates(["avg(dep_delay) AS avg_delay"])
    assert item.name == "avg_delay"
    assert item.partial == {"_p0_sum": "sum(double(dep_delay))", "_p0_count": "count(dep_delay)"}
    assert item.exact == {"_p0_sum": "sum(dep_delay)"}, "decimals are not rounded"
    assert item.merge == {"_p0_sum": "sum", "_p0_count": "sum"}


def test_arithmetic_over_aggregates_shares_partials() -> None:
    (item,) = parse_aggregates(["(sum(a) - min(b)) / count(*) + sum(a) AS x"])
    assert list(item.partial.values()) == ["sum(a)", "min(b)", "count(1)"]
    assert item.merge == {"_p0_sum": "sum", "_p0_min": "min", "_p0_count": "sum"}


def test_a_filter_clause_stays_with_its_partials() -> None:
    (item,) = parse_aggregates(["avg(x) FILTER (WHERE x > 1) AS a"])
    assert item.partial["_p0_count"] == "count(x) FILTER (WHERE x > 1)"


def test_simple_aggregates_need_no_name() -> None:
    assert [item.name for item in parse_aggregates(["count(*)", "max(dep_delay)"])] == [
        "count",
        "max_dep_delay",
    ]


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
        ("1 AS y", "contains no aggregate"),
        ("medain(x) AS m", "unknown function medain; did you mean median?"),
        ("sum(my_udf_17(x)) AS m", "unknown function my_udf_17; Spark has no such function"),
        ("round(x) AS r", "column x must be inside an aggregate"),
        ("max(x) + (SELECT 1) AS q", "a query is not allowed"),
        ("sum(max(x)) AS q", "sum of an aggregate"),
        ("sum(x) OVER (PARTITION BY y) AS z", "OVER"),
        ("count(*), sum(x)", "as a separate string"),
        ("sum(x) FROM t", "not one expression"),
        ("corr(x) AS c", "does not parse: corr() needs one more argument\n  corr(x) AS c"),
        ("sum() AS s", "does not parse: sum() needs one more argument"),
        ("sum(*) AS s", "has no meaning"),
        ("sum(a + b)", "give the expression a name"),
        ("count(*) AS window_start", "choose another name"),
    ],
)
def test_what_is_wrong_is_named(text: str, message: str) -> None:
    with pytest.raises(InvalidProgram, match=re.escape(message)):
        parse_aggregates([text])


def test_the_caret_is_under_the_place() -> None:
    with pytest.raises(InvalidProgram) as caught:
        parse_aggregates(["sum(x) + medain(y) AS z"])
    line, caret = str(caught.value).splitlines()[-2:]
    assert line[caret.index("^") :].startswith("medain(")


def test_names_are_unique() -> None:
    with pytest.raises(InvalidProgram, match="two expressions are named 'n'"):
        parse_aggregates(["count(*) AS n", "sum(x) AS n"])
    with pytest.raises(InvalidProgram, match="at least one"):
        parse_aggregates([])


@pytest.mark.parametrize(
    "text",
    [
        "median(x) AS m",
        "round(avg(x), 2) AS r",
        "count(DISTINCT x, y) AS d",
        "sum(DISTINCT x) AS s",
        "percentile_cont(0.5) WITHIN GROUP (ORDER BY x) AS p",
        "approx_count_distinct(x, 0.01) AS n",
        "aggregate(collect_list(x), 0D, (a, v) -> a + v) AS g",
    ],
)
def test_what_cannot_be_split_stays_whole(text: str) -> None:
    (item,) = parse_aggregates([text])
    assert not item.splittable
    assert item.whole == text.rsplit(" AS ", 1)[0]


@pytest.mark.parametrize(
    "text",
    [
        "stddev(x)",
        "collect_set(x)",
        "count(DISTINCT x)",
        "approx_count_distinct(x)",
        "max_by(x, y)",
    ],
)
def test_more_than_sums_can_be_split(text: str) -> None:
    (item,) = parse_aggregates([f"{text} FILTER (WHERE y > 1) AS z"])
    assert item.splittable
    assert all("FILTER (WHERE y > 1)" in sql for sql in item.partial.values())


@pytest.mark.parametrize(
    ("text", "partial"),
    [
        ("max('it''s') AS m", ["max('it''s')"]),
        (
            "max( to_char(x, '999')  ) FILTER ( WHERE y in (1, 2) ) m",
            ["max(to_char(x, '999')) FILTER (WHERE y in (1, 2))"],
        ),
        (
            "sum(a[0]) / -(count( DISTINCT nvl(x, y) ) + 1) AS q",
            ["sum(a[0])", "collect_set(nvl(x, y))"],
        ),
        ("any(x = 'sum(y)') AS a", ["bool_or(x = 'sum(y)')"]),
        (
            "`max`(`count`) - min /* not this */ (try_cast(s AS INT)) AS d",
            ["max(`count`)", "min(try_cast(s AS INT))"],
        ),
        ("max_by(x, struct(y, z)) AS b", ["max(struct(y, z))", "max_by(x, struct(y, z))"]),
        ("count(x,y) AS c", ["count(x, y)"]),
    ],
)
def test_spark_is_given_what_was_written(text: str, partial: list[str]) -> None:
    (item,) = parse_aggregates([text])
    assert list(item.partial.values()) == partial


def test_first_and_last_go_by_event_time() -> None:
    first, last = parse_aggregates(["first(x) AS f", "last(x) IGNORE NULLS AS l"], time_column="at")
    assert first.whole == "min_by(x, `at`)"
    assert first.merge == {"_p0_order": "min", "_p0_min_by": "first:_p0_order"}
    assert last.whole == "max_by(x, `at`) FILTER (WHERE (x) IS NOT NULL)"
    (both,) = parse_aggregates(
        ["last(nvl(x, 1), true) FILTER (WHERE y) - first_value(`a``b`) AS d"],
        time_column="odd `at`",
    )
    assert both.whole == (
        "max_by(nvl(x, 1), `odd ``at```) FILTER (WHERE (y) AND (nvl(x, 1)) IS NOT NULL)"
        " - min_by(`a``b`, `odd ``at```)"
    )
    (filtered,) = parse_aggregates(
        ["first(x) FILTER (WHERE y) IGNORE NULLS AS f"], time_column="at"
    )
    assert filtered.whole == "min_by(x, `at`) FILTER (WHERE (y) AND (x) IS NOT NULL)"
    with pytest.raises(InvalidProgram, match="uses event time, which the stream does not have"):
        parse_aggregates(["first(x) AS f"])
