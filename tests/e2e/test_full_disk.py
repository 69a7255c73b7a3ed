"""A cluster whose folder, with logs, job store and temporary files, is on a full disk."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from firesteel import Environment
from firesteel.client.cluster import LocalCluster
from firesteel.common.config import Configuration
from firesteel.common.states import ExecutionState, JobStatus
from tests.e2e.conftest import WARM_S, Session, eventually, firesteel
from tests.e2e.jobs import unbounded
from tests.small_disk import fill, small_disk


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    with small_disk(tmp_path / "small", "64m") as folder:
        yield folder


def talking(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        print("a line that may be lost", flush=True)
        yield batch.slice(0, 0)


def test_a_job_is_cancelled_and_its_slot_is_free_again(disk: Path) -> None:
    conf = Configuration.load(overrides={"metrics.reporter.prom.port": "0"})
    with LocalCluster(conf, task_executors=1, slots=1, directory=disk) as cluster:
        cluster.wait_for_slots(timeout_s=WARM_S)
        session = Session(cluster)
        env = Environment()
        unbounded(env).map_in_arrow(talking).print()
        job_id = session.submit(env)
        session.wait_until(job_id, lambda d: set(d.states) == {ExecutionState.RUNNING})
        ballast = fill(disk)
        # What others remove meanwhile is filled up, too.
        eventually(lambda: fill(disk) and shutil.disk_usage(disk).free == 0, "a full disk")
        told = firesteel("cancel", "-m", session.address, job_id)
        assert "job store cannot be written" in told.stderr
        assert f"job {job_id} is being cancelled" in told.stderr
        eventually(lambda: session.free_slots() == 1, "its task has ended")
        assert session.client.job_details(job_id).status is JobStatus.CANCELLING
        ballast.unlink()
        eventually(
            lambda: session.client.job_details(job_id).status is JobStatus.CANCELED, "stored"
        )
        bounded = Environment()
        bounded.from_sequence(0, 10).map_in_arrow(talking).print()
        assert session.run(bounded).status is JobStatus.FINISHED
        [log_path] = disk.glob("worker-*/log/slot-0.log")
        assert "the log could not be written; lines are missing" in log_path.read_text()
