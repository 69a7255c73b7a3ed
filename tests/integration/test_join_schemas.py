"""What is found of joins before data flows."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from firesteel import DataStream, Environment, Tumbling, Watermarks
from firesteel.connectors import CollectSink, FileSource
from firesteel.errors import FiresteelError
from taskexecutor.executor.analysis.analyze import analyze
from taskexecutor.executor.spark.jvm.engine import SparkEngine


def streams(tmp_path: Path) -> tuple[DataStream, DataStream]:
    (tmp_path / "rows.json").write_text('{"id": 1}\n')
    env = Environment(parallelism=2)
    return tuple(  # type: ignore[return-value]
        env.from_source(
            FileSource(f"{tmp_path}/*.json", format="json", schema=schema),
            watermarks=Watermarks.bounded(time),
        )
        for schema, time in (
            ("n INT, id LONG, at TIMESTAMP, word STRING", "at"),
            ("ID LONG, time TIMESTAMP, text STRING, place INT", "time"),
        )
    )


def schema_of(stream: DataStream, engine: SparkEngine) -> Any:
    sink = stream.sink_to(CollectSink())
    found = analyze(sink._program.job_graph("rows"), engine)
    return next(one.schema for one in reversed(found) if one.schema is not None)


def test_columns_of_joins(tmp_path: Path, engine: SparkEngine) -> None:
    one, other = streams(tmp_path)
    names = ["id", "n", "at", "word", "time", "text", "place"]
    assert schema_of(one.join(other, "id"), engine).names == names
    assert schema_of(one.join(other, "id", "full"), engine).names == [*names, "row_kind"]
    latest = other.drop_duplicates("id", keep="last")
    assert schema_of(one.join(latest, "id"), engine).names == [*names, "row_kind"]
    near = one.interval_join(other, "id", between=("0 s", "1 s"))
    # The time of its rows is the later one: a window behind it needs no name of a column.
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
            "Pairs: the result would have two columns 'WORD'; rename or drop that of one stream",
        ),
        (
            lambda a, b: a.join(b, "id", "left").drop_duplicates("id"),
            'because a row without a match goes when it gets one; use how="inner" there, or a join',
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
            "a stream that is joined has a column 'row_kind', and its rows are no changes",
        ),
        (
            lambda a, b: b.join(a.drop_duplicates("id", keep="last"), "id").select("id"),
            "it drops the column row_kind",
        ),
        (
            lambda a, b: a.as_of_join(b.drop_duplicates("id", keep="last", name="Last"), "id"),
            "take their places; join the rows before it: as_of_join finds the latest of them itself",
        ),
        (
            lambda a, b: a.as_of_join(b.with_column_renamed("place", "row_kind"), "id"),
            "the column 'row_kind' of versions says which of them are deletions, as a text, and is",
        ),
        (
            lambda a, b: a.with_column_renamed("word", "row_kind").as_of_join(b, "id"),
            "a stream that is joined has a column 'row_kind', and its rows are no changes",
        ),
        (
            lambda a, b: a.window_join(b, "id", Tumbling("1 h"), times=("at", "text")),
            "column 'text' is string, and event time must be a timestamp",
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
