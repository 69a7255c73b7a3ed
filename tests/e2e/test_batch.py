"""Batch jobs: whole results between their tasks, and a failure repeats only what has failed."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.dataset as ds
import pytest
from pyspark.sql import functions as F

from firesteel import Environment
from firesteel.client.job_details import Attempt, Subtask
from firesteel.common.states import ExecutionState
from firesteel.connectors import FileSink

from .conftest import Session

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
