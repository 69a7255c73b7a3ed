from __future__ import annotations

import sqlite3
import time
from contextlib import closing
from pathlib import Path

import pytest
import sqlalchemy as sa

from dispatcher.core.records import (
    JobAdded,
    JobAssigned,
    JobCancelRequested,
    JobEnded,
    JobForgotten,
    JobStatusChanged,
)
from dispatcher.job_store import Fenced, JobStore, job_store_facts
from firesteel.common.fencing import Refusals
from firesteel.common.ids import JobId, JobMasterId
from firesteel.common.states import JobStatus
from firesteel.errors import FiresteelError

JOB = JobId("a" * 32)


@pytest.fixture
def url(tmp_path: Path) -> str:
    return JobStore.sqlite_url(tmp_path)


@pytest.fixture
def store(url: str):
    store = JobStore(url)
    yield store
    store.close()


def add(store: JobStore, job_id: JobId = JOB, graph: bytes = b"graph") -> str:
    graph_id = store.put_graph(graph)
    store.persist([JobAdded(job_id=job_id, name="a job", graph_id=graph_id, start_ms=7)])
    return graph_id


def test_a_job_survives_reopening(url: str) -> None:
    first = JobStore(url)
    graph_id = add(first)
    first.persist(
        [
            JobAssigned(job_id=JOB, epoch=1, job_master_id=JobMasterId("m")),
            JobStatusChanged(job_id=JOB, status=JobStatus.RUNNING),
        ]
    )
    first.close()
    second = JobStore(url)
    (job,) = second.jobs()
    assert (job.job_id, job.name, job.status, job.start_ms) == (JOB, "a job", JobStatus.RUNNING, 7)
    assert (job.epoch, job.job_master_id) == (1, "m")
    assert second.graph(graph_id) == b"graph"
    second.close()


def test_the_final_details_are_kept_as_reported(store: JobStore) -> None:
    add(store)
    store.persist([JobEnded(job_id=JOB, status=JobStatus.FINISHED, end_ms=9, final_details=b"all")])
    assert store.ending(JOB) == (b"all", "")
    assert store.jobs()[0].end_ms == 9


def test_a_forgotten_job_leaves_only_its_id_and_status(store: JobStore) -> None:
    graph_id = add(store)
    store.persist(
        [
            JobEnded(job_id=JOB, status=JobStatus.FAILED, end_ms=9, failure="why"),
            JobForgotten(job_id=JOB),
        ]
    )
    assert store.jobs() == []
    assert store.forgotten() == [(JOB, JobStatus.FAILED, "")]
    assert store.graph(graph_id) is None
    assert store.ending(JOB) == (None, "")


def test_why_a_job_is_forgotten_is_kept(store: JobStore) -> None:
    add(store)
    store.persist(
        [
            JobEnded(job_id=JOB, status=JobStatus.FAILED, end_ms=9, failure="why it failed"),
            JobForgotten(job_id=JOB, why="it was removed"),
        ]
    )
    assert store.forgotten() == [(JOB, JobStatus.FAILED, "it was removed")]


def test_forgetting_keeps_a_graph_that_another_job_has_too(store: JobStore) -> None:
    graph_id = add(store)
    add(store, JobId("b" * 32))
    store.persist([JobForgotten(job_id=JOB)])
    assert store.graph(graph_id) == b"graph"


def test_records_are_stored_together_or_not_at_all(store: JobStore) -> None:
    add(store)
    with pytest.raises(LookupError):
        store.persist(
            [
                JobStatusChanged(job_id=JOB, status=JobStatus.RUNNING),
                JobStatusChanged(job_id=JobId("x"), status=JobStatus.RUNNING),
            ]
        )
    assert store.jobs()[0].status is JobStatus.INITIALIZING


def test_graphs_of_refused_submissions_are_dropped(store: JobStore) -> None:
    used, unused = add(store), store.put_graph(b"another")
    store.drop_unused_graphs()
    assert store.graph(used) is not None
    assert store.graph(unused) is None


