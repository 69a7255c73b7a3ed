"""Windows and aggregates end to end, each against the same computation by pandas."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
import psycopg2
import pytest

from firesteel import DataStream, Environment, Session, Sliding, Tumbling, Watermarks
from firesteel.connectors import FileSource, PostgresSink
from firesteel.errors import FiresteelError

from .conftest import Session as Cluster
from .test_operators import collected as collected_all
from .test_streams import collected

DAYS = pd.date_range("2024-03-01", periods=600, freq="23min", tz="UTC")
ROWS = pd.DataFrame(
    {
        "at": DAYS,
        "key": [f"k{i % 7}" for i in range(600)],
        "n": [(i * 31) % 101 for i in range(600)],
    }
)


def read(folder: Path, max_out_of_orderness: str) -> DataStream:
    for part in range(3):
        ROWS.iloc[part::3].to_csv(folder / f"part-{part}.csv", index=False)
    source = FileSource(
        f"{folder}/*.csv", format="csv", header=True, schema="at TIMESTAMP, key STRING, n BIGINT"
    )
    watermarks = Watermarks.bounded("at", max_out_of_orderness=max_out_of_orderness)
    return Environment(parallelism=2).from_source(source, watermarks=watermarks)


@pytest.fixture
def stream(tmp_path: Path) -> DataStream:
    return read(tmp_path, "20 days")


@pytest.fixture
def unordered(tmp_path: Path) -> DataStream:
    """One subtask reads files that start at the same time: all but the first of them are late."""
    return read(tmp_path, "0 s").set_parallelism(1)


def sorted_frame(table: Any, *by: str) -> pd.DataFrame:
    return table.to_pandas().sort_values(list(by), ignore_index=True)


def test_several_windows_over_one_stream(session: Cluster, stream: DataStream) -> None:
    keyed = stream.key_by("key")
    sliding = keyed.window(Sliding("6 hours", "2 hours")).aggregate(
        "count(*) AS value", "stddev(n) AS spread"
    )
    sessions = keyed.window(Session("3 hours")).aggregate("count(*) AS value", "last(n) AS spread")
    both = sliding.union(
        sessions.transform(lambda df: df.withColumn("spread", df["spread"].cast("double")))
    )
    found = sorted_frame(collected(session, both), "key", "window_start", "window_end")
    slides = [
        ROWS.assign(window_start=ROWS["at"].dt.floor("2h") - pd.Timedelta(hours=back))
        for back in (0, 2, 4)
    ]
    groups = pd.concat(slides).groupby(["key", "window_start"])["n"]
    expected = groups.agg(value="size", spread="std").reset_index()
    mine = found[found["window_end"] - found["window_start"] == pd.Timedelta(hours=6)].reset_index(
        drop=True
    )
    assert len(mine) == len(expected)
    assert mine["value"].tolist() == expected["value"].tolist()
    pd.testing.assert_series_equal(mine["spread"], expected["spread"])
    bursts = found[found["window_end"] - found["window_start"] != pd.Timedelta(hours=6)]
    assert bursts["value"].sum() == len(ROWS)
    assert len(bursts) == 7, "a record of each key every 161 minutes: one session per key"


def test_windows_with_keys_of_their_own_and_over_a_union(
    session: Cluster, stream: DataStream
) -> None:
    thirds = stream.transform(lambda df: df.selectExpr("*", "n % 3 AS third"))
    by_third = (
        thirds.key_by("third")
        .window(Sliding("12 hours", "6 hours"))
        .aggregate("count(*) AS value", "median(n) AS m")
    )
    by_both = (
        thirds.key_by("key", "third")
        .window(Session("8 hours"))
        .aggregate("count(*) AS value", "max(struct(n, at)) AS top")
    )
    small = stream.filter("n < 50")
    of_union = (
        stream.union(small).key_by("key").window(Tumbling("1 day")).aggregate("sum(n) AS value")
    )
    nothing = (
        stream.key_by("key")
        .window(Tumbling("1 day"))
        .apply(lambda df: df.where("n < 0").select("key", "n"))
    )
    sliding, sessions, union, empty = (
        table.to_pandas() for table in collected_all(session, by_third, by_both, of_union, nothing)
    )
    rows = ROWS.assign(third=ROWS["n"] % 3)
    slides = pd.concat(
        [rows.assign(start=ROWS["at"].dt.floor("6h") - pd.Timedelta(hours=back)) for back in (0, 6)]
    )
    medians = slides.groupby(["third", "start"])["n"].median()
    assert sliding.sort_values(["third", "window_start"])["m"].tolist() == medians.tolist()
    rows = rows.sort_values(["key", "third", "at"])
    apart = rows.groupby(["key", "third"])["at"].diff() > pd.Timedelta(hours=8)
    runs = rows.groupby(["key", "third", apart.cumsum()])["n"].agg(["size", "max"])
    sessions = sessions.sort_values(["key", "third", "window_start"])
    assert sessions["value"].tolist() == runs["size"].tolist()
    assert [top["n"] for top in sessions["top"]] == runs["max"].tolist()
    twice = pd.concat([ROWS, ROWS[ROWS["n"] < 50]])
    sums = twice.groupby(["key", twice["at"].dt.floor("1D")])["n"].sum()
    assert union.sort_values(["key", "window_start"])["value"].tolist() == sums.tolist()
    assert list(empty.columns) == ["key", "n"]
    assert empty.empty


def test_late_records_fire_their_windows_again(session: Cluster, unordered: DataStream) -> None:
    """The files overlap in time; the last update of each window is what a batch job would give."""
    windowed = unordered.key_by("key").window(Tumbling("1 day"), allowed_lateness="100 days")
    merged = windowed.aggregate("count(*) AS n_rows", "sum(n) AS total")
    applied = windowed.apply(
        lambda df: df.groupBy("key", "window_start").agg(
            sql("count(*) AS n_rows"), sql("sum(n) AS total")
        )
    )
    expected = ROWS.groupby(["key", ROWS["at"].dt.floor("1D")])["n"].agg(["size", "sum"])
    for table in collected_all(session, merged, applied):
        updates = table.to_pandas().sort_values("n_rows")
        assert len(updates) > len(expected)
        last = updates.groupby(["key", "window_start"]).last()
        assert last["n_rows"].tolist() == expected["size"].tolist()
        assert last["total"].tolist() == expected["sum"].tolist()


def test_sessions_that_late_records_join_leave_nothing_behind(
    session: Cluster, unordered: DataStream, postgres: str
) -> None:
    """Each file by itself has sessions that the next ones extend and join."""
    visits = (
        unordered.key_by("key")
        .window(Session("3 hours"), allowed_lateness="100 days")
        .aggregate("count(*) AS n_rows", "sum(n) AS total")
    )
    odd = visits.filter("total % 2 = 1").transform(
        lambda df: df.withColumn("half", sql("total / 2"))
    )
    table = PostgresSink(
        postgres, "visits", mode="upsert", key=["key", "window_start", "window_end"]
    )
    odd.sink_to(table)
    changes = collected_all(session, visits)[0].to_pandas()
    expected = ROWS.groupby("key")["n"].agg(["size", "sum"])  # a record every 161 minutes
    assert len(changes) > 10 * len(expected)
    sign = changes["row_kind"].map({"insert": 1, "delete": -1})
    results = sign.groupby([changes[c] for c in changes.columns if c != "row_kind"]).sum()
    left = results[results > 0].reset_index().sort_values("key")
    assert set(results) == {0, 1}
    assert left["n_rows"].tolist() == expected["size"].tolist()
    assert left["total"].tolist() == expected["sum"].tolist()
    connection = psycopg2.connect(postgres)
    try:
        with connection.cursor() as cursor:
            cursor.execute("SELECT key, total, half FROM visits ORDER BY key")
            found = cursor.fetchall()
            cursor.execute("DROP TABLE visits")
        connection.commit()
    finally:
        connection.close()
    totals = expected["sum"][expected["sum"] % 2 == 1]
    assert found == [(key, total, total / 2) for key, total in totals.items()]


def test_windows_without_keys_and_the_first_rows_of_windows(
    session: Cluster, stream: DataStream
) -> None:
    whole = stream.window_all(Tumbling("1 day"))
    day = ROWS["at"].dt.floor("1D")
    tables = collected_all(
        session,
        whole.aggregate("count(*) AS n_rows", "sum(n) AS total"),
        whole.aggregate("median(n) AS middle"),
        stream.window_all(Session("10 min")).aggregate("count(*) AS n_rows"),
        whole.apply(lambda df: df.orderBy("n", "at").limit(1)),
        whole.top_n(3, by=["n", "at"]),
        stream.key_by("key").window(Sliding("2 days", "1 day")).top_n(1, by="n", ascending=True),
        stream.drop_duplicates("key", "n"),
        stream.drop_duplicates("key", within="1 day"),
    )
    merged, medians, sessions, first, top, lowest, distinct, apart = (
        table.to_pandas() for table in tables
    )
    by_day = ROWS.groupby(day)["n"]
    merged = merged.sort_values("window_start")
    assert merged["n_rows"].tolist() == by_day.size().tolist()
    assert merged["total"].tolist() == by_day.sum().tolist()
    assert medians.sort_values("window_start")["middle"].tolist() == by_day.median().tolist()
    assert sessions["n_rows"].tolist() == [1] * len(ROWS)
    ordered = ROWS.sort_values(["n", "at"])
    expected = ordered.groupby(ordered["at"].dt.floor("1D")).first()
    assert first.sort_values("window_start")["key"].tolist() == expected["key"].tolist()
    best = ordered[::-1].groupby(ordered["at"].dt.floor("1D")).head(3)
    best = best.sort_values(["at"]).sort_values(
        ["n", "at"], ascending=False, key=lambda c: c, kind="stable"
    )
    best = best.assign(window_start=best["at"].dt.floor("1D"))
    best["rank"] = best.groupby("window_start").cumcount() + 1
    columns = ["window_start", "rank", "at", "key", "n"]
    pd.testing.assert_frame_equal(
        top.sort_values(columns[:2], ignore_index=True)[columns],
        best.sort_values(columns[:2], ignore_index=True)[columns],
        check_dtype=False,
    )
    twice = pd.concat([ROWS.assign(start=day), ROWS.assign(start=day - pd.Timedelta("1D"))])
    assert lowest.sort_values(["key", "window_start"])["n"].tolist() == (
        twice.groupby(["key", "start"])["n"].min().tolist()
    )
    assert sorted(zip(distinct["key"], distinct["n"], strict=True)) == (
        sorted(set(zip(ROWS["key"], ROWS["n"], strict=True)))
    )
    for key, times in ROWS.groupby("key")["at"]:
        kept = apart[apart["key"] == key]["at"].astype(times.dtype).sort_values()
        assert (kept.diff().dropna() >= pd.Timedelta("1D")).all()
        nearest = pd.merge_asof(
            times.to_frame(),
            kept.rename("kept").to_frame(),
            left_on="at",
            right_on="kept",
            direction="nearest",
        )
        assert ((nearest["at"] - nearest["kept"]).abs() < pd.Timedelta("1D")).all()


def sql(expression: str) -> Any:
    from pyspark.sql import functions

    return functions.expr(expression)


def test_sessions_count_every_record_or_call_it_late(
    session: Cluster, unordered: DataStream
) -> None:
    counted = (
        unordered.key_by("key")
        .window(Session("3 hours"))
        .side_output_late("late")
        .aggregate("count(*) AS value")
    )
    sessions, late = collected_all(session, counted, counted.side_output("late"))
    assert late.column_names == ["at", "key", "n"]
    assert late.num_rows > 0
    assert sum(sessions["value"].to_pylist()) + late.num_rows == len(ROWS)


def test_spark_over_the_rows_of_each_window(session: Cluster, stream: DataStream) -> None:
    windowed = stream.key_by("key").window(Tumbling("1 day"))
    medians = windowed.aggregate("median(n) AS value")
    ranked = windowed.apply(
        lambda df: (
            df.groupBy("key", "window_start", "window_end")
            .agg({"n": "median"})
            .withColumnRenamed("median(n)", "value")
        )
    )
    joined = medians.transform(lambda df: df.selectExpr("*", "1 AS way")).union(
        ranked.transform(lambda df: df.selectExpr("*", "2 AS way"))
    )
    found = sorted_frame(collected(session, joined), "way", "key", "window_start")
    expected = (
        ROWS.groupby(["key", ROWS["at"].dt.floor("1D").rename("window_start")])["n"]
        .median()
        .tolist()
    )
    assert found["value"].tolist() == [*expected, *expected]


def test_windows_over_windows(session: Cluster, stream: DataStream) -> None:
    hourly = stream.key_by("key").window(Tumbling("1 hour")).aggregate("sum(n) AS total")
    daily = (
        hourly.key_by("key")
        .window(Tumbling("1 day"))
        .aggregate("sum(total) AS value", "count(*) AS hours")
    )
    found = sorted_frame(collected(session, daily), "key", "window_start")
    expected = ROWS.groupby(["key", ROWS["at"].dt.floor("1D")])["n"].sum()
    assert found["value"].tolist() == expected.tolist()


@pytest.mark.parametrize("aggregate", ["sum(total)", "CAST(percentile(total, 1) AS BIGINT)"])
def test_a_window_keyed_by_the_start_of_an_earlier_one(
    session: Cluster, stream: DataStream, aggregate: str
) -> None:
    hourly = stream.key_by("key").window(Tumbling("1 hour")).aggregate("sum(n) AS total")
    hours = hourly.transform(lambda df: df.withColumn("hour", df["window_start"]))
    daily = hours.key_by("hour").window(Tumbling("1 day")).aggregate(f"{aggregate} AS value")
    found = sorted_frame(collected(session, daily), "hour")
    assert found.columns.tolist() == ["hour", "window_start", "window_end", "value"]
    totals = ROWS.groupby([ROWS["at"].dt.floor("1h"), "key"])["n"].sum().groupby(level=0)
    expected = totals.sum() if "sum" in aggregate else totals.max()
    assert found["value"].tolist() == expected.tolist()
    assert (found["window_start"] == found["hour"].dt.floor("1D")).all()


def test_a_running_aggregate_ends_with_the_totals(session: Cluster, stream: DataStream) -> None:
    running = stream.key_by("key").aggregate(
        "count(*) AS n_rows", "sum(n) AS total", "avg(n) AS mean", "max_by(n, at) AS newest"
    )
    updates = collected(session, running).to_pandas()
    latest = updates.sort_values("n_rows").groupby("key").last()
    groups = ROWS.groupby("key")["n"]
    assert latest["total"].tolist() == groups.sum().tolist()
    assert latest["newest"].tolist() == groups.last().tolist()
    assert latest["mean"].tolist() == pytest.approx(groups.mean().tolist())


def test_processing_time_windows_hold_every_record(session: Cluster, stream: DataStream) -> None:
    counted = (
        stream.key_by("key")
        .window(Tumbling("1 second", processing_time=True))
        .aggregate("count(*) AS value")
    )
    found = collected(session, counted).to_pandas()
    assert found.groupby("key")["value"].sum().tolist() == ROWS.groupby("key").size().tolist()


def test_late_records_go_to_the_side_output(session: Cluster, tmp_path: Path) -> None:
    for part, day in enumerate([2, 1, 3]):
        rows = pd.DataFrame(
            {"at": [f"2024-01-{day:02d}T0{h}:00:00Z" for h in range(3)], "key": "k", "n": range(3)}
        )
        rows.to_csv(tmp_path / f"{part}.csv", index=False)
    source = FileSource(
        f"{tmp_path}/*.csv", format="csv", header=True, schema="at TIMESTAMP, key STRING, n BIGINT"
    )
    stream = Environment(parallelism=1).from_source(source, watermarks=Watermarks.bounded("at"))
    counted = (
        stream.key_by("key")
        .window(Tumbling("1 day"))
        .side_output_late("late")
        .aggregate("count(*) AS value")
    )
    late = counted.side_output("late").transform(
        lambda df: df.selectExpr("key", "n + 100 AS value")
    )
    both = late.union(counted.transform(lambda df: df.select("key", "value")))
    assert sorted(collected(session, both)["value"].to_pylist()) == [3, 3, 100, 101, 102]


def test_unknown_columns_are_pointed_at_before_data_flows(
    session: Cluster, stream: DataStream
) -> None:
    counted = stream.key_by("key").window(Tumbling("1 day")).aggregate("sum(n) - max(m) AS value")
    with pytest.raises(FiresteelError) as failed:
        collected(session, counted)
    assert "`m` cannot be resolved" in str(failed.value)
    assert "  sum(n) - max(m) AS value\n               ^" in str(failed.value)
