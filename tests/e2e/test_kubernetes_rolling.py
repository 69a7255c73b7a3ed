"""Pods of a cluster are replaced under a job that runs: by a rolling change, the drain of a node, and
a user who deletes the master.
"""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from firesteel.client.job_details import JobDetails
from firesteel.common.config import Configuration, options
from firesteel.common.leader import Office
from firesteel.kubernetes.cluster import cluster_objects
from firesteel.kubernetes.pods.labels import JOB_MANAGER, TASK_EXECUTOR
from firesteel.kubernetes.resources import Object
from tests.kubernetes.failure import Failure
from tests.kubernetes.kinds import BY_NAME
from tests.kubernetes.pod_cluster import CLUSTER_ID, PodCluster, pod_cluster
from tests.waiting import PATIENCE_S, eventually

from .conftest import Session, attempt_ids, running
from .exactly_once import ExactlyOnceJob, exactly_once_job

NEVER = {"restart-strategy.type": "none"}  # a failure ends the job
POD = BY_NAME["Pod"]


def names(pods: list[Object]) -> set[str]:
    return {pod["metadata"]["name"] for pod in pods}


def places(details: JobDetails) -> set[str]:
    """The TaskExecutors of its tasks."""
    return {s.attempts[-1].task_executor_id for v in details.vertices for s in v.subtasks}


def delete_master(cluster: PodCluster, session: Session, job: ExactlyOnceJob) -> None:
    """No task notices that the only master ends and another one takes its place."""
    before = attempt_ids(session.wait_until(job.job_id, running))
    earlier = epochs(cluster)
    (master,) = names(cluster.pods(JOB_MANAGER))
    cluster.server.act(lambda registry: registry.delete(POD, "default", master))
    eventually(
        lambda: all(after > earlier[office] for office, after in epochs(cluster).items()),
        cluster.logs,
        patience_s=3 * PATIENCE_S,
    )
    job.progress("the deletion of the master")
    eventually(
        lambda: attempt_ids(session.client.job_details(job.job_id)) == before,
        "no task has restarted",
    )


def epochs(cluster: PodCluster) -> dict[str, int]:
    found = {}
    for lease in cluster.server.objects("Lease"):
        notes = lease["metadata"].get("annotations") or {}
        found[lease["metadata"]["name"]] = int(notes.get("firesteel.io/epoch", 0))
    assert len(found) == len(Office), "of the Dispatcher and the ResourceManager"
    return found


def drain_node(cluster: PodCluster, session: Session, job: ExactlyOnceJob) -> None:
    """The node of a TaskExecutor is cordoned, and its pod is evicted."""
    details = session.wait_until(job.job_id, running)
    (pod, *_) = cluster.pods(TASK_EXECUTOR)
    name, node = pod["metadata"]["name"], pod["spec"]["nodeName"]
    cluster.cordon(node)
    cluster.evict(name)
    eventually(
        lambda: name not in names(cluster.pods(TASK_EXECUTOR)),
        cluster.logs,
        patience_s=3 * PATIENCE_S,
    )
    job.progress("the drain of a node")
    after = session.wait_until(job.job_id, running)
    assert len(places(after) - places(details)) == 1
    assert after.exceptions == ()
    assert all(pod["spec"]["nodeName"] != node for pod in cluster.pods(TASK_EXECUTOR))


def change_configuration(cluster: PodCluster, session: Session, job: ExactlyOnceJob) -> None:
    """A new configuration replaces the master, and then one TaskExecutor after the other."""
    before = session.wait_until(job.job_id, running)
    masters, workers = names(cluster.pods(JOB_MANAGER)), names(cluster.pods(TASK_EXECUTOR))
    changed = {**cluster.conf.to_dict(), options.TM_IDLE_TIMEOUT.key: "47 s"}
    for manifest in cluster_objects(Configuration(changed), task_executors=2):
        if manifest["kind"] in ("Deployment", "ConfigMap"):
            cluster.apply(manifest)

    def replaced() -> bool:
        left = (
            names(cluster.pods(JOB_MANAGER)) & masters
            | names(cluster.pods(TASK_EXECUTOR)) & workers
        )
        return not left and len(cluster.pods(TASK_EXECUTOR)) == 2

    eventually(replaced, cluster.logs, patience_s=5 * PATIENCE_S)
    job.progress("the change of the configuration")
    after = session.wait_until(job.job_id, running)
    assert not places(after) & places(before)
    assert after.exceptions == ()
    texts = [str(pod["spec"]) for pod in cluster.pods(TASK_EXECUTOR)]
    assert all(f"{options.TM_IDLE_TIMEOUT.key}=47 s" in text for text in texts)


def leading_pod(cluster: PodCluster, office: str) -> str:
    """Returns the name of the pod whose master leads; empty while none does."""
    lease = next(
        each
        for each in cluster.server.objects("Lease")
        if each["metadata"]["name"] == f"{CLUSTER_ID}-{office}"
    )
    holder = (lease["spec"].get("holderIdentity") or "").rpartition(":")[0]
    pods = cluster.pods(JOB_MANAGER)
    names = (p["metadata"]["name"] for p in pods if p["status"].get("podIP") == holder)
    return next(names, "")


def test_an_evicted_leader_hands_over_and_the_budget_keeps_the_standby(tmp_path: Path) -> None:
    with pod_cluster(tmp_path, kubernetes__jobmanager__replicas="2") as cluster:
        eventually(lambda: cluster.ready(JOB_MANAGER) == 2, cluster.logs)
        leader = leading_pod(cluster, "dispatcher")
        (standby,) = names(cluster.pods(JOB_MANAGER)) - {leader}
        cluster.evict(leader)
        evicted_at = time.monotonic()
        with pytest.raises(Failure, match="disruption budget"):
            cluster.evict(standby)
        for office in ("dispatcher", "resourcemanager"):
            eventually(
                lambda office=office: leading_pod(cluster, office) not in ("", leader),  # type: ignore[misc]
                cluster.logs,
            )
            print(f"{office}: another leader {time.monotonic() - evicted_at:.2f} s later")
        eventually(lambda: cluster.ready(JOB_MANAGER) == 2, cluster.logs)
        assert standby in names(cluster.pods(JOB_MANAGER))
        with cluster.client() as client:
            eventually(lambda: not client.cluster_overview().resource_manager_problem, cluster.logs)


def test_no_row_is_lost_or_doubled_when_pods_are_replaced(tmp_path: Path, postgres: str) -> None:
    (tmp_path / "job").mkdir()
    with pod_cluster(tmp_path / "cluster", nodes=3, task_executors=2) as cluster:
        session = Session(cluster)  # type: ignore[arg-type]
        with exactly_once_job(
            session, tmp_path / "job", postgres, enough_for_s=300.0, **NEVER
        ) as job:
            job.progress("the start")
            delete_master(cluster, session, job)
            drain_node(cluster, session, job)
            change_configuration(cluster, session, job)
        session.client.close()