def test_opening_it_again_fences_the_earlier_one(url: str) -> None:
    earlier, later = JobStore(url), JobStore(url)
    assert later.epoch == earlier.epoch + 1
    with pytest.raises(Fenced, match="taken over"):
        add(earlier)
    add(later)
    assert len(later.jobs()) == 1
    earlier.close()
    later.close()


def test_an_elected_epoch_fences_lower_ones(url: str) -> None:
    facts = job_store_facts(url)
    assert facts.epoch == 0 and job_store_facts(url).store_id == facts.store_id
    refusals = Refusals()
    elected, later = JobStore(url, 7, refusals), JobStore(url, 9)
    assert (elected.epoch, later.epoch) == (7, 9)
    with pytest.raises(Fenced, match=r"\(epoch 9\) has taken over .* \(epoch 7\)"):
        add(elected)
    assert refusals.by_sender == {"Dispatcher": 1}
    for epoch in (8, 9):
        with pytest.raises(Fenced, match=rf"another Dispatcher \(epoch 9\).*\(epoch {epoch}\)"):
            JobStore(url, epoch)
    add(later)
    assert job_store_facts(url).epoch == 9
    for store in (elected, later):
        store.close()


def test_a_store_that_cannot_be_opened_says_what_to_check(tmp_path: Path) -> None:
    with pytest.raises(FiresteelError, match=r"database\.url"):
        JobStore(f"sqlite:///{tmp_path}/nowhere/jobs.db")


def test_a_promised_cancel_is_kept(store: JobStore) -> None:
    add(store)
    assert [job.cancel_requested for job in store.jobs()] == [False]
    store.persist([JobCancelRequested(job_id=JOB)])
    assert [job.cancel_requested for job in store.jobs()] == [True]


def test_files_are_needed_while_a_job_that_names_them_is_kept(store: JobStore) -> None:
    graphs = {JOB: (b"one", "x"), JobId("b" * 32): (b"two", "y")}
    for job_id, (graph, own) in graphs.items():
        graph_id = store.put_graph(graph, ["shared", own, own])
        store.persist([JobAdded(job_id=job_id, name="a job", graph_id=graph_id, start_ms=7)])
    store.put_graph(b"never submitted", ["z"])
    assert store.needed_blobs() == {"shared", "x", "y", "z"}
    store.drop_unused_graphs()
    assert store.needed_blobs() == {"shared", "x", "y"}
    store.persist([JobForgotten(job_id=JOB)])
    assert store.needed_blobs() == {"shared", "y"}


def test_a_store_that_is_older_than_migrations_is_refused(url: str) -> None:
    JobStore(url).close()
    engine = sa.create_engine(url)
    with engine.begin() as connection:
        connection.exec_driver_sql("ALTER TABLE jobs DROP COLUMN cancel_requested")
        connection.exec_driver_sql("DROP TABLE alembic_version")
    engine.dispose()
    with pytest.raises(
        FiresteelError,
        match="cannot be migrated .*jobs lacks cancel_requested.*use another --dir",
    ):
        JobStore(url)


def test_a_committed_row_survives_a_loss_of_power(store: JobStore) -> None:
    with store._engine.connect() as connection:
        assert connection.exec_driver_sql("PRAGMA synchronous").scalar() == 2, "FULL"
        assert connection.exec_driver_sql("PRAGMA journal_mode").scalar() == "wal"


def test_a_new_file_that_another_dispatcher_is_writing_is_waited_for(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits = []
    with closing(sqlite3.connect(sa.make_url(url).database, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")

        def it_commits_meanwhile(seconds: float) -> None:
            waits.append(seconds)
            if len(waits) == 2:
                other.execute("COMMIT")

        monkeypatch.setattr(time, "sleep", it_commits_meanwhile)
        assert job_store_facts(url).epoch == 0
    assert len(waits) == 2
