"""transform_with_state end to end: several subtasks, timers, initial state, and the errors that
users see.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest
from pyspark.sql import Row
from pyspark.sql.streaming import StatefulProcessor

from firesteel import Environment, Watermarks
from firesteel.connectors import FileSource, SequenceSource
from firesteel.datastream import KeyedStream
from firesteel.errors import JobFailed

from .conftest import Session
from .test_streams import collected


class Numbered(StatefulProcessor):
    """Numbers each key's rows, across batches, from what the initial state says on."""

    def init(self, handle: Any) -> None:
        self.count = handle.getValueState("count", "n BIGINT")

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:
        (n,) = self.count.get() or (0,)
        for row in rows:
            n += 1
            yield Row(key=key[0], value=row.value, number=n)
        self.count.update((n,))

    def handleInitialState(self, key: Any, initialState: Any, timerValues: Any) -> None:
        self.count.update((initialState.value,))


def numbers(env: Environment, start: int, end: int) -> KeyedStream:
    return (
        env.from_sequence(start, end)
        .transform(lambda df: df.selectExpr("value % 97 AS key", "value"))
        .key_by("key")
    )


def test_every_row_meets_the_state_of_its_key(session: Session) -> None:
    env = Environment(parallelism=2)
    stream = numbers(env, 0, 30_000).transform_with_state(
        Numbered(), "key BIGINT, value BIGINT, number BIGINT", uid="numbered"
    )
    rows = collected(session, stream).to_pandas()
    assert sorted(rows["value"]) == list(range(30_000))
    counts = Counter(n % 97 for n in range(30_000))
    for key, part in rows.groupby("key"):
        assert sorted(part["number"]) == list(range(1, counts[key] + 1))


