"""Pods of a secured cluster end under a job that runs: by a rolling change, the drain of a node, a
user who deletes the master, the kernel, and an eviction.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from firesteel import Environment
from firesteel.client.job_details import JobDetails, TaskExecutorOverview
from firesteel.common.config import Configuration, options
from firesteel.common.leader import Office
from firesteel.connectors import DiscardSink
from firesteel.kubernetes.cluster import cluster_objects
from firesteel.kubernetes.pods.labels import JOB_MANAGER, TASK_EXECUTOR
from firesteel.kubernetes.resources import Object
from tests.kubernetes.failure import Failure
from tests.kubernetes.kinds import BY_NAME
from tests.kubernetes.pod_cluster import CLUSTER_ID, PodCluster, pod_cluster
from tests.waiting import PATIENCE_S, eventually

from .conftest import Session, attempt_ids, running
from .exactly_once import ExactlyOnceJob, exactly_once_job
from .jobs import unhurried

NEVER = {"restart-strategy.type": "none"}  # a failure ends the job
POD = BY_NAME["Pod"]
SLOTS_S = 5 * PATIENCE_S  # to start slots on a busy machine


def names(pods: list[Object]) -> set[str]:
    return {pod["metadata"]["name"] for pod in pods}


def places(details: JobDetails) -> set[str]:
    """The TaskExecutors of its tasks."""
    return {s.attempts[-1].task_executor_id for v in details.vertices for s in v.subtasks}


def pod_of_tasks(cluster: PodCluster, session: Session, job_id: str) -> Object:
    """Returns the pod in which all tasks of the job run, once they do and its TaskExecutor has
    reported how much memory they use.
    """
    (place,) = places(session.wait_until(job_id, running))

    def executor() -> TaskExecutorOverview:
        executors = session.overview().task_executors
        return next(each for each in executors if each.task_executor_id == place)

    def measured() -> bool:
        usage = executor().usage
        return usage is not None and usage.memory_peak_bytes is not None

    eventually(measured, cluster.logs)
    host = executor().host
    pods = cluster.pods(TASK_EXECUTOR)
    return next(pod for pod in pods if pod["status"].get("podIP") == host)


def delete_master(cluster: PodCluster, session: Session, job: ExactlyOnceJob) -> None:
    """No task notices that the only master ends and another one takes its place."""
    before = attempt_ids(session.wait_until(job.job_id, running))
    earlier = epochs(cluster)
    (master,) = names(cluster.pods(JOB_MANAGER))
    cluster.server.act(lambda registry: registry.delete(POD, "default", master))
    eventually(
        lambda: all(after > earlier[office] for office, after in epochs(cluster).items()),
        cluster.logs,
        patience_s=SLOTS_S,
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
        patience_s=SLOTS_S,
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

    eventually(replaced, cluster.logs, patience_s=SLOTS_S)
    job.progress("the change of the configuration")
    after = session.wait_until(job.job_id, running)
    assert not places(after) & places(before)
    assert after.exceptions == ()
    texts = [str(pod["spec"]) for pod in cluster.pods(TASK_EXECUTOR)]
    assert all(f"{options.TM_IDLE_TIMEOUT.key}=47 s" in text for text in texts)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cluster")


@pytest.fixture(scope="module")
def cluster(folder: Path) -> Iterator[PodCluster]:
    with pod_cluster(folder, nodes=3, task_executors=2) as cluster:
        yield cluster


@pytest.fixture
def session(cluster: PodCluster) -> Iterator[Session]:
    session = Session(cluster)  # type: ignore[arg-type]
    yield session
    session.client.close()


def test_pods_have_no_more_keys_than_they_need(cluster: PodCluster, folder: Path) -> None:
    shown = str(cluster.server.objects("Pod") + cluster.server.objects("ConfigMap"))
    assert "jobs.db" not in shown, "the address of the job store is a secret"
    holders = []
    for keys in (folder / "pods").glob("*/root/etc/firesteel-security"):
        files = {path.name for path in keys.iterdir()}
        assert "admin.token" not in files
        assert (keys / "taskexecutors.key").stat().st_mode & 0o777 == 0o440
        holders.append((keys / "holder").read_text())
        assert holders[-1] == "masters" or not files & {"authority.key", "tokens.key"}
    assert sorted(holders) == ["masters", "taskexecutors", "taskexecutors"]


@pytest.mark.long  # test_rolling_restart.py replaces processes
def test_no_row_is_lost_or_doubled_when_pods_are_replaced(
    cluster: PodCluster, session: Session, tmp_path: Path, postgres: str
) -> None:
    with exactly_once_job(session, tmp_path, postgres, enough_for_s=300.0, **NEVER) as job:
        job.progress("the start")
        delete_master(cluster, session, job)
        drain_node(cluster, session, job)
        change_configuration(cluster, session, job)


def program(checkpoints: Path) -> Environment:
    keys = {
        "execution.checkpointing.interval": "500 ms",
        "execution.checkpointing.dir": str(checkpoints),
        "restart-strategy.type": "fixed-delay",
        "restart-strategy.fixed-delay.attempts": "10",
        "restart-strategy.fixed-delay.delay": "0 s",
    }
    env = Environment(parallelism=1, configuration=keys)
    unhurried(env).sink_to(DiscardSink())
    return env


def test_the_reason_of_an_oom_kill_and_of_an_eviction(
    cluster: PodCluster, session: Session, tmp_path: Path
) -> None:
    job_id = session.submit(program(tmp_path / "checkpoints"))

    def explained(*reasons: str) -> None:
        """Waits for a failure whose error has these reasons."""

        def found() -> bool:
            exceptions = session.client.job_details(job_id).exceptions
            return any(all(r in each.summary for r in reasons) for each in exceptions)

        eventually(found, cluster.logs, patience_s=SLOTS_S)

    pod = pod_of_tasks(cluster, session, job_id)
    name, node = pod["metadata"]["name"], pod["spec"]["nodeName"]
    limit = pod["spec"]["containers"][0]["resources"]["limits"]["memory"]
    cluster.kubelet.oom_kill(name)
    explained(
        f"its pod {name} was killed by the kernel on node {node}: it reached its memory limit of"
        f" {limit} (OOMKilled); the highest memory of its slots that it has reported was ",
        "The last lines of its log:\n",
    )
    pod = pod_of_tasks(cluster, session, job_id)
    cluster.kubelet.evict(pod["metadata"]["name"])
    explained(
        f"was evicted from node {pod['spec']['nodeName']}",
        "The node was low on resource: memory",
    )
    session.wait_until(job_id, running)
    session.client.cancel(job_id)


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


@pytest.mark.long  # test_rolling_restart.py restarts leaders
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
