"""A cluster whose folder, with logs, job store, results and temporary files, is on a full disk."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from firesteel import Environment
from firesteel.common.states import JobStatus
from firesteel.errors import JobFailed
from tests.e2e.conftest import Session, firesteel, own_cluster, running
from tests.e2e.jobs import unhurried
from tests.small_disk import fill, small_disk
from tests.waiting import eventually


@pytest.fixture(scope="module")
def disk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with small_disk(tmp_path_factory.mktemp("disk") / "small", "64m") as folder:
        yield folder


@pytest.fixture(scope="module")
def session(disk: Path) -> Iterator[Session]:
    with own_cluster(disk, taskmanager__network__blocking_shuffle__buffer__size="1 mb") as session:
        yield session


def talking(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        print("a line that may be lost", flush=True)
        yield batch.slice(0, 0)


def test_a_job_is_cancelled_and_its_slot_is_free_again(session: Session, disk: Path) -> None:
    env = Environment()
    unhurried(env).map_in_arrow(talking).print()
    job_id = session.submit(env)
    session.wait_until(job_id, running)
    ballast = fill(disk)
    # Space that other processes free in the meantime is filled as well.
    eventually(lambda: fill(disk) and shutil.disk_usage(disk).free == 0, "a full disk")
    completed = firesteel("cancel", "-m", session.address, job_id)
    assert "job store cannot be written" in completed.stderr
    assert f"job {job_id} is being cancelled" in completed.stderr
    eventually(lambda: session.free_slots() == 1, "its task has ended")
    assert session.client.job_details(job_id).status is JobStatus.CANCELLING
    ballast.unlink()
    eventually(lambda: session.client.job_details(job_id).status is JobStatus.CANCELED, "stored")
    bounded = Environment()
    bounded.from_sequence(0, 10).map_in_arrow(talking).print()
    assert session.run(bounded).status is JobStatus.FINISHED
    [log_path] = disk.glob("worker-*/log/slot-0.log")
    assert "the log could not be written; lines are missing" in log_path.read_text()


def test_a_result_that_does_not_fit_names_itself_and_leaves_its_space(
    session: Session, disk: Path
) -> None:
    def larger(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            texts = [str(value).zfill(10_000) for value in batch["value"].to_pylist()]
            yield pa.record_batch({"text": texts})

    before = shutil.disk_usage(disk).used
    env = Environment(mode="batch")
    env.from_sequence(0, 20_000).map_in_arrow(larger, "text string").rebalance().map_in_arrow(
        talking
    ).print()
    problem = (
        r"the partition .* of result \w+.* cannot be written to "
        rf"{re.escape(str(disk))}/\S+: No space left on device \([\d.]+ \w+ free there\)"
    )
    with pytest.raises(JobFailed, match=problem):
        session.client.wait(session.submit(env))
    eventually(lambda: shutil.disk_usage(disk).used < before + 2**20, "its space is free again")
