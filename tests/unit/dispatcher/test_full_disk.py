"""Real processes whose folder is on a full disk: a job can be cancelled nevertheless."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from firesteel.client.client import Client
from firesteel.common.process import BlockingChild
from firesteel.common.states import JobStatus
from firesteel.errors import FiresteelError
from tests.dispatcher_process import DispatcherProcesses, a_job, dispatcher_processes, submit
from tests.small_disk import fill, small_disk
from tests.waiting import eventually


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    with small_disk(tmp_path / "small", "2m") as folder:
        yield folder


@pytest.fixture
def dispatchers(disk: Path) -> Iterator[DispatcherProcesses]:
    with dispatcher_processes(disk) as dispatchers:
        yield dispatchers


@pytest.fixture
def dispatcher(dispatchers: DispatcherProcesses) -> Iterator[BlockingChild]:
    child = dispatchers.start()
    yield child
    child.stop()


def test_a_job_is_cancelled_and_its_end_is_stored_later(
    disk: Path, dispatcher: BlockingChild
) -> None:
    with Client(dispatcher.ready["address"]) as client:
        job_id = submit(client)
        ballast = fill(disk)
        with pytest.raises(FiresteelError, match=r"cannot be written .* is being cancelled"):
            client.cancel(job_id)
        eventually(
            lambda: "cannot be written" in client.job_details(job_id).waiting_for,
            "the end of the job waits for the store",
        )
        assert client.job_details(job_id).status is JobStatus.CANCELLING
        with pytest.raises(FiresteelError, match="job store cannot be written"):
            client.submit(a_job(1))
        assert dispatcher.process.poll() is None
        ballast.unlink()
        eventually(lambda: client.job_details(job_id).status is JobStatus.CANCELED, "stored")


def test_a_dispatcher_starts_on_a_full_disk_and_cancels(
    disk: Path, dispatchers: DispatcherProcesses, dispatcher: BlockingChild
) -> None:
    with Client(dispatcher.ready["address"]) as client:
        job_id = submit(client)
        ballast = fill(disk)
        dispatcher.process.kill()
        dispatcher.process.wait()
        restarted = dispatchers.start()
        eventually(
            lambda: "slot" in client.job_details(job_id).waiting_for, "its JobMaster is back"
        )
        with pytest.raises(FiresteelError, match=r"cannot be written .* is being cancelled"):
            client.cancel(job_id)
        eventually(
            lambda: client.job_details(job_id).status is JobStatus.CANCELLING,
            "its JobMaster has cancelled it",
        )
        ballast.unlink()
        eventually(lambda: client.job_details(job_id).status is JobStatus.CANCELED, "stored")
        restarted.stop()
