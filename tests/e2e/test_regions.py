"""A failure restarts the pipeline in which it happens, and no other of the job."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.dataset as ds
import pytest

from firesteel import Environment
from firesteel.client.job_details import JobDetails
from firesteel.connectors import FileSink, SequenceSource
from firesteel.errors import JobFailed

from .conftest import Session
from .jobs import endless

ROWS = 12_000
PER_S = 4_000


def attempts_by_pipeline(details: JobDetails) -> dict[str, set[int]]:
    found: dict[str, set[int]] = {}
    for vertex in details.vertices:
        for subtask in vertex.subtasks:
            assert subtask.current is not None
            found.setdefault(vertex.slot_sharing_group, set()).add(subtask.current.number)
    return found


def test_a_killed_process_restarts_its_pipeline_from_the_checkpoint_and_no_other(
    session: Session, tmp_path: Path
) -> None:
    killed = tmp_path / "killed"

    def dies_once(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            if not killed.exists() and any((tmp_path / "dies").glob("part-*")):  # a checkpoint
                killed.touch()
                os.kill(os.getpid(), signal.SIGKILL)
            yield batch

    def goes_on(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from batches

    env = Environment(
        parallelism=1,
        configuration={
            "execution.checkpointing.interval": "200 ms",
            "execution.checkpointing.dir": str(tmp_path / "checkpoints"),
            "restart-strategy.type": "fixed-delay",
            "restart-strategy.fixed-delay.attempts": "1",
            "restart-strategy.fixed-delay.delay": "0 s",
        },
    )
    for function in (dies_once, goes_on):
        group = function.__name__.partition("_")[0]
        (
            env.from_source(SequenceSource(0, ROWS, rate_per_s=PER_S))
            .slot_sharing_group(group)
            .rebalance()
            .map_in_arrow(function)
            .slot_sharing_group(group)
            .sink_to(FileSink(str(tmp_path / group)))
            .slot_sharing_group(group)
        )
    job_id = session.submit(env)
    details = session.client.wait(job_id)
    assert killed.exists()
    assert attempts_by_pipeline(details) == {"dies": {1}, "goes": {0}}
    assert "SIGKILL" in details.exceptions[0].summary
    for group in ("dies", "goes"):
        values = ds.dataset(tmp_path / group, format="parquet").to_table()["value"]
        assert sorted(values.to_pylist()) == list(range(ROWS)), f"{group}: every row once"


def test_individual_restarts_are_refused_where_data_is_exchanged(session: Session) -> None:
    job_id = session.submit(endless(), **{"jobmanager.execution.failover-strategy": "individual"})
    with pytest.raises(JobFailed, match=r"jobs.py, line \d+: .*individual restarts tasks without"):
        session.client.wait(job_id)
