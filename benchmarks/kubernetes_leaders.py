"""Measures how long the masters of a cluster on Kubernetes do not serve when the pod of the leader
is killed or deleted.

The API server and the kubelet of the tests run two pods of masters and one TaskExecutor, with TLS
and the default times of Leases (15 s, 10 s, 2 s), under a job that takes a checkpoint every second.

* Killed: all processes in the pod of the leading Dispatcher get SIGKILL.
* Deleted: as by `kubectl delete pod`; the pod gets SIGTERM.

Each time, the next JobMaster has taken over the running tasks of the last change.

The time ends when a client, which opens a port-forward to the pod of the next leader, has the
details of the job, or for a ResourceManager when it knows all slots.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

from benchmarks.checkpoints import jobs
from firesteel import Environment
from firesteel.common.leader import Leader, Office
from firesteel.connectors import DiscardSink, SequenceSource
from firesteel.errors import ClusterUnreachable
from firesteel.high_availability.kubernetes.lease import lease_of
from firesteel.kubernetes.pods.labels import JOB_MANAGER
from firesteel.kubernetes.resources import name_of
from tests.kubernetes.kinds import BY_NAME
from tests.kubernetes.pod_cluster import CLUSTER_ID, PodCluster, pod_cluster

KILLS, DELETIONS = 3, 5
SLOTS = 1
READY_S = 600.0  # pods start slowly on a busy machine
KILLED_GOAL_S, DELETED_GOAL_S = 16.0, 1.0


class Served(NamedTuple):
    """Seconds from the end of the leader's pod."""

    elected: float
    served: float


class Measured:
    """The job in its cluster."""

    def __init__(self, cluster: PodCluster, checkpoints: Path) -> None:
        self._cluster = cluster
        self._client = cluster.client()
        env = Environment(parallelism=SLOTS, configuration=jobs.settings(checkpoints, "1 s"))
        env.from_source(SequenceSource(0, rate_per_s=1_000)).sink_to(DiscardSink())
        self._job_id = self._client.submit(env.job_graph("leaders"))
        self._attempts = self._running()

    def change(self, end: Callable[[str], None]) -> dict[Office, Served]:
        """Returns the times of the offices that the pod of the leading Dispatcher has."""
        self._in_order()
        leaders = {office: self._leader(office) for office in Office}
        host = _host(leaders[Office.DISPATCHER])
        led = [office for office in Office if _host(leaders[office]) == host]
        (pod,) = (p for p in self._cluster.pods(JOB_MANAGER) if p["status"].get("podIP") == host)
        began_s = time.monotonic()
        end(name_of(pod))
        found = {}
        for office in sorted(led, key=list(Office).index):
            earlier = leaders[office]
            assert earlier is not None
            while (leader := self._leader(office)) is None or leader.epoch <= earlier.epoch:
                time.sleep(0.005)
            elected_s = time.monotonic() - began_s
            self._await_answer(office, leader)
            found[office] = Served(elected_s, time.monotonic() - began_s)
        return found

    def restarted(self) -> int:
        """Returns the number of tasks that have restarted."""
        return len(self._running() - self._attempts)

    def close(self) -> None:
        self._client.close()

    def _await_answer(self, office: Office, leader: Leader) -> None:
        def answers() -> bool:
            try:
                if office is Office.DISPATCHER:
                    return bool(self._client.job_details(self._job_id))
                found = self._client.cluster_overview()
            except ClusterUnreachable:  # a call waits for 30 s, which a busy machine may exceed
                return False
            return found.resource_manager_epoch >= leader.epoch and found.slots_total == SLOTS

        while not answers():
            time.sleep(0.005)

    def _in_order(self) -> None:
        def ready() -> bool:
            return (
                self._cluster.ready(JOB_MANAGER) == len(self._cluster.pods(JOB_MANAGER)) == 2
                and all(self._leader(office) for office in Office)
                and self._client.cluster_overview().slots_warm == SLOTS
            )

        jobs.wait(ready, "two pods of masters are ready", timeout_s=READY_S)
        self._running()

    def _leader(self, office: Office) -> Leader | None:
        name = f"{CLUSTER_ID}-{office.value.replace('_', '')}"
        leases = self._cluster.server.objects("Lease")
        return next(lease_of(lease).leader for lease in leases if name_of(lease) == name)

    def _running(self) -> set[str]:
        details = jobs.wait_until(self._client, self._job_id, jobs.all_running)
        return {
            attempt.attempt_id
            for vertex in details.vertices
            for subtask in vertex.subtasks
            for attempt in subtask.attempts
        }


def _host(leader: Leader | None) -> str:
    assert leader is not None
    return leader.address.rpartition(":")[0]


def run() -> list[dict[str, Any]]:
    cache = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    with (
        jobs.folder() as directory,
        # The client stores credentials there.
        patch.dict(os.environ, HOME=str(directory / "home"), XDG_CACHE_HOME=cache),
        pod_cluster(
            directory / "cluster",
            task_executors=SLOTS,
            kubernetes__jobmanager__replicas="2",
        ) as cluster,
    ):

        def delete(pod: str) -> None:
            kind = BY_NAME["Pod"]
            cluster.server.act(lambda registry: registry.delete(kind, "default", pod))

        measured = Measured(cluster, directory / "checkpoints")
        try:
            killed = [measured.change(cluster.kubelet.kill) for _ in range(KILLS)]
            deleted = [measured.change(delete) for _ in range(DELETIONS)]
            restarted = measured.restarted()
        finally:
            measured.close()
    return [
        *rows("killed (Lease of 15 s)", killed, KILLED_GOAL_S, restarted),
        *rows("deleted", deleted, DELETED_GOAL_S, restarted),
    ]


def rows(
    how: str, changes: Sequence[Mapping[Office, Served]], goal_s: float, restarted: int
) -> list[dict[str, Any]]:
    found = []
    for office in Office:
        times = [change[office] for change in changes if office in change]
        if not times:
            continue  # the pod of the leading Dispatcher was never that of this leader
        worst_s = max(each.served for each in times)
        elected_s = max(each.elected for each in times)
        found.append(
            jobs.row(
                f"pod of the leading {office.holder} {how} -> the next leader serves, worst",
                f"{worst_s:.2f}",
                f"s (of {len(times)}; elected after {elected_s:.2f} s;"
                f" {restarted} tasks were restarted)",
                f"<= {goal_s:g} s, no task restarted",
                met=worst_s <= goal_s and not restarted,
            )
        )
    return found


if __name__ == "__main__":
    for measured in run():
        print(measured)
