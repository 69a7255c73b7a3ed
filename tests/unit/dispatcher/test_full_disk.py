"""Real processes whose folder is on a full disk: a job can be cancelled nevertheless."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import psutil
import pytest

from firesteel.client.client import Client
from firesteel.client.cluster.supervisor import reserved_port
from firesteel.common.process import Child, spawn
from firesteel.common.states import JobStatus
from firesteel.errors import FiresteelError
from jobmaster.testing import job, vertex
from tests.small_disk import fill, small_disk

PATIENCE_S = 60.0


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    with small_disk(tmp_path / "small", "2m") as folder:
        yield folder


async def start(disk: Path, *options: str) -> Child:
    return await spawn(
        [
            *(sys.executable, "-m", "dispatcher", "--resource-manager", "127.0.0.1:9"),
            *("--dir", str(disk), "-Dmetrics.reporter.prom.port=0", *options),
        ],
        log_path=disk / "dispatcher.log",
    )


@pytest.fixture
def port() -> Iterator[str]:
    """Nobody else gets it, also while the Dispatcher is restarted."""
    reserved, number = reserved_port("127.0.0.1")
    with reserved:
        yield str(number)


@pytest.fixture
async def dispatcher(disk: Path, port: str) -> AsyncIterator[Child]:
    child = await start(disk, "--port", port)
    yield child
    await child.stop()
    for process in psutil.process_iter():  # its JobMasters: they would outlive it
        with contextlib.suppress(psutil.Error):
            if child.ready["address"] in process.cmdline():
                process.kill()
                process.wait()


def eventually(condition: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, f"after {PATIENCE_S:g} s still not: {what}"
        time.sleep(0.02)


def submit(client: Client) -> str:
    """A job that waits for slots, for there is no ResourceManager."""
    job_id = client.submit(job(vertex("source", 1)))
    eventually(lambda: "slot" in client.job_details(job_id).waiting_for, "it has its JobMaster")
    return job_id


async def test_a_job_is_cancelled_and_its_end_is_stored_later(
    disk: Path, dispatcher: Child
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
            client.submit(job(vertex("source", 1)))
        assert dispatcher.returncode is None
        ballast.unlink()
        eventually(lambda: client.job_details(job_id).status is JobStatus.CANCELED, "stored")


async def test_a_dispatcher_starts_on_a_full_disk_and_cancels(
    disk: Path, dispatcher: Child, port: str
) -> None:
    with Client(dispatcher.ready["address"]) as client:
        job_id = submit(client)
        ballast = fill(disk)
        dispatcher.kill()
        await dispatcher.wait()
        restarted = await start(disk, "--port", port)
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
        await restarted.stop()
