"""Event time of several sources: idle ones hold none back, fast ones of an alignment group wait
for slow ones.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.datasource import DataSource, SimpleDataSourceStreamReader

from firesteel import CoProcessFunction, Environment, Tumbling, Watermarks
from firesteel.connectors import FileSource, PythonSource
from firesteel.datastream import DataStream

from .conftest import Session, firesteel
from .jobs import ArrowFunction
from .test_connectors import write

SCHEMA = "at TIMESTAMP, key STRING"
HOURS = 6


class Nothing(DataSource):
    def schema(self) -> str:
        return SCHEMA

    def simpleStreamReader(self, schema: Any) -> SimpleDataSourceStreamReader:
        return NothingReader()


class NothingReader(SimpleDataSourceStreamReader):
    def initialOffset(self) -> dict[str, int]:
        return {"n": 0}

    def read(self, start: dict[str, int]) -> tuple[Iterator[Any], dict[str, int]]:
        return iter(()), start


class Both(CoProcessFunction):
    """Says a key again when event time, on both sides, has come an hour further."""

    def process_element1(self, row: Any, ctx: Any) -> Any:
        ctx.timer_service().register_event_time_timer(int(row.at.timestamp() * 1000) + 3_600_000)

    process_element2 = process_element1

    def on_timer(self, timestamp_ms: int, ctx: Any) -> Iterator[tuple[Any, ...]]:
        yield (ctx.get_current_key(),)


def together(how: str, first: DataStream, second: DataStream, third: DataStream) -> DataStream:
    if how == "union":
        window = first.union(second, third).key_by("key").window(Tumbling("1 hour"))
        return window.aggregate("count(*) AS n").transform(lambda df: df.select("key"))
    return first.union(third).connect(second).key_by("key", "key").co_process(Both(), "key STRING")


@pytest.mark.parametrize(("how", "aligned"), [("union", True), ("connect", False)])
def test_empty_sources_hold_back_neither_event_time_nor_their_group(
    session: Session,
    in_session: None,
    tmp_path: Path,
    how: str,
    aligned: bool,
) -> None:
    """An empty directory that is watched is idle by itself, another source after a while."""
    full, empty = tmp_path / "full", tmp_path / "empty"
    for directory in (full, empty):
        directory.mkdir()
    for hour in range(4):
        write(
            full,
            f"{hour}.csv",
            f"2024-03-01 0{hour}:00:00,{hour}\n2024-03-01 0{hour}:30:00,{hour}\n",
        )
    watermarks = Watermarks.bounded("at")
    if aligned:
        watermarks = watermarks.with_alignment("g", max_drift="1 min", update_interval="50 ms")
    env = Environment(parallelism=1)

    def watched(directory: Path) -> DataStream:
        return env.from_source(
            FileSource(str(directory), format="csv", schema=SCHEMA, watch="50 ms"),
            watermarks=watermarks,
            uid=directory.name,
        )

    nothing = env.from_source(
        PythonSource(Nothing), watermarks=watermarks.with_idleness("100 ms"), uid="nothing"
    )
    keys: list[str] = []
    with together(how, watched(full), watched(empty), nothing).execute_and_collect(
        iterate="arrow"
    ) as batches:
        while len(set(keys)) < 3:
            keys += next(batches)["key"].to_pylist()
    assert sorted(set(keys)) == ["0", "1", "2"], "the last hour is not over"


def tell(pipe: str) -> None:
    with open(pipe, "wb", buffering=0) as out:
        out.write(b".")


def hear(pipe: str, times: int) -> None:
    with open(pipe, "rb", buffering=0) as into:
        for _ in range(times):
            assert into.read(1), "the test is over"


class Slow(DataSource):
    """An hour's row each time the fast source has come to that hour, and only after a source in no
    group has come to the last.
    """

    def schema(self) -> str:
        return SCHEMA

    def simpleStreamReader(self, schema: Any) -> SimpleDataSourceStreamReader:
        return SlowReader(self.options["fast"], self.options["free"])


class SlowReader(SimpleDataSourceStreamReader):
    def __init__(self, fast: str, free: str) -> None:
        self.fast, self.free = fast, free

    def initialOffset(self) -> dict[str, int]:
        return {"hour": 0}

    def read(self, start: dict[str, int]) -> tuple[Iterator[Any], dict[str, int]]:
        hour = start["hour"]
        hear(self.free, 0 if hour else HOURS)
        hear(self.fast, 1)
        return iter([(datetime(2024, 3, 1, hour, 30, tzinfo=UTC), f"slow {hour}")]), {
            "hour": hour + 1
        }

    def isFinished(self, end: dict[str, int]) -> bool:
        return end["hour"] == HOURS


def stamped(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """When it came: the clock is the same in all processes of the machine."""
    for batch in batches:
        yield batch.append_column("came_ns", pa.array([time.monotonic_ns()] * batch.num_rows))


def test_a_fast_source_leads_a_slow_one_by_at_most_the_drift_and_a_split(
    session: Session,
    in_session: None,
    tmp_path: Path,
) -> None:
    files = tmp_path / "files"
    files.mkdir()
    for hour in range(HOURS):
        write(
            files,
            f"{hour}.csv",
            "".join(f"2024-03-01 0{hour}:{minute}:00,fast {hour}\n" for minute in (10, 30, 59)),
        )
    pipes = {name: str(tmp_path / name) for name in ("fast", "free")}
    for path in pipes.values():
        os.mkfifo(path)
    opened = [
        os.open(path, os.O_RDWR) for path in pipes.values()
    ]  # so that neither side waits for the other to open it

    def telling(pipe: str) -> ArrowFunction:
        def stamp_and_tell(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            for batch in stamped(batches):
                tell(pipe)
                yield batch

        return stamp_and_tell

    env = Environment(parallelism=1)
    watermarks = Watermarks.bounded("at").with_alignment(
        "hours", max_drift="1 hour", update_interval="10 s"
    )
    source, with_time = (
        FileSource(str(files), format="csv", schema=SCHEMA),
        f"{SCHEMA}, came_ns LONG",
    )
    fast = env.from_source(source, watermarks=watermarks, uid="fast")
    slow = env.from_source(PythonSource(Slow, pipes), watermarks=watermarks, uid="slow")
    free = env.from_source(source, watermarks=Watermarks.bounded("at"), uid="free")
    free.map_in_arrow(telling(pipes["free"]), with_time).print("free: ")
    both = fast.map_in_arrow(telling(pipes["fast"]), with_time).union(
        slow.map_in_arrow(stamped, with_time)
    )
    try:
        with both.execute_and_collect(iterate="arrow") as batches:
            rows = [row for batch in batches for row in batch.to_pylist()]
            details = session.client.job_details(batches.job_id)
    finally:
        for pipe in opened:
            os.close(pipe)
    came_ns = {
        key: [row["came_ns"] for row in rows if row["key"] == key]
        for key in {row["key"] for row in rows}
    }
    assert {key: len(times) for key, times in came_ns.items()} == {
        **{f"fast {hour}": 3 for hour in range(HOURS)},
        **{f"slow {hour}": 1 for hour in range(HOURS)},
    }
    # A file is read when the one before, which ends a minute before its hour, is at most an hour
    # ahead of the slow source.
    for hour in range(1, HOURS):
        assert min(came_ns[f"fast {hour}"]) > came_ns[f"slow {hour - 1}"][0]
    by_name = {vertex.name: vertex.metrics for vertex in details.vertices}
    (fast_metrics,) = [metrics for name, metrics in by_name.items() if "fast" in name]
    assert fast_metrics.aligning_ms > 0


_BACKWARDS = """
from firesteel import Environment, Tumbling, Watermarks


