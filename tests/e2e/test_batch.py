"""Batch jobs: whole results between their tasks, and a failure repeats only what has failed."""

from __future__ import annotations

import os
import signal
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pytest
from pyspark.sql import Row
from pyspark.sql import functions as F
from pyspark.sql.streaming import StatefulProcessor, StatefulProcessorHandle

from firesteel import Environment, Tumbling, Watermarks
from firesteel.client.job_details import Attempt, Subtask
from firesteel.common.states import ExecutionState
from firesteel.connectors import FileSink

from .conftest import Session
from .test_streams import collected

ROWS = 20_000


def test_a_killed_process_costs_a_batch_only_what_ran_in_it(
    session: Session, tmp_path: Path
) -> None:
    killed = tmp_path / "killed"

    def dies_once(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            try:
                killed.touch(exist_ok=False)
            except FileExistsError:
                yield batch
            else:
                os.kill(os.getpid(), signal.SIGKILL)

    env = Environment(
        mode="batch",
        parallelism=2,
        configuration={
            "restart-strategy.type": "fixed-delay",
            "restart-strategy.fixed-delay.attempts": "1",
            "restart-strategy.fixed-delay.delay": "0 s",
        },
    )
    (
        env.from_sequence(0, ROWS, column="n")
        .transform(lambda df: df.selectExpr("n", "n % 7 AS k"))
        .rebalance()
        .map_in_arrow(dies_once)
        .key_by("k")
        .sink_to(FileSink(str(tmp_path / "rows")))
    )
    details = session.run(env, "batch")
    assert "SIGKILL" in details.exceptions[0].summary
    attempts = [
        sorted(subtask.current.number for subtask in vertex.subtasks if subtask.current)
        for vertex in details.vertices
    ]
    assert attempts == [[0, 0], [0, 1], [0, 0]], "what was complete is read again"
    rows = ds.dataset(tmp_path / "rows", format="parquet").to_table()
    assert sorted(rows["n"].to_pylist()) == list(range(ROWS))


@pytest.mark.parametrize("mode", ["batch", "streaming"])
def test_streams_that_end_are_joined_and_sorted_as_wholes(
    session: Session, tmp_path: Path, mode: str
) -> None:
    env = Environment(mode=mode, parallelism=2)  # type: ignore[arg-type]
    visits = env.from_sequence(0, ROWS, column="n").transform(
        lambda df: df.selectExpr("n", "n % 10 AS k")
    )
    places = env.from_sequence(0, 12, column="id").transform(
        lambda df: df.selectExpr("id", "concat('place ', id) AS place")
    )
    (
        visits.connect(places)
        .key_by("k", "id")
        .apply(lambda left, right: left.join(right, left.k == right.id, "right"))
        .apply(
            lambda df: (
                df.groupBy("place")
                .agg(F.count("n").alias("visits"), F.sum("n").alias("total"))
                .orderBy(F.desc("total"), "place")
                .limit(12)
            )
        )
        .sink_to(FileSink(str(tmp_path / "places")))
    )
    session.run(env, f"places in {mode}")
    found = ds.dataset(tmp_path / "places", format="parquet").to_table()
    numbers = range(ROWS)
    totals = [(f"place {k}", len(numbers[k::10]), sum(numbers[k::10])) for k in range(10)]
    nowhere = [(f"place {k}", 0, None) for k in (10, 11)]
    wanted = [*sorted(totals, key=lambda row: (-row[2], row[0])), *nowhere]
    assert [tuple(row.values()) for row in found.to_pylist()] == wanted


def test_joins_of_a_batch_are_final(session: Session, tmp_path: Path) -> None:
    """So what counts rows may follow an outer join, and another join."""
    env = Environment(mode="batch", parallelism=2)
    visits = env.from_sequence(0, ROWS, column="n").select_expr("n", "n % 10 AS id")
    places = env.from_sequence(0, 12, column="id").select_expr("id", "id % 3 AS owner")
    owners = env.from_sequence(1, 5, column="owner").select_expr("owner", "owner AS number")
    (
        visits.join(places, on="id", how="right", ttl="1 ms")
        .join(owners, on="owner", how="full")
        .key_by("number")
        .aggregate("count(*) AS rows", "sum(n) AS total")
        .sink_to(FileSink(str(tmp_path / "rows")))
    )
    session.run(env, "joins")
    found = ds.dataset(tmp_path / "rows", format="parquet").to_table().to_pylist()
    counts: dict[int | None, tuple[int, int | None]] = {3: (1, None), 4: (1, None)}
    for number in (None, 1, 2):
        ids = [id_ for id_ in range(12) if id_ % 3 == (number or 0)]
        numbers = [n for n in range(ROWS) if n % 10 in ids]
        counts[number] = len(numbers) + sum(id_ > 9 for id_ in ids), sum(numbers)
    assert {row["number"]: (row["rows"], row["total"]) for row in found} == counts
    assert {row["row_kind"] for row in found} == {"insert"}


@pytest.mark.parametrize("what", ["join", "apply"])
def test_windows_after_an_operator_that_emits_at_the_end(
    session: Session, tmp_path: Path, what: str
) -> None:
    """The operator's rows come before the end of event time, also in pipelined exchanges."""
    env = Environment(
        mode="batch",
        parallelism=2,
        configuration={"execution.batch-shuffle-mode": "ALL_EXCHANGES_PIPELINED"},
    )
    left, right = (
        env.from_sequence(0, ROWS, column=time).select_expr(
            f"{time} % 10 AS k", f"timestamp_millis({time}) AS {time}"
        )
        for time in ("at", "seen")
    )
    near = left.interval_join(right, on="k", between=("0 s", "0 s"), times=("at", "seen"))
    rows = near if what == "join" else left.key_by("k").apply(lambda df: df.distinct())
    (
        rows.key_by("k")
        .window(Tumbling("1 s", on="at"))
        .aggregate("count(*) AS n")
        .sink_to(FileSink(str(tmp_path / "rows")))
    )
    session.run(env, f"windows behind {what}")
    found = ds.dataset(tmp_path / "rows", format="parquet").to_table().to_pylist()
    assert [row["n"] for row in found] == [100] * (ROWS // 100)


class Visits(StatefulProcessor):
    """A visit ends five seconds after its last row: then it is there, with its number of rows."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self.handle = handle
        self.rows = handle.getValueState("rows", "n LONG")

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:
        (before,) = self.rows.get() or (0,)
        *_, last = times = [row.n for row in rows]
        self.rows.update((before + len(times),))
        for timer in self.handle.listTimers():
            self.handle.deleteTimer(timer)
        self.handle.registerTimer((last + 5) * 1000)
        yield from ()

    def handleExpiredTimer(
        self, key: Any, timerValues: Any, expiredTimerInfo: Any
    ) -> Iterator[Row]:
        (rows,) = self.rows.get()
        self.rows.clear()
        yield Row(k=key[0], rows=rows)


@pytest.mark.parametrize(
    ("mode", "visits"),
    [("streaming", [(0, 1), (0, 1), (1, 1), (1, 1)]), ("batch", [(0, 2), (1, 2)])],
)
def test_timers_of_a_batch_are_due_when_all_rows_have_come(
    session: Session, mode: str, visits: list[tuple[int, int]]
) -> None:
    """A timeout between rows of a stream does not apply in a batch; the job shows a warning."""

    def one_by_one(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield from (batch.slice(row, 1) for row in range(batch.num_rows))

    env = Environment(mode=mode, parallelism=1)
    ended = (
        env.from_sequence(0, 4, column="i")
        .select_expr("i % 2 AS k", "i * 10 AS n", "timestamp_seconds(i * 10) AS at")
        .map_in_arrow(one_by_one)
        .assign_timestamps_and_watermarks(Watermarks.bounded("at"))
        .key_by("k")
        .transform_with_state(Visits(), "k LONG, rows LONG", time_mode="event_time")
    )
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        table = collected(session, ended)
    assert sorted(zip(*table.to_pydict().values(), strict=True)) == visits
    assert ["timers in event time" in str(one.message) for one in caught] == [True] * (
        mode == "batch"
    )


def test_some_exchanges_of_a_batch_are_pipelined(session: Session, tmp_path: Path) -> None:
    env = Environment(mode="batch", parallelism=2)
    numbers = env.from_sequence(0, ROWS, column="n").transform(
        lambda df: df.selectExpr("n", "n % 7 AS k")
    )
    (
        numbers.exchange("pipelined")
        .key_by("k")
        .aggregate("count(*) AS c")
        .rebalance()
        .map_in_arrow(lambda batches: batches)
        .sink_to(FileSink(str(tmp_path / "rows")))
    )
    details = session.run(env, "mixed")
    source, counting, passing = (vertex.subtasks for vertex in details.vertices)
    assert started(counting) < ended(source), "they run at the same time"
    assert started(passing) >= ended(counting), "this exchange is blocking"
    found = ds.dataset(tmp_path / "rows", format="parquet").to_table().to_pylist()
    assert sorted((row["k"], row["c"]) for row in found) == [
        (k, len(range(k, ROWS, 7))) for k in range(7)
    ]


def started(subtasks: Sequence[Subtask]) -> int:
    return min(attempt.entered_ms[ExecutionState.DEPLOYING] for attempt in current(subtasks))


def ended(subtasks: Sequence[Subtask]) -> int:
    return max(attempt.entered_ms[ExecutionState.FINISHED] for attempt in current(subtasks))


def current(subtasks: Sequence[Subtask]) -> list[Attempt]:
    return [subtask.current for subtask in subtasks if subtask.current is not None]
