"""The answers of the Dispatcher's shell while the core and the store change."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from dispatcher.blob_store import BlobStore
from dispatcher.convert import AppendResults
from dispatcher.core.commands import StartJob
from dispatcher.core.records import JobAdded, JobEnded, Record
from dispatcher.job_store import JobStore
from dispatcher.results import ResultStore
from dispatcher.shell import NotLeading, Shell
from firesteel._proto import job_graph_pb2
from firesteel.common.checkpoints.state import CompleteCheckpoint
from firesteel.common.config import Configuration
from firesteel.common.ids import JobId
from firesteel.common.metrics import Registry
from firesteel.common.process import StartFailed
from firesteel.common.service.platform import SYSTEM, Process
from firesteel.common.states import JobStatus

JOB = JobId("a" * 32)
SOON_S = 60.0


@pytest.fixture
def store(tmp_path: Path) -> Iterator[JobStore]:
    store = JobStore(JobStore.sqlite_url(tmp_path))
    yield store
    store.close()


class NoProcesses:
    """A machine on which no process starts."""

    pid = os.getpid()

    async def spawn(self, argv: Sequence[str], **how: object) -> Process:
        raise StartFailed("no process starts here")

    def kill(self, pid: int) -> None:
        raise AssertionError("there are no processes")


class Leads:
    """A permit that is given and taken by hand."""

    def __init__(self, answers: Iterable[bool]) -> None:
        self._answers = iter(answers)

    def acts(self) -> bool:
        return next(self._answers)

    async def acting(self) -> None:
        await asyncio.Event().wait()


def shell_on(store: JobStore, tmp_path: Path, permit: Leads | None = None) -> Shell:
    conf = Configuration.load()
    return Shell(
        conf=conf,
        address="",
        resource_manager="",
        store=store,
        blobs=BlobStore(tmp_path / "blobs", 1000),
        results=ResultStore(tmp_path / "spool"),
        log_directory=tmp_path / "logs",
        registry=Registry.from_configuration(conf),
        host="here",
        platform=replace(SYSTEM, processes=NoProcesses()),
        permit=permit,
        replaced=lambda: True,
    )


@pytest.fixture
async def shell(store: JobStore, tmp_path: Path) -> AsyncIterator[Shell]:
    store.persist([JobAdded(job_id=JOB, name="a job", graph_id="g", start_ms=1)])
    shell = shell_on(store, tmp_path)
    yield shell
    await shell.close()


async def test_an_end_is_never_shown_without_its_reason(
    store: JobStore, shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = shell.core.jobs[JOB]
    look_up = store.graph

    def graph(graph_id: str) -> Any:
        """The job ends just while its details are gathered."""
        job.status = JobStatus.FAILED
        store.persist([JobEnded(job_id=JOB, status=JobStatus.FAILED, end_ms=2, failure="why")])
        return look_up(graph_id)

    monkeypatch.setattr(store, "graph", graph)
    details = await shell.details(job)
    assert [error.summary for error in details.exceptions] == ["why"]


class LosesAnswers(JobStore):
    """Commits, but the first answers do not arrive."""

    lost = 2

    def persist(self, records: Sequence[Record]) -> None:
        super().persist(records)
        if self.lost:
            self.lost -= 1
            raise sa.exc.OperationalError("COMMIT", {}, Exception("server closed the connection"))


async def test_a_commit_whose_answer_is_lost_does_not_end_the_dispatcher(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = LosesAnswers(JobStore.sqlite_url(tmp_path))
    shell = shell_on(store, tmp_path)
    running = asyncio.create_task(shell.run())
    graph = job_graph_pb2.JobGraph(job_id=JOB, name="a job")
    async with asyncio.timeout(SOON_S):
        assert await shell.submit(graph) is None
    assert not running.done()
    assert [job.name for job in store.jobs()] == ["a job"]
    assert shell.store_problem == ""
    shell.stop()
    await running
    await shell.close()
    store.close()


class FailsToRead(JobStore):
    """The first calls come while the database is away."""

    graphs_lost = checkpoints_lost = 1

    def graph(self, graph_id: str) -> bytes | None:
        if self.graphs_lost:
            self.graphs_lost -= 1
            raise sa.exc.OperationalError("SELECT", {}, Exception("connection refused"))
        return super().graph(graph_id)

    def checkpoints(self, job_id: JobId) -> list[CompleteCheckpoint]:
        if self.checkpoints_lost:
            self.checkpoints_lost -= 1
            raise sa.exc.OperationalError("SELECT", {}, Exception("connection refused"))
        return super().checkpoints(job_id)


async def test_a_job_is_started_once_the_store_can_be_read(tmp_path: Path) -> None:
    store = FailsToRead(JobStore.sqlite_url(tmp_path))
    shell = shell_on(store, tmp_path)
    graph = job_graph_pb2.JobGraph(job_id=JOB, name="a job")
    graph_id = store.put_graph(graph.SerializeToString())
    stream = shell.open_stream(1)
    async with asyncio.timeout(SOON_S):
        await shell._start_job(StartJob(connection=1, job_id=JOB, graph_id=graph_id, epoch=1))
    message = stream.get_nowait()
    assert message is not None
    assert message.start.job_graph == graph
    assert shell.store_problem == "", "submissions are accepted"
    await shell.close()
    store.close()


@pytest.mark.parametrize("leads", [(False,), (True, False)], ids=["before", "meanwhile"])
async def test_who_was_replaced_takes_no_rows(
    store: JobStore, tmp_path: Path, leads: tuple[bool, ...]
) -> None:
    """The next leader counts the stored chunks itself."""
    store.persist([JobAdded(job_id=JOB, name="a job", graph_id="g", start_ms=1)])
    shell = shell_on(store, tmp_path, Leads(leads))
    chunk = AppendResults(
        job_id=JOB,
        epoch=0,
        operator_id="b" * 32,
        generation=1,
        index=0,
        ipc_stream=b"rows",
        group="",
        attempt_id="",
    )
    with pytest.raises(NotLeading):
        await shell.append_results(chunk)
    await shell.close()
