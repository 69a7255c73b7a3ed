"""Schemas and errors of joins, determined before data flows."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import Row
from pyspark.sql.streaming import StatefulProcessor

from firesteel import (
    CoProcessFunction,
    DataStream,
    Environment,
    Session,
    Tumbling,
    Watermarks,
)
from firesteel.connectors import FileSource
from firesteel.errors import FiresteelError
from taskexecutor.executor.columnar.jvm.engine import SparkEngine
from tests.integration.analysis import schema_of


def streams(
    tmp_path: Path, *, mode: str = "streaming", timed: tuple[bool, bool] = (True, True)
) -> tuple[DataStream, DataStream]:
    """`timed`: which of the two have watermarks."""
    (tmp_path / "rows.json").write_text('{"id": 1}\n')
    env = Environment(parallelism=2, mode=mode)
    return tuple(  # type: ignore[return-value]
        env.from_source(
            FileSource(f"{tmp_path}/*.json", format="json", schema=schema),
            watermarks=Watermarks.bounded(time) if timed[time == "time"] else None,
        )
        for schema, time in (
            ("n INT, id LONG, at TIMESTAMP, word STRING", "at"),
            ("ID LONG, time TIMESTAMP, text STRING, place INT", "time"),
        )
    )


def test_columns_of_joins(tmp_path: Path, engine: SparkEngine) -> None:
    one, other = streams(tmp_path)
    names = ["id", "n", "at", "word", "time", "text", "place"]
    assert schema_of(one.join(other, "id"), engine).names == names
    assert schema_of(one.join(other, "id", "full"), engine).names == [*names, "row_kind"]
    latest = other.drop_duplicates("id", keep="last")
    assert schema_of(one.join(latest, "id"), engine).names == [*names, "row_kind"]
    near = one.interval_join(other, "id", between=("0 s", "1 s"))
    # The time of its rows is the later one: a window after it needs no column name.
    windows = near.key_by("place").window(Tumbling("1 h")).aggregate("count(*) AS n")
    assert schema_of(windows, engine).names == ["place", "window_start", "window_end", "n"]
    prices = other.with_column("row_kind", "'insert'")
    valid = one.as_of_join(prices, "id", "left")
    assert schema_of(valid, engine).names == names
    hourly = valid.key_by("place").window(Tumbling("1 h")).aggregate("count(*) AS n")
    assert schema_of(hourly, engine).names == ["place", "window_start", "window_end", "n"]
    hours = one.window_join(other, "id", Tumbling("1 h")).key_by("word")
    assert schema_of(hours.window(Tumbling("1 d")).aggregate("count(*) AS n"), engine)


@pytest.mark.parametrize(
    ("program", "message"),
    [
        (lambda a, b: a.join(b, "key"), "key"),
        (
            lambda a, b: a.join(b, {"n": "ID"}),
            "the key 'n' of the left stream is int32 and the key",
        ),
        (
            lambda a, b: a.join(b.with_column_renamed("text", "WORD"), "id", name="Pairs"),
            "Pairs: the result would have two columns 'WORD'; rename or drop one of them",
        ),
        (
            lambda a, b: a.join(b, "id", "left").drop_duplicates("id"),
            'because an unmatched row is retracted when it is matched; use how="inner" there, or a join',
        ),
        (
            lambda a, b: a.join(b, "id", "left").select("id"),
            "it drops the column row_kind",
        ),
        (
            lambda a, b: a.key_by("id").aggregate("max(n) AS n").join(b, "id", name="Pairs"),
            "Pairs: it would count each update of 'Aggregate'",
        ),
        (
            lambda a, b: b.join(a.drop_duplicates("id", keep="last", name="Last"), "id", ttl="1 d"),
            "it would count rows of 'Last' that are no longer valid",
        ),
        (
            lambda a, b: a.with_column_renamed("word", "row_kind").join(b, "id"),
            "a joined stream has a column 'row_kind', but its rows are not changes",
        ),
        (
            lambda a, b: b.join(a.drop_duplicates("id", keep="last"), "id").select("id"),
            "it drops the column row_kind",
        ),
        (
            lambda a, b: a.as_of_join(b.drop_duplicates("id", keep="last", name="Last"), "id"),
            "replace them; join the rows upstream of it: as_of_join finds the latest of them itself",
        ),
        (
            lambda a, b: a.as_of_join(b.with_column_renamed("place", "row_kind"), "id"),
            "the column 'row_kind' of versions marks which of them are deletions and must be a string",
        ),
        (
            lambda a, b: a.with_column_renamed("word", "row_kind").as_of_join(b, "id"),
            "a joined stream has a column 'row_kind', but its rows are not changes",
        ),
        (
            lambda a, b: a.window_join(b, "id", Tumbling("1 h"), times=("at", "text")),
            "column 'text' is string, but event time must be a timestamp",
        ),
        (
            lambda a, b: a.select_expr("id", "at AS since").window_join(b, "id", Tumbling("1 h")),
            "column 'at', the event time, which times= can name: no such column; the stream has: ",
        ),
    ],
)
def test_what_cannot_be_joined_is_refused(
    tmp_path: Path,
    engine: SparkEngine,
    program: Callable[[DataStream, DataStream], DataStream],
    message: str,
) -> None:
    with pytest.raises(FiresteelError, match=re.escape(message)):
        schema_of(program(*streams(tmp_path)), engine)


def joined(a: DataStream, b: DataStream, **settings: Any) -> DataStream:
    return a.join(b, "id", name="Pairs", **settings)


def hourly(stream: DataStream, on: str | None = None) -> DataStream:
    return stream.key_by("id").window(Tumbling("1 h", on=on)).aggregate("count(*) AS c")


class Expiring(StatefulProcessor):
    def init(self, handle: Any) -> None: ...

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:
        yield Row(n=0)


class Looking(Expiring):
    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:
        yield Row(n=timerValues.getCurrentWatermarkInMs())


class Timeout(CoProcessFunction):
    def process_element1(self, value: Row, ctx: Any) -> None:
        ctx.timer_service().register_event_time_timer(0)

    def process_element2(self, value: Row, ctx: Any) -> None: ...

    def on_timer(self, timestamp_ms: int, ctx: Any) -> None: ...


def expiring(stream: DataStream, processor: StatefulProcessor) -> DataStream:
    return stream.key_by("id").transform_with_state(processor, "n LONG", time_mode="event_time")


NEEDING_EVENT_TIME: list[Callable[[DataStream, DataStream], DataStream]] = [
    lambda a, b: hourly(joined(a, b), on="at"),
    lambda a, b: hourly(joined(a, b, ttl="1 s"), on="time"),
    lambda a, b: hourly(joined(a, b).select_expr("id", "greatest(at, time) AS late"), on="late"),
    lambda a, b: joined(a, b).window_all(Tumbling("1 h", on="at")).top_n(1, by="n"),
    lambda a, b: joined(a, b).window_all(Session("1 h", on="at")).aggregate("median(n) AS m"),
    lambda a, b: joined(a, b).drop_duplicates("id", within="1 h", on="at"),
    lambda a, b: (
        joined(a, b)
        .select("id", "at")
        .map_in_arrow(lambda batches: batches)
        .interval_join(b, "id", between=("0 s", "1 s"), times=("at", "time"))
    ),
    lambda a, b: a.as_of_join(
        joined(a, b).select_expr("id", "at AS since"), "id", times=("at", "since")
    ),
    lambda a, b: hourly(a.union(joined(a, b).select("n", "id", "at", "word"))),
    lambda a, b: hourly(a.as_of_join(b, "id", name="Pairs"), on="time"),
    lambda a, b: expiring(joined(a, b), Expiring()),
    lambda a, b: joined(a, b).connect(b).key_by("id", "ID").co_process(Timeout(), "n LONG"),
]


@pytest.mark.parametrize("program", NEEDING_EVENT_TIME)
def test_rows_of_a_join_are_not_dropped_as_late(
    tmp_path: Path,
    engine: SparkEngine,
    program: Callable[[DataStream, DataStream], DataStream],
) -> None:
    """A stream is refused; in a batch, nothing is late."""
    with pytest.raises(
        FiresteelError, match=r"'Pairs'.* joins .*much older.*interval_join.*_waterm"
    ):
        schema_of(program(*streams(tmp_path)), engine)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # timers of a batch
        assert schema_of(program(*streams(tmp_path, mode="batch")), engine) is not None


@pytest.mark.parametrize(
    ("timed", "program"),
    [
        ((True, True), lambda a, b: hourly(joined(a, b).assign_timestamps_and_watermarks(
            Watermarks.bounded("at", max_out_of_orderness="1 h")))),
        ((True, True), lambda a, b: joined(a, b).drop_duplicates("id")),
        ((True, True), lambda a, b: hourly(
            a.interval_join(b, "id", between=("-1 s", "1 s")), on="at")),
        ((True, True), lambda a, b: hourly(a.as_of_join(b, "id"), on="at")),
        ((True, True), lambda a, b: joined(a, b).window_all(
            Tumbling("1 h", processing_time=True)).top_n(1, by="n")),
        ((True, True), lambda a, b: hourly(joined(a, b).key_by("id").apply(lambda df: df), on="at")),
        ((True, True), lambda a, b: expiring(joined(a, b), Looking())),
        ((True, False), lambda a, b: hourly(joined(a, b), on="at")),
        ((True, False), lambda a, b: hourly(joined(a, b).select_expr("ID", "at AS t"), on="t")),
        ((False, True), lambda a, b: hourly(joined(a, b), on="time")),
        ((False, False), lambda a, b: hourly(joined(a, b), on="at")),
    ],
)  # fmt: skip
def test_what_is_not_behind_the_watermark_may_be_behind_a_join(
    tmp_path: Path,
    engine: SparkEngine,
    timed: tuple[bool, bool],
    program: Callable[[DataStream, DataStream], DataStream],
) -> None:
    assert schema_of(program(*streams(tmp_path, timed=timed)), engine) is not None


@pytest.mark.parametrize("timed", [(True, False), (False, True)])
def test_the_times_of_a_stream_without_watermarks_may_be_old(
    tmp_path: Path, engine: SparkEngine, timed: tuple[bool, bool]
) -> None:
    old = "at" if timed[1] else "time"
    with pytest.raises(FiresteelError, match=f"from the column '{old}', and would drop rows"):
        schema_of(hourly(joined(*streams(tmp_path, timed=timed)), on=old), engine)