def test_initial_state_is_read_first_and_once(session: Session, tmp_path: Path) -> None:
    """This holds across a failure after a checkpoint that is taken once the state is read."""
    checkpoints, failed = tmp_path / "checkpoints", tmp_path / "failed"
    env = Environment(
        parallelism=2,
        configuration={
            "execution.checkpointing.interval": "200 ms",
            "execution.checkpointing.dir": str(checkpoints),
            "restart-strategy.type": "fixed-delay",
            "restart-strategy.fixed-delay.delay": "0 s",
        },
    )

    def fail_once(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            if not failed.exists() and any(checkpoints.rglob("_metadata")):
                failed.touch()
                raise RuntimeError("fails once")
            yield batch

    rows_of_keys = (
        env.from_source(SequenceSource(0, 9_700, rate_per_s=1_500))
        .transform(lambda df: df.selectExpr("value % 97 AS key", "value"))
        .map_in_arrow(fail_once)
        .key_by("key")
    )
    initial = (
        env.from_sequence(0, 97)
        .transform(lambda df: df.selectExpr("value AS key", "value * 1000 AS value"))
        .key_by("key")
    )
    stream = rows_of_keys.transform_with_state(
        Numbered(), "key BIGINT, value BIGINT, number BIGINT", initial_state=initial
    )
    rows = collected(session, stream).to_pandas()
    assert failed.exists()
    for key, part in rows.groupby("key"):
        assert sorted(part["number"]) == list(range(key * 1000 + 1, key * 1000 + 101))


class DailyTotals(StatefulProcessor):
    """In pandas: sums up a key's day, and says so when the day is over."""

    def init(self, handle: Any) -> None:
        self.handle = handle
        self.totals = handle.getMapState("totals", "day_end_ms BIGINT", "total BIGINT")

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[pd.DataFrame]:
        for frame in rows:
            ends = (
                (frame["at"].dt.floor("1D") + pd.Timedelta("1D"))
                .astype("datetime64[ms]")
                .astype("int64")
            )
            for end_ms, total in frame.groupby(ends)["n"].sum().items():
                (before,) = self.totals.getValue((end_ms,)) or (0,)
                self.totals.updateValue((end_ms,), (before + total,))
                self.handle.registerTimer(int(end_ms))
        return iter(())

    def handleExpiredTimer(
        self, key: Any, timerValues: Any, expiredTimerInfo: Any
    ) -> Iterator[pd.DataFrame]:
        end_ms = expiredTimerInfo.getExpiryTimeInMs()
        (total,) = self.totals.getValue((end_ms,))
        self.totals.removeKey((end_ms,))
        yield pd.DataFrame(
            {"key": [key[0]], "day_end": [pd.Timestamp(end_ms, unit="ms")], "total": [total]}
        )


def test_event_time_timers_over_pandas(session: Session, tmp_path: Path) -> None:
    at = pd.date_range("2024-03-01", periods=400, freq="47min", tz="UTC")
    frame = pd.DataFrame(
        {"at": at, "key": [f"k{i % 5}" for i in range(400)], "n": [i % 13 for i in range(400)]}
    )
    for part in range(4):
        frame.iloc[part * 100 : (part + 1) * 100].to_parquet(
            tmp_path / f"{part}.parquet", coerce_timestamps="us"
        )
    env = Environment(parallelism=2)
    stream = (
        env.from_source(
            FileSource(f"{tmp_path}/*.parquet", format="parquet"),
            watermarks=Watermarks.bounded("at", max_out_of_orderness="20 days"),
        )
        .key_by("key")
        .transform_with_state_in_pandas(
            DailyTotals(), "key STRING, day_end TIMESTAMP, total BIGINT", time_mode="event_time"
        )
    )
    ours = collected(session, stream).to_pandas().sort_values(["key", "day_end"], ignore_index=True)
    day_end = (frame["at"].dt.floor("1D") + pd.Timedelta("1D")).rename("day_end")
    expected = frame.groupby(["key", day_end])["n"].sum().rename("total").reset_index()
    pd.testing.assert_frame_equal(ours, expected, check_dtype=False)


class Sizes(StatefulProcessor):
    def init(self, handle: Any) -> None:
        self.last = handle.getValueState("last", "payload BINARY")

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:
        for row in rows:
            self.last.update((row.payload,))
            yield Row(key=key[0], size=len(row.payload))


def test_a_row_of_200_mb_reaches_its_key(session: Session) -> None:
    """The row passes from a Python function through the exchange into a state."""

    def payloads(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            payload = [
                bytes(200 << 20) if n == 50 else b"small" for n in batch["value"].to_pylist()
            ]
            yield pa.RecordBatch.from_pydict({"key": batch["value"], "payload": payload})

    env = Environment(parallelism=2)
    stream = (
        env.from_sequence(0, 100).map_in_arrow(payloads, "key BIGINT, payload BINARY").key_by("key")
    )
    sizes = collected(
        session, stream.transform_with_state(Sizes(), "key BIGINT, size BIGINT")
    ).to_pandas()
    assert sizes.set_index("key")["size"].to_dict() == {
        key: 200 << 20 if key == 50 else 5 for key in range(100)
    }


class Failing(StatefulProcessor):
    def __init__(self, where: str) -> None:
        self.where = where

    def init(self, handle: Any) -> None:
        self.handle = handle
        if self.where == "init":
            raise ConnectionError("no such database")

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:
        if self.where == "timer":
            self.handle.registerTimer(timerValues.getCurrentProcessingTimeInMs())
        for row in rows:
            if self.where == "handleInputRows" and row.value == 41:
                raise ZeroDivisionError("41 is not divided")
            if self.where == "schema" and row.value == 41:
                yield Row(key=key[0], value=str(row.value))
        return

    def handleExpiredTimer(
        self, key: Any, timerValues: Any, expiredTimerInfo: Any
    ) -> Iterator[Row]:
        raise KeyError("late")


@pytest.mark.parametrize(
    ("where", "message"),
    [
        ("init", r"Failing\.init failed: ConnectionError: no such database"),
        (
            "handleInputRows",
            r"handleInputRows failed for key \(41,\): ZeroDivisionError: 41 is not divided",
        ),
        ("timer", r"handleExpiredTimer failed for key \(\d+,\): KeyError: 'late'"),
        (
            "schema",
            r"handleInputRows for key \(41,\) .*expected key int64, value int64; got key int, value str",
        ),
    ],
)
def test_what_a_processor_raises_fails_the_job(session: Session, where: str, message: str) -> None:
    env = Environment(parallelism=1)
    stream = numbers(env, 0, 200).transform_with_state(
        Failing(where), "key BIGINT, value BIGINT", time_mode="processing_time"
    )
    stream.name("fails")
    with pytest.raises(JobFailed, match=message) as failed:
        collected(session, stream)
    error = failed.value.error
    assert error is not None
    if where != "schema":
        assert "test_stateful.py" in error.shown, "the user's own frames come first"
        assert "taskexecutor" not in error.shown
