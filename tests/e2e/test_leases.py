"""Masters that are elected with Leases of Kubernetes die: running jobs do not notice."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from firesteel import Environment
from firesteel.common.leader import Leader, Office
from firesteel.common.states import JobStatus
from firesteel.connectors import DiscardSink
from tests.highly_available import HighlyAvailableCluster
from tests.kubernetes.api_server import ApiServer
from tests.waiting import eventually

from .conftest import WARM_S, Session, attempt_ids, running
from .jobs import unhurried


def configuration(kubeconfig: Path) -> dict[str, str]:
    return {
        "high-availability.type": "kubernetes",
        "kubernetes.config.file": str(kubeconfig),
        "kubernetes.cluster-id": "orders",
    }


def checkpointed(directory: Path) -> Environment:
    keys = {
        "execution.checkpointing.interval": "500 ms",
        "execution.checkpointing.dir": str(directory),
    }
    env = Environment(parallelism=1, configuration=keys)
    unhurried(env).sink_to(DiscardSink())
    return env


@pytest.mark.long  # unit/high_availability/test_lease_simulation.py
def test_no_task_restarts_when_leaders_with_leases_die(tmp_path: Path) -> None:
    kubernetes, folder = tmp_path / "kubernetes", tmp_path / "cluster"
    kubernetes.mkdir()
    folder.mkdir()
    with (
        ApiServer(kubernetes) as server,
        HighlyAvailableCluster(
            None, folder, task_executors=1, slots=1, overrides=configuration(server.kubeconfig)
        ) as cluster,
    ):
        cluster.wait_for_slots(timeout_s=WARM_S)
        assert cluster.address == "kubernetes://default/orders"
        session = Session(cluster)
        job_id = session.submit(checkpointed(tmp_path / "checkpoints"))
        before = attempt_ids(session.wait_until(job_id, running))
        for office in Office:
            killed, earlier = cluster.leading(office), cluster.leader(office)
            assert earlier is not None
            killed.process.kill()
            killed_at = time.monotonic()

            def successor(office: Office = office, earlier: Leader = earlier) -> Leader | None:
                leader = cluster.leader(office)
                return leader if leader is not None and leader.epoch > earlier.epoch else None

            eventually(successor, f"another {office.holder} leads")
            print(f"{office.holder}: another leader {time.monotonic() - killed_at:.1f} s later")
            eventually(lambda: not session.overview().resource_manager_problem, "masters answer")
            # A Dispatcher that has just become the leader may not know the tasks yet.
            eventually(
                lambda: attempt_ids(session.client.job_details(job_id)) == before,
                "no task has restarted",
            )
        details = session.client.job_details(job_id)
        assert details.status is JobStatus.RUNNING
        known = {each.checkpoint_id for each in details.checkpoints}
        eventually(
            lambda: any(
                each.checkpoint_id not in known and each.state == "COMPLETED"
                for each in session.client.job_details(job_id).checkpoints
            ),
            "checkpoints complete under the new leaders",
        )
        assert attempt_ids(session.client.job_details(job_id)) == before
        session.client.cancel(job_id)