def one_by_one(batches):
    for batch in batches:
        for place in reversed(range(batch.num_rows)):
            yield batch.slice(place, 1)


env = Environment(parallelism=1)
times = env.from_sequence(0, 100).select_expr("timestamp_seconds(value) AS at")
times = times.map_in_arrow(one_by_one, "at TIMESTAMP")
timed = times.assign_timestamps_and_watermarks(Watermarks.bounded("at"))
counts = timed.window_all(Tumbling("10 s")).aggregate("count(*) AS n")
print("counted", %s)
"""


@pytest.mark.parametrize(
    "counted",
    [
        'sum(counts.execute_and_collect()["n"].to_pylist())',
        'sum(sum(b["n"].to_pylist()) for b in counts.execute_and_collect(iterate="arrow"))',
    ],
    ids=["table", "batches"],
)
def test_a_program_learns_how_many_records_were_late(
    session: Session, tmp_path: Path, counted: str
) -> None:
    job = tmp_path / "job.py"
    job.write_text(_BACKWARDS % counted)
    done = firesteel("run", "-m", session.address, str(job))
    assert done.returncode == 0, done.stdout + done.stderr
    found = re.search(r"counted (\d+)", done.stdout)
    late = re.search(r"has dropped (\d+) late records", done.stderr)
    assert found and late, done.stdout + done.stderr
    assert int(found[1]) + int(late[1]) == 100
