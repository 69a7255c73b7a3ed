"""What the Dispatcher's shell answers while the core and the store move on."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from dispatcher.blob_store import BlobStore
from dispatcher.core.records import JobAdded, JobEnded
from dispatcher.job_store import JobStore
from dispatcher.results import ResultStore
from dispatcher.shell import Shell
from firesteel.common.config import Configuration
from firesteel.common.ids import JobId
from firesteel.common.metrics import Registry
from firesteel.common.states import JobStatus

JOB = JobId("a" * 32)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[JobStore]:
    store = JobStore(JobStore.sqlite_url(tmp_path))
    yield store
    store.close()


@pytest.fixture
async def shell(store: JobStore, tmp_path: Path) -> AsyncIterator[Shell]:
    conf = Configuration.load()
    store.persist([JobAdded(job_id=JOB, name="a job", graph_id="g", start_ms=1)])
    shell = Shell(
        conf=conf,
        address="",
        resource_manager="",
        store=store,
        blobs=BlobStore(tmp_path / "blobs", 1000),
        results=ResultStore(tmp_path / "spool"),
        log_directory=tmp_path / "logs",
        registry=Registry.from_configuration(conf),
        host="here",
    )
    yield shell
    await shell.close()


async def test_an_end_is_never_told_without_its_reason(
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
