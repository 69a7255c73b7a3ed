"""A job store in PostgreSQL that breaks connections, is away, and comes back."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest
import sqlalchemy as sa

from dispatcher.job_store import JobStore, NotWritten
from firesteel.client.client import Client
from firesteel.common.checkpoints.state import CompleteCheckpoint
from firesteel.common.config import Configuration
from firesteel.common.process import StartFailed
from firesteel.common.states import JobStatus
from firesteel.errors import FiresteelError
from tests.dispatcher_process import DispatcherProcesses, a_job, dispatcher_processes, submit
from tests.integration.job_stores import JOB, store_with_a_job
from tests.proxy import Proxy
from tests.waiting import eventually

PASSWORD = "a-password-that-no-log-may-show"
CHECKPOINT = CompleteCheckpoint(checkpoint_id=1, path="/d/chk-1")


@pytest.fixture
def proxy(postgres: str) -> Iterator[Proxy]:
    (folder,) = parse_qs(urlsplit(postgres).query)["host"]
    proxy = Proxy(f"{folder}/.s.PGSQL.5432")
    yield proxy
    with contextlib.suppress(AssertionError):
        proxy.down()


@pytest.fixture
def url(postgres: str, proxy: Proxy) -> str:
    """Returns the URL of an empty database, through the proxy."""
    engine = sa.create_engine(postgres.replace("postgresql://", "postgresql+psycopg2://"))
    with engine.begin() as connection:
        connection.exec_driver_sql("DROP SCHEMA IF EXISTS away CASCADE")
        connection.exec_driver_sql("CREATE SCHEMA away")
    engine.dispose()
    where = f"postgres:{PASSWORD}@127.0.0.1:{proxy.port}/postgres"
    return f"postgresql+psycopg2://{where}?options=-csearch_path%3Daway"


@pytest.fixture
def store(url: str) -> Iterator[JobStore]:
    with store_with_a_job(url) as store:
        yield store


def test_what_was_committed_when_the_answer_was_lost_is_there_once(
    store: JobStore, proxy: Proxy
) -> None:
    proxy.lose_answer_to(b"COMMIT")
    with pytest.raises(sa.exc.OperationalError):
        store.commit_checkpoint(JOB, 1, CHECKPOINT, [])
    assert proxy.lost.is_set()
    assert store.checkpoints(JOB) == [CHECKPOINT]
    store.commit_checkpoint(JOB, 1, CHECKPOINT, [])
    assert store.checkpoints(JOB) == [CHECKPOINT]


def test_while_it_is_away_nothing_is_written_and_then_everything_at_once(
    store: JobStore, proxy: Proxy
) -> None:
    proxy.down()
    with pytest.raises(NotWritten, match="Connection refused"):
        store.commit_checkpoint(JOB, 1, CHECKPOINT, [])
    proxy.up()
    assert store.checkpoints(JOB) == []
    store.commit_checkpoint(JOB, 1, CHECKPOINT, [])
    proxy.down()
    proxy.up()
    store.commit_checkpoint(JOB, 1, CHECKPOINT, [])
    assert store.checkpoints(JOB) == [CHECKPOINT]


def test_one_that_does_not_answer_is_given_up() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        where = f"127.0.0.1:{silent.getsockname()[1]}/d"
        problem = rf"job store {where}\?connect_timeout=2 cannot be opened: .*; check database.url"
        with pytest.raises(FiresteelError, match=problem) as raised:
            JobStore(f"postgresql+psycopg2://me:{PASSWORD}@{where}?connect_timeout=2")
    assert PASSWORD not in str(raised.value)


@pytest.fixture
def dispatchers(tmp_path: Path) -> Iterator[DispatcherProcesses]:
    with dispatcher_processes(tmp_path) as dispatchers:
        yield dispatchers


def environment(url: str) -> dict[str, str]:
    return Configuration({"database.url": url}).to_environment()


def test_a_dispatcher_answers_what_it_can_and_continues(
    dispatchers: DispatcherProcesses, url: str, proxy: Proxy
) -> None:
    dispatcher = dispatchers.start(env=environment(url))
    with Client(dispatcher.ready["address"]) as client:
        ended = submit(client, 0)
        client.cancel(ended)
        eventually(lambda: client.job_details(ended).status is JobStatus.CANCELED, "stored")
        waits = submit(client, 1)
        proxy.down()
        assert {found.job_id for found in client.list_jobs()} == {ended, waits}
        assert "slot" in client.job_details(waits).waiting_for
        with pytest.raises(FiresteelError, match=r"job store cannot be .*Connection refused"):
            client.job_details(ended)
        with pytest.raises(FiresteelError, match=r"cannot be written .*nothing was submitted"):
            client.submit(a_job(2))
        with pytest.raises(FiresteelError, match=r"cannot be written .* is being cancelled"):
            client.cancel(waits)
        assert dispatcher.process.poll() is None
        proxy.up()
        eventually(lambda: client.job_details(waits).status is JobStatus.CANCELED, "stored")
        assert client.job_details(ended).status is JobStatus.CANCELED
        submit(client, 3)
    dispatcher.stop()
    assert PASSWORD not in dispatchers.log.read_text()


def test_a_dispatcher_does_not_start_without_it_and_says_why(
    dispatchers: DispatcherProcesses, url: str, proxy: Proxy
) -> None:
    proxy.down()
    with pytest.raises(StartFailed, match=r"job store .* cannot be opened: .*Connection refused"):
        dispatchers.start(env=environment(url))
    assert PASSWORD not in dispatchers.log.read_text()
