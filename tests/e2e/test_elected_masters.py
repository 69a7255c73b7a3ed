"""Elected masters die one after the other, ZooKeeper loses its quorum, the job store is unavailable,
or both: running jobs keep running.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from firesteel import Environment
from firesteel.client.client import Client
from firesteel.common.leader import Leader, Office
from firesteel.common.states import JobStatus
from firesteel.connectors import DiscardSink
from firesteel.errors import ClusterUnreachable, FiresteelError
from tests.highly_available import HighlyAvailableCluster
from tests.postgres import Postgres
from tests.waiting import eventually
from tests.zookeeper import ZooKeeper

from .chaos import Chaos, Fault, drawn
from .conftest import WARM_S, Session, attempt_ids, job_masters
from .exactly_once import ExactlyOnceJob, exactly_once_job
from .jobs import unhurried

SEED = 1
FAULTS = {
    Fault.TASK: 1,
    Fault.JOB_MASTER: 1,
    Fault.DISPATCHER: 1,
    Fault.RESOURCE_MANAGER: 1,
    Fault.ZOOKEEPER: 1,
    Fault.HANDOVER: 1,
    Fault.STANDBY: 1,
    Fault.ZOMBIE_DISPATCHER: 1,
}  # `make chaos MASTERS=10` draws more, and others
SESSION_S = 2.0
AWAY_S = 2 * SESSION_S


@pytest.fixture(scope="module")
def store() -> Iterator[Postgres]:
    store = Postgres()
    yield store
    store.close()


@pytest.fixture(scope="module")
def cluster(
    zookeeper: ZooKeeper, store: Postgres, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[HighlyAvailableCluster]:
    folder = tmp_path_factory.mktemp("elected")
    overrides = {
        "high-availability.zookeeper.client.session-timeout": f"{SESSION_S:g} s",
        "database.url": store.url.replace("postgresql://", "postgresql+psycopg2://"),
    }
    with HighlyAvailableCluster(
        zookeeper, folder, task_executors=1, slots=2, overrides=overrides
    ) as cluster:
        cluster.wait_for_slots(timeout_s=WARM_S)
        yield cluster


class Unchanged:
    """Attempts, JobMasters and results that an outage must not change."""

    def __init__(self, cluster: HighlyAvailableCluster, session: Session, job_id: str) -> None:
        self._cluster, self._session, self._job_id = cluster, session, job_id
        self._before = self._look()

    def check(self) -> None:
        assert self._look() == self._before

    def _look(
        self,
    ) -> tuple[dict[Office, Leader | None], dict[str, int], set[int], list[list[str]]]:
        leaders = {office: self._cluster.leader(office) for office in Office}
        assert None not in leaders.values()
        starts = {str(service.log): service.starts for service in self._cluster.services}
        epochs = set(job_masters(self._cluster.directory, self._job_id))
        details = self._session.client.job_details(self._job_id)
        assert details.status is JobStatus.RUNNING
        return leaders, starts, epochs, attempt_ids(details)


def rows_pass(job: ExactlyOnceJob, for_s: float) -> None:
    until = time.monotonic() + for_s
    while time.monotonic() < until:
        job.flows("all the time")


def without_quorum(zookeeper: ZooKeeper) -> tuple[int, int]:
    """Two of three crash, the leader among them. Returns which."""
    leader = zookeeper.leader()
    assert leader is not None
    crashed = (leader, (leader + 1) % 3)
    zookeeper.crash(*crashed)
    return crashed


def again(zookeeper: ZooKeeper, crashed: tuple[int, int]) -> None:
    for index in crashed:
        zookeeper.start(index)
    zookeeper.wait_until_serving()


def refuses(leader: Client) -> bool:
    """Returns whether the Dispatcher, a former leader, refuses its clients."""
    try:
        leader.list_jobs()
    except ClusterUnreachable as error:
        return "ZooKeeper" in str(error)
    return False


@pytest.mark.long  # test_storage_away.py is without the store, the simulation without ZooKeeper
def test_jobs_keep_running_without_zookeeper_their_store_and_both(
    cluster: HighlyAvailableCluster,
    zookeeper: ZooKeeper,
    store: Postgres,
    postgres: str,
    tmp_path: Path,
) -> None:
    session = Session(cluster)
    other = Environment(parallelism=1)
    unhurried(other).sink_to(DiscardSink())
    address = cluster.leading(Office.DISPATCHER).address
    with (
        ThreadPoolExecutor(1) as thread,
        Client(address, conf=cluster.conf) as leader,
        exactly_once_job(session, tmp_path, postgres) as job,
    ):
        job.progress("the start")
        unchanged = Unchanged(cluster, session, job.job_id)

        crashed = without_quorum(zookeeper)
        rows_pass(job, SESSION_S)
        eventually(lambda: refuses(leader), "the Dispatcher's lease has run out")
        submitted = thread.submit(session.submit, other)
        rows_pass(job, AWAY_S)
        assert not submitted.done(), "it waits for a Dispatcher"
        again(zookeeper, crashed)
        job.progress("the return of ZooKeeper")
        unchanged.check()
        session.client.cancel(submitted.result())

        store.crash()
        with pytest.raises(FiresteelError, match="job store cannot be written"):
            session.submit(other)
        rows_pass(job, AWAY_S)
        unchanged.check()
        store.start()
        job.progress("the return of the job store")
        unchanged.check()

        store.crash()
        crashed = without_quorum(zookeeper)
        eventually(lambda: refuses(leader), "the Dispatcher's lease has run out")
        rows_pass(job, AWAY_S)
        again(zookeeper, crashed)
        rows_pass(job, SESSION_S)
        store.start()
        job.progress("the return of both")
        unchanged.check()


@pytest.mark.long  # test_high_availability.py kills leaders under a job without a ledger
def test_rows_count_once_and_no_task_restarts_whichever_master_dies(
    cluster: HighlyAvailableCluster, zookeeper: ZooKeeper, postgres: str, tmp_path: Path
) -> None:
    session = Session(cluster)
    with exactly_once_job(session, tmp_path, postgres) as job:
        job.progress("the start")
        Chaos(session, job, SEED, zookeeper=zookeeper).inject_all(drawn(SEED, FAULTS))
    eventually(lambda: session.free_slots() == 2, "every slot is free")
