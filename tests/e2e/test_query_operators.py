"""Spark's watermarks, output modes and sessions on a cluster: several subtasks, folders that are
watched.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from firesteel import DataStream, Environment
from firesteel.connectors import FileSource
from firesteel.operators import (
    DropDuplicatesSpec,
    EventTimeWatermarkSpec,
    PartialWindowAggregateSpec,
    RunningAggregateSpec,
    SessionAggregateSpec,
)
from firesteel.plan.aggregates.parse import parse_aggregates

from .conftest import Session
from .test_connectors import write

COUNT = parse_aggregates(["count(*) AS n"])


def environment(folder: Path, interval: str = "200 ms") -> Environment:
    checkpointing = {
        "execution.checkpointing.interval": interval,
        "execution.checkpointing.dir": str(folder / "checkpoints"),
    }
    return Environment(parallelism=2, configuration=checkpointing)


def watched(env: Environment, folder: Path) -> DataStream:
    folder.mkdir()
    source = FileSource(str(folder), format="csv", schema="at TIMESTAMP, key STRING", watch="50 ms")
    return env.from_source(source).operator("Watermark", EventTimeWatermarkSpec(column="at"))


def lines(*rows: str) -> str:
    return "".join(f"2024-03-01 {row}\n" for row in rows)


def hourly(stream: DataStream) -> DataStream:
    """Returns the rows of each key and hour, counted once the hour is over."""
    keys = ("end", "key")
    return (
        stream.transform(
            lambda df: df.selectExpr("date_trunc('HOUR', at) + INTERVAL 1 HOUR AS end", "key")
        )
        .key_by(*keys)
        ._add_in_two_halves(
            "Count",
            PartialWindowAggregateSpec(
                key_columns=keys, window=None, time_column="", aggregates=COUNT
            ),
            RunningAggregateSpec(key_columns=keys, aggregates=COUNT, mode="append", expires="end"),
            uid="",
        )
    )


def take(batches: Iterator[pa.RecordBatch], count: int) -> list[tuple[Any, ...]]:
    """Returns the next `count` rows. Fails if a batch has more."""
    rows: list[tuple[Any, ...]] = []
    while len(rows) < count:
        rows += [
            tuple(f"{v:%H:%M}" if hasattr(v, "hour") else v for v in row.values())
            for row in next(batches).to_pylist()
        ]
    assert len(rows) == count
    return sorted(rows)


@pytest.mark.parametrize("interval", ["200 ms", "0 s"])
def test_windows_are_complete_by_the_watermark_of_all_subtasks(
    session: Session, in_session: None, tmp_path: Path, interval: str
) -> None:
    """Event time advances with checkpoints, or without them at any time."""
    env = environment(tmp_path, interval)
    folder = tmp_path / "rows"
    counts = hourly(watched(env, folder))
    with counts.execute_and_collect(iterate="arrow") as batches:
        letters = "abcdefgh"
        write(folder, "0.csv", lines(*(f"00:10:00,{key}" for key in letters), "00:20:00,a"))
        write(folder, "1.csv", lines("02:00:00,a"))
        expected = [("01:00", key, 2 if key == "a" else 1) for key in letters]
        assert take(batches, 8) == expected, "whichever subtask has read the last row"
        write(folder, "2.csv", lines("00:30:00,late", "01:59:00,late", "02:30:00,a", "04:00:00,b"))
        assert take(batches, 1) == [("03:00", "a", 2)]


def test_the_slower_of_two_watermarks_decides(
    session: Session, in_session: None, tmp_path: Path
) -> None:
    env = environment(tmp_path)
    fast, slow = tmp_path / "fast", tmp_path / "slow"
    counts = hourly(watched(env, fast).rebalance().union(watched(env, slow).rebalance()))
    with counts.execute_and_collect(iterate="arrow") as batches:
        write(fast, "0.csv", lines("00:10:00,a", "01:10:00,a", "05:00:00,a"))
        write(slow, "0.csv", lines("00:20:00,a", "01:00:00,a"))
        assert take(batches, 1) == [("01:00", "a", 2)]
        write(slow, "1.csv", lines("01:30:00,a", "03:30:00,a"))
        assert take(batches, 1) == [("02:00", "a", 3)]


def test_sessions_without_duplicates(session: Session, in_session: None, tmp_path: Path) -> None:
    env = environment(tmp_path)
    folder = tmp_path / "rows"
    keys = ("start", "end", "key")
    counts = (
        watched(env, folder)
        .key_by("key", "at")
        ._add(
            "Drop duplicates",
            DropDuplicatesSpec(key_columns=("key", "at"), late_column="at", expires_after_us=0),
        )
        .transform(
            lambda df: df.selectExpr("at AS start", "at + INTERVAL 10 MINUTES AS end", "key")
        )
        .key_by("key")
        ._add_in_two_halves(
            "Sessions",
            PartialWindowAggregateSpec(
                key_columns=keys, window=None, time_column="", aggregates=COUNT
            ),
            SessionAggregateSpec(key_columns=keys, start="start", end="end", aggregates=COUNT),
            uid="",
        )
    )
    with counts.execute_and_collect(iterate="arrow") as batches:
        write(folder, "0.csv", lines("00:10:00,a", "00:20:00,a", "00:25:00,b", "00:20:00,a"))
        write(folder, "1.csv", lines("00:40:00,a", "00:30:00,a", "00:49:00,c"))
        assert take(batches, 1) == [("00:25", "00:35", "b", 1)]
        write(folder, "2.csv", lines("01:00:00,a"))
        assert take(batches, 2) == [("00:10", "00:50", "a", 4), ("00:49", "00:59", "c", 1)]
