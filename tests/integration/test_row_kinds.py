"""Which operators may follow those whose rows are updated or can go away."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow.compute as pc
import pytest
from pyspark.sql import functions as sql

from firesteel import DataStream, Environment, Session, Sliding, Tumbling
from firesteel.connectors import PostgresSink
from firesteel.errors import FiresteelError
from firesteel.operator import StreamOperator
from taskexecutor.executor.analyze import analyze
from taskexecutor.executor.columnar.jvm.engine import SparkEngine
from tests.integration.analysis import json_rows, schema_of

Environment()  # makes functions of PySpark work without a session

NOWHERE = "postgresql://127.0.0.1:1/t"
SCHEMA = "shop STRING, n LONG, at TIMESTAMP"
rows = partial(json_rows, schema=SCHEMA)


def visits(tmp_path: Path, parallelism: int = 1) -> DataStream:
    windows = (
        rows(tmp_path, parallelism).key_by("shop").window(Session("1 h"), allowed_lateness="1 h")
    )
    return windows.aggregate("sum(n) AS total", name="Visits")


def same(batches: Any) -> Any:
    return batches


@pytest.mark.parametrize(
    ("program", "message"),
    [
        (
            lambda s: s.transform(lambda df: df.select("shop", "total"), name="Short"),
            "Short: it drops the column row_kind, but its input has rows of 'Visits'",
        ),
        (
            lambda s: s.transform(lambda df: df.withColumn("row_kind", sql.lit("insert"))),
            "it changes the column row_kind of its input, rows of 'Visits'",
        ),
        (lambda s: s.map_in_arrow(same, "shop STRING"), "MapInArrow(same): it drops the column"),
        (
            lambda s: s.key_by("shop").window(Tumbling("1 d")).aggregate("count(*) AS visits"),
            "it would count rows of 'Visits' that are no longer valid",
        ),
        (
            lambda s: s.key_by("row_kind").window(Tumbling("1 d")).aggregate("median(total) AS m"),
            "it would count rows of 'Visits'",
        ),
        (lambda s: s.drop_duplicates("shop"), "it would count rows of 'Visits'"),
        (
            lambda s: (
                s.transform(lambda df: df).union(s).window_all(Tumbling("1 d")).top_n(1, by="total")
            ),
            "it would count rows of 'Visits'",
        ),
        (
            lambda s: s.filter("total > 1").rebalance().map_in_arrow(same),
            "rows of 'Visits' would arrive out of order at the 2 subtasks after rebalance",
        ),
    ],
)
def test_what_would_take_deleted_rows_for_others_is_refused(
    tmp_path: Path,
    engine: SparkEngine,
    program: Callable[[DataStream], DataStream],
    message: str,
) -> None:
    with pytest.raises(FiresteelError, match=re.escape(message)):
        schema_of(program(visits(tmp_path, parallelism=2)), engine)


def test_rows_that_others_replace_are_not_counted(tmp_path: Path, engine: SparkEngine) -> None:
    best = rows(tmp_path).key_by("shop").top_n(2, by="n", name="Best")
    assert schema_of(best, engine).names[-2:] == ["rank", "row_kind"]
    last = rows(tmp_path).drop_duplicates("shop", keep="last", name="Best")
    assert schema_of(last, engine).names == ["shop", "n", "at", "row_kind"]
    again = best.drop("rank").key_by("shop").top_n(1, by="at", name="First of the best")
    assert schema_of(again, engine).names == ["shop", "n", "at", "rank", "row_kind"]
    latest = last.drop_duplicates("n", keep="last", on="at")
    assert schema_of(latest, engine).names == ["shop", "n", "at", "row_kind"]
    for changes in (best, last, again, latest):
        with pytest.raises(FiresteelError, match="no longer valid.*because later rows"):
            schema_of(changes.drop_duplicates("shop"), engine)
    for taken, says in (("rank", "top_n: the stream has a column 'rank'"), ("other", "column 'm'")):
        renamed = rows(tmp_path).with_column_renamed("at", taken).key_by("shop")
        with pytest.raises(FiresteelError, match=says):
            schema_of(renamed.top_n(2, by="n" if taken == "rank" else "m"), engine)


def first_of(stream: DataStream) -> DataStream:
    return stream.key_by("shop").top_n(2, by="n", name="First").drop("rank")


def first(tmp_path: Path) -> DataStream:
    return first_of(rows(tmp_path))


# Called with changes, and with another stream of the program.
TAKING_CHANGES: list[Callable[[DataStream, DataStream], DataStream]] = [
    lambda s, _: s.key_by("shop").aggregate("count(*) AS m", name="Behind"),
    lambda s, _: s.key_by("shop").top_n(1, by="at", name="Behind"),
    lambda s, _: s.drop_duplicates("n", keep="last", name="Behind"),
    lambda s, _: (
        s.key_by("shop").rows_between(-1, 0, by="at").aggregate("max(n) AS m", name="Behind")
    ),
    lambda s, other: s.join(other.select_expr("shop", "n AS o"), "shop", name="Behind"),
    lambda s, other: other.select_expr("shop", "n AS o").join(s, "shop", "left", name="Behind"),
]


COMES = sql.col("row_kind") != "delete"
BY_KIND, BY_CHANCE = "it reads row_kind", "it is not deterministic"


@pytest.mark.parametrize(
    ("leaves_out", "why"),
    [
        (lambda s: s.filter("row_kind = 'insert'", name="Some"), BY_KIND),
        (lambda s: s.filter("n > 1 OR upper(row_kind) = 'INSERT'", name="Some"), BY_KIND),
        (lambda s: s.where(COMES, name="Some"), BY_KIND),
        (
            lambda s: (
                s.transform(lambda df: df.where("row_kind <> 'delete'").where("n > 1"), name="Some")
                .key_by("shop")
                .map_in_arrow(same)
            ),
            BY_KIND,
        ),
        (
            lambda s: (
                s.with_column("comes", "row_kind = 'insert'").filter("comes", name="Some")
            ).drop("comes"),
            BY_KIND,
        ),
        (lambda s: s.filter(lambda batch: pc.equal(batch["row_kind"], "x"), name="Some"), BY_KIND),
        (lambda s: s.union(s.filter("row_kind = 'insert'", name="Some")), BY_KIND),
        (lambda s: s.filter("rand() < 0.5", name="Some"), BY_CHANCE),
        (lambda s: s.with_column("r", "rand()").where("r < 1", name="Some").drop("r"), BY_CHANCE),
        (lambda s: s.filter("at > current_timestamp()", name="Some"), BY_CHANCE),
        (lambda s: s.filter("date(at) = current_date()", name="Some"), BY_CHANCE),
        (lambda s: s.transform(lambda df: df.sample(0.5), name="Some"), BY_CHANCE),
    ],
)
def test_changes_are_not_left_out_where_others_take_them_back(
    tmp_path: Path, engine: SparkEngine, leaves_out: Any, why: str
) -> None:
    for taking in TAKING_CHANGES:
        given = rows(tmp_path)
        with pytest.raises(FiresteelError) as refused:
            schema_of(taking(leaves_out(first_of(given)), given), engine)
        assert (
            "Behind: it would not see all changes of 'First', because the condition of 'Some'"
            in str(refused.value)
        )
        assert f"drops some of them: {why}; filter after 'Behind' instead" in str(refused.value)


def test_changes_may_be_left_out_before_a_sink(tmp_path: Path, engine: SparkEngine) -> None:
    for condition in ("row_kind = 'insert'", "rand() < 0.5"):
        assert "row_kind" in schema_of(first(tmp_path).filter(condition), engine).names


@pytest.mark.parametrize("condition", ["n > 1", "n % 2 = 0 AND shop <> 'b'", "at < '2024-01-01'"])
def test_a_condition_that_treats_both_changes_of_a_row_alike_may_precede(
    tmp_path: Path, engine: SparkEngine, condition: str
) -> None:
    for taking in TAKING_CHANGES:
        given = rows(tmp_path)
        alike = first_of(given).filter(condition)
        assert "row_kind" in schema_of(taking(alike, given), engine).names


@pytest.mark.parametrize(
    "only_those_that_come",
    [
        lambda s: s.filter("row_kind = 'insert'").drop("row_kind"),
        lambda s: s.filter("n > 1 AND row_kind != 'delete'").filter("n > 2").select("n", "shop"),
        lambda s: s.transform(lambda df: df.where("row_kind <=> 'insert'").drop("row_kind")),
    ],
)
def test_rows_of_one_kind_are_rows_of_their_own_without_the_column(
    tmp_path: Path, engine: SparkEngine, only_those_that_come: Any
) -> None:
    counted = only_those_that_come(first(tmp_path)).key_by("shop").aggregate("count(*) AS m")
    assert schema_of(counted, engine).names == ["shop", "m"]
    once = only_those_that_come(first(tmp_path)).drop_duplicates("shop")
    assert "row_kind" not in schema_of(once, engine).names
    with pytest.raises(FiresteelError, match="rows of 'First' that are no longer valid.*after the"):
        schema_of(first(tmp_path).filter("row_kind = 'insert'").drop_duplicates("shop"), engine)


@pytest.mark.parametrize(
    "some",
    [
        lambda s: s.filter("row_kind = 'insert' OR n > 1"),
        lambda s: s.filter("rand() < 0.5"),
        lambda s: s.union(s.filter("row_kind = 'insert'")),
    ],
)
def test_the_column_stays_while_there_may_be_rows_of_both_kinds(
    tmp_path: Path, engine: SparkEngine, some: Any
) -> None:
    with pytest.raises(FiresteelError, match="it drops the column row_kind"):
        schema_of(some(first(tmp_path)).drop("row_kind"), engine)


@pytest.mark.parametrize(
    ("expression", "why"),
    [
        ("count_if(row_kind = 'insert') AS m", BY_KIND),
        ("sum(n) FILTER (WHERE row_kind = 'insert') AS m", BY_KIND),
        ("count_if(at < current_timestamp()) AS m", BY_CHANCE),
    ],
)
def test_what_a_row_gives_to_an_aggregate_can_be_taken_back(
    tmp_path: Path, engine: SparkEngine, expression: str, why: str
) -> None:
    with pytest.raises(
        FiresteelError, match=f"of 'First' could not be retracted when the row is deleted: {why}"
    ):
        schema_of(first(tmp_path).key_by("shop").aggregate(expression), engine)


def test_aggregates_of_changes_are_changes(tmp_path: Path, engine: SparkEngine) -> None:

    def first() -> Any:
        return rows(tmp_path).key_by("shop").top_n(2, by="n").filter("n > 1").key_by("shop")

    best = first().aggregate("max(n) AS most")
    assert schema_of(best, engine).names == ["shop", "most", "row_kind"]
    for expression, message in (
        ("stddev(n) AS spread", "aggregate('stddev(n) AS spread'): its input may delete rows, but"),
        ("max(struct(n, shop)) AS most", "type struct<n:bigint,shop:string> cannot be merged"),
        ("max(n) AS row_kind", "aggregate: its results have their own column 'row_kind'"),
    ):
        with pytest.raises(FiresteelError, match=re.escape(message)):
            schema_of(first().aggregate(expression), engine)
    per_total = best.key_by("most").aggregate("count(DISTINCT shop) AS shops", name="Per total")
    assert schema_of(per_total, engine).names == ["most", "shops", "row_kind"]
    sums = rows(tmp_path).key_by("shop").aggregate("sum(n) AS n", changes=True, name="Sums")
    assert schema_of(sums.key_by("n").aggregate("count(*) AS m"), engine).names == [
        "n", "m", "row_kind",
    ]  # fmt: skip
    for changes in (per_total, sums):
        key = "most" if changes is per_total else "shop"
        with pytest.raises(FiresteelError, match="no longer valid.*because"):
            schema_of(changes.drop_duplicates(key), engine)
    for stream in (rows(tmp_path), rows(tmp_path).drop_duplicates("shop", keep="last")):
        around = stream.key_by("shop").rows_between(-1, 0, by="at")
        with_sum = around.aggregate("sum(n) AS two")
        assert schema_of(with_sum, engine).names == ["shop", "n", "at", "two", "row_kind"]
        with pytest.raises(FiresteelError, match="rows_between: the stream has a column 'n', but"):
            schema_of(around.aggregate("sum(n) AS n"), engine)
    other = rows(tmp_path).with_column_renamed("at", "row_kind").key_by("shop")
    with pytest.raises(FiresteelError, match="a column 'row_kind', but its rows are not changes"):
        schema_of(other.aggregate("sum(n) AS n"), engine)


@pytest.mark.parametrize(
    "program",
    [
        lambda s: s,
        lambda s: s.filter("total > 1").transform(lambda df: df.select("row_kind", df.total * 2)),
        lambda s: s.map_in_arrow(same).key_by("shop").map_in_arrow(same),
        lambda s: s.map_in_arrow(same, "total LONG, row_kind STRING"),
    ],
)
def test_what_keeps_the_column_may_follow(
    tmp_path: Path, engine: SparkEngine, program: Callable[[DataStream], DataStream]
) -> None:
    assert "row_kind" in schema_of(program(visits(tmp_path, parallelism=2)), engine).names


def test_only_results_that_may_go_away_have_the_column(tmp_path: Path, engine: SparkEngine) -> None:
    for window, lateness, of_sums, of_rows in (
        (Session("1 h"), "0 s", False, False),
        (Tumbling("1 h"), "1 h", False, True),
        (Session("1 h"), "1 h", True, True),
    ):
        windows = rows(tmp_path).key_by("shop").window(window, allowed_lateness=lateness)
        assert ("row_kind" in schema_of(windows.aggregate("sum(n) AS s"), engine).names) is of_sums
        assert ("row_kind" in schema_of(windows.top_n(1, by="n"), engine).names) is of_rows
    applied = windows.apply(lambda df: df.withColumn("row_kind", sql.lit(1)))
    with pytest.raises(FiresteelError, match="the function returns a column 'row_kind'"):
        schema_of(applied, engine)


def running(stream: DataStream) -> DataStream:
    return stream.key_by("shop").aggregate("sum(n) AS n", name="Totals")


def fired_again(stream: DataStream) -> DataStream:
    windows = stream.key_by("shop").window(Tumbling("1 h"), allowed_lateness="1 h")
    return windows.aggregate("sum(n) AS n", name="Totals")


def kept_and_fired_again(stream: DataStream) -> DataStream:
    windows = stream.key_by("shop").window(Sliding("2 h", "1 h"), allowed_lateness="1 h")
    return windows.aggregate("median(n) AS n", name="Totals")


def as_they_are(stream: DataStream) -> DataStream:
    return stream


def through_functions(stream: DataStream) -> DataStream:
    """Operators that treat rows one by one, and a union."""
    cast = stream.filter("n > 1").select_expr("shop", "CAST(n AS LONG) AS n")
    mapped = cast.map_in_arrow(same).map(lambda row: row).rebalance()
    halves = mapped.filter(lambda batch: [True] * batch.num_rows).connect(mapped)
    return mapped.map_in_arrow(same).union(halves.map_in_arrow(same, same, "shop STRING, n LONG"))


def first_of_days(stream: DataStream) -> DataStream:
    return stream.window_all(Tumbling("1 d", processing_time=True)).top_n(1, by="n")


COUNTED: list[Callable[[DataStream], DataStream]] = [
    lambda s: s.key_by("shop").aggregate("sum(n) AS n", name="Again"),
    lambda s: s.window_all(Tumbling("1 d", processing_time=True)).aggregate(
        "sum(n) AS n", name="Again"
    ),
    lambda s: (
        s.key_by("shop").window(Session("1 h", processing_time=True)).aggregate("median(n) AS m")
    ),
    lambda s: s.key_by("shop").window(Tumbling("1 h", processing_time=True)).apply(lambda df: df),
    first_of_days,
    lambda s: s.drop_duplicates("shop"),
]


@pytest.mark.parametrize(
    ("updates", "between"),
    [
        (running, as_they_are),
        (fired_again, through_functions),
        (kept_and_fired_again, as_they_are),
    ],
)
def test_updates_are_not_counted_as_rows(
    tmp_path: Path, engine: SparkEngine, updates: Any, between: Any
) -> None:
    why = "whenever its values change" if updates is running else "late records (allowed_lateness)"
    for counted in COUNTED:
        with pytest.raises(FiresteelError) as refused:
            schema_of(counted(between(updates(rows(tmp_path)))), engine)
        places = r"test_row_kinds\.py, line \d+"
        assert re.match(
            rf"{places}: .*: it would count each update of 'Totals' \({places}\) as an additional row, "
            rf"because that emits .* {re.escape(why)}; .*PostgresSink",
            str(refused.value),
        ), refused.value
        assert " partial" not in str(refused.value)


def upserts(stream: DataStream) -> DataStream:
    return stream.sink_to(PostgresSink(NOWHERE, "t", mode="upsert", key=["Shop", "n"]))


@pytest.mark.parametrize(
    ("between", "behind"),
    [
        (lambda s: s.rebalance(), "rebalance to 2 subtasks"),
        (lambda s: s.filter("n > 1").key_by("day").map_in_arrow(same), "key_by(day)"),
        (lambda s: s.key_by("shop", "day").map(lambda row: row), "key_by(shop, day)"),
        (lambda s: s.union(s.key_by("shop").map_in_arrow(same).rebalance()), "rebalance to"),
    ],
)
def test_updates_of_a_tables_row_may_not_overtake_each_other(
    tmp_path: Path, engine: SparkEngine, between: Any, behind: str
) -> None:
    with pytest.raises(FiresteelError) as refused:
        schema_of_all(upserts(between(by_day(rows(tmp_path, parallelism=2)))), engine)
    text = str(refused.value)
    assert "an older update of 'Totals' (test_row_kinds.py, line " in text
    assert f"can overtake each other after {behind}" in text
    assert "columns of the table's key there: Shop, n" in text


@pytest.mark.parametrize(
    ("parallelism", "between"),
    [
        (2, lambda s: s),
        (2, lambda s: s.key_by("shop").map_in_arrow(same)),
        (1, lambda s: s.rebalance()),
        (2, lambda s: s.union(s.key_by("n", "shop").filter("n > 1"))),
    ],
)
def test_updates_that_stay_in_order_go_into_tables(
    tmp_path: Path, engine: SparkEngine, parallelism: int, between: Any
) -> None:
    with pytest.raises(FiresteelError, match="PostgresSink: cannot connect to"):
        schema_of_all(upserts(between(by_day(rows(tmp_path, parallelism)))), engine)


def by_day(stream: DataStream) -> DataStream:
    return running(stream).with_column("day", "current_date()")


def schema_of_all(sink: Any, engine: SparkEngine) -> None:
    analyze(sink._program.job_graph("rows"), engine)


def test_what_sees_each_update_and_what_is_no_update_may_follow(
    tmp_path: Path, engine: SparkEngine
) -> None:
    hourly = rows(tmp_path).key_by("shop").window(Tumbling("1 h")).aggregate("sum(n) AS n")
    daily = hourly.key_by("shop").window(Tumbling("1 d")).aggregate("max(n) AS n")
    assert "n" in schema_of(running(daily), engine).names

    late = rows(tmp_path).key_by("shop").window(Tumbling("1 h"), allowed_lateness="1 h")
    dropped = late.side_output_late("late").aggregate("sum(n) AS n").side_output("late")
    assert "n" in schema_of(running(dropped), engine).names

    latest = running(rows(tmp_path)).operator("Latest", StreamOperator, SCHEMA)
    assert "n" in schema_of(running(latest), engine).names


@pytest.mark.parametrize(
    ("column", "by", "message"),
    [
        (
            sql.col("n").alias("rank"),
            "n",
            "the stream has a column 'rank', but the results add a column",
        ),
        (
            sql.create_map("shop", "n").alias("m"),
            "m",
            "column 'm' is map<.*, which cannot be ordered",
        ),
        (sql.col("n").alias("mm"), "m", "column 'm': no such column; .* did you mean 'mm'?"),
    ],
)
def test_the_columns_of_top_n_are_checked(
    tmp_path: Path, engine: SparkEngine, column: Any, by: str, message: str
) -> None:
    more = rows(tmp_path).transform(lambda df: df.select("*", column))
    with pytest.raises(FiresteelError, match=message):
        schema_of(more.window_all(Tumbling("1 h")).top_n(1, by=by), engine)
