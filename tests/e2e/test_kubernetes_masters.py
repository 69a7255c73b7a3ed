"""Several masters on Kubernetes, deployed by the command line, whose pods end."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from firesteel.kubernetes.pods.labels import JOB_MANAGER, TASK_EXECUTOR
from firesteel.kubernetes.resources import name_of
from tests.e2e.conftest import firesteel
from tests.e2e.kubernetes_clusters import IMAGE, Kubernetes, kubernetes
from tests.e2e.test_kubernetes_session import ENDLESS, TARGET, succeeded
from tests.kubernetes.kinds import BY_NAME
from tests.waiting import PATIENCE_S, eventually

SERVES_WITHIN_S = 5 * PATIENCE_S


def masters(tmp_path: Path, **values: str) -> dict[str, str]:
    return {
        "database.url": f"sqlite:///{tmp_path}/jobs.db",
        "high-availability.storageDir": str(tmp_path / "storage"),
        "taskmanager.numberOfTaskSlots": "1",
        "taskmanager.memory.process.size": "1 gb",
    } | {key.replace("__", "."): value for key, value in values.items()}


def leader_of(cluster: Kubernetes, office: str) -> str:
    """Returns the name of the pod whose master leads; empty while none does."""
    (lease,) = (
        each for each in cluster.server.objects("Lease") if name_of(each) == f"orders-{office}"
    )
    address = (lease["spec"].get("holderIdentity") or "").rpartition(":")[0]
    return next((name_of(p) for p in cluster.pods() if p["status"].get("podIP") == address), "")


def submitted(program: Path, text: str, *options: str) -> str:
    program.write_text(text)
    found = re.search(
        r"Job has been submitted with JobID (\w{32})",
        succeeded("run", *TARGET, "-d", *options, str(program)),
    )
    assert found is not None
    return found[1]


def delete(cluster: Kubernetes, pod: str) -> None:
    cluster.server.act(lambda registry: registry.delete(BY_NAME["Pod"], "default", pod))


def names(cluster: Kubernetes, component: str = "") -> set[str]:
    return {name_of(pod) for pod in cluster.pods(component)}


def runs(cluster: Kubernetes, target: tuple[str, ...], job_id: str) -> None:
    """Waits until all tasks of the job, which has one vertex, run."""

    def running() -> bool:
        shown = succeeded("show", *target, job_id)
        attempts = re.findall(r"(\d+/\d+) +#\d+ +([A-Z]+)", shown)
        return set(dict(attempts).values()) == {"RUNNING"}  # of the last attempt of each task

    eventually(running, cluster.logs, patience_s=SERVES_WITHIN_S)


@pytest.mark.long  # unit/jobmaster/test_adoption.py
def test_a_job_whose_tasks_wait_for_slots_survives_the_deletion_of_the_leader(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It takes no checkpoints, but none of its tasks was deployed: nothing is repeated."""
    with kubernetes(tmp_path, monkeypatch, masters(tmp_path)) as cluster:
        succeeded("cluster", "start", *TARGET, "--masters", "2")
        eventually(lambda: len(cluster.pods(JOB_MANAGER)) == 2, cluster.logs)
        job_id = submitted(tmp_path / "endless.py", ENDLESS)
        leader = leader_of(cluster, "dispatcher")
        delete(cluster, leader)
        eventually(lambda: leader_of(cluster, "dispatcher") not in ("", leader), cluster.logs)
        runs(cluster, TARGET, job_id)
        assert f"{job_id} : endless (RUNNING)" in succeeded("list", *TARGET)


@pytest.mark.long
def test_the_kubelet_restarts_a_dispatcher_that_hangs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is the only master, and a process that hangs never gives up its Lease."""
    with kubernetes(tmp_path, monkeypatch, masters(tmp_path)) as cluster:
        succeeded("cluster", "start", *TARGET)
        job_id = submitted(tmp_path / "endless.py", ENDLESS)
        runs(cluster, TARGET, job_id)
        address = cluster.pods(JOB_MANAGER)[0]["status"]["podIP"]
        (dispatcher,) = (
            each
            for each in psutil.process_iter(["cmdline"])
            if {"dispatcher", address} <= set(each.info["cmdline"] or ())
        )
        dispatcher.suspend()
        eventually(lambda: restarts(cluster) == 1, cluster.logs, patience_s=SERVES_WITHIN_S)
        runs(cluster, TARGET, job_id)


def restarts(cluster: Kubernetes) -> int:
    (pod,) = cluster.pods(JOB_MANAGER)
    return int(pod["status"]["containerStatuses"][0]["restartCount"])


@pytest.fixture(scope="module")
def separate_masters(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kubernetes]:
    """A session cluster with two Dispatchers and two ResourceManagers in separate pods. The last
    test stops it.
    """
    folder = tmp_path_factory.mktemp("separate")
    values = masters(
        folder,
        kubernetes__masters="separate",
        execution__checkpointing__interval="1 s",
        execution__checkpointing__dir=str(folder / "checkpoints"),
    )
    values["execution.checkpointing.savepoint-dir"] = str(folder / "savepoints")
    with pytest.MonkeyPatch.context() as patch, kubernetes(folder, patch, values) as cluster:
        succeeded("cluster", "start", *TARGET, "--masters", "2")
        yield cluster


def test_separate_masters_are_updated_under_a_running_job(
    separate_masters: Kubernetes, tmp_path: Path
) -> None:
    cluster = separate_masters
    job_id = submitted(tmp_path / "endless.py", ENDLESS)
    runs(cluster, TARGET, job_id)
    assert_a_broken_image_changes_nothing(cluster)
    earlier = names(cluster)
    key = "resourcemanager.taskmanager-timeout"
    shown = succeeded("cluster", "update", *TARGET, "-D", f"{key}=47 s", "--dry-run")
    assert f"  {key}: not set -> 47 s" in shown
    assert names(cluster) == earlier
    updated = succeeded("cluster", "update", *TARGET, "-D", f"{key}=47 s")
    assert "Cluster updated: orders" in updated
    assert not names(cluster) & earlier, "masters and TaskExecutors"
    assert len(names(cluster, JOB_MANAGER)) == 2 and names(cluster, TASK_EXECUTOR)
    again = succeeded("cluster", "update", *TARGET, "-D", f"{key}=47 s")
    assert "Nothing to update" in again
    shown = succeeded("cluster", "update", *TARGET, "--unset", key, "--dry-run")
    assert f"  {key}: 47 s -> not set" in shown
    runs(cluster, TARGET, job_id)
    assert "Exceptions" not in succeeded("show", *TARGET, job_id)
    succeeded("cancel", *TARGET, job_id)


@pytest.mark.long  # test_kubernetes_session.py has the commands
def test_separate_masters_serve_every_command_after_the_end_of_their_leaders(
    separate_masters: Kubernetes, tmp_path: Path
) -> None:
    cluster = separate_masters
    deployments = {name_of(each) for each in cluster.server.objects("Deployment")}
    assert deployments == {"orders", "orders-resourcemanager"}
    job_id = submitted(tmp_path / "endless.py", ENDLESS)
    runs(cluster, TARGET, job_id)

    leader = leader_of(cluster, "dispatcher")
    delete(cluster, leader)
    eventually(lambda: leader_of(cluster, "dispatcher") not in ("", leader), cluster.logs)
    before = transitions(cluster)
    cluster.kubelet.kill(leader_of(cluster, "resourcemanager"))
    eventually(lambda: transitions(cluster) > before, cluster.logs)
    runs(cluster, TARGET, job_id)
    assert "#0  " in succeeded("show", *TARGET, job_id), "the task has not restarted"

    scaled = succeeded("scale", *TARGET, job_id, "--parallelism", "2")
    assert ": 1 -> 2" in scaled
    runs(cluster, TARGET, job_id)
    assert "parallelism 2 " in succeeded("show", *TARGET, job_id)
    assert "Savepoint completed." in succeeded("savepoint", *TARGET, job_id)
    assert "Savepoint completed." in succeeded("stop", *TARGET, job_id)
    assert f"{job_id} : endless (FINISHED)" in succeeded("list", "-a", *TARGET)
    succeeded("cluster", "stop", *TARGET)
    assert not cluster.left()


def assert_a_broken_image_changes_nothing(cluster: Kubernetes) -> None:
    cluster.kubelet.break_image("firesteel:2")
    earlier = names(cluster)
    options = ("-D", "kubernetes.container.image.ref=firesteel:2")
    patience = ("-D", "kubernetes.client.start-timeout=3 s")
    failed = firesteel("cluster", "update", *TARGET, *options, *patience)
    assert failed.returncode == 1, failed.stdout + failed.stderr
    assert f"  kubernetes.container.image.ref: {IMAGE} -> firesteel:2" in failed.stdout
    assert "was not updated, because a new pod of its masters is not ready" in failed.stderr
    assert "the image firesteel:2 of its pod: ErrImagePull" in failed.stderr
    eventually(lambda: names(cluster) == earlier, cluster.logs)
    assert "firesteel:2" not in str(cluster.server.objects("Deployment"))
    assert "firesteel:2" not in str(cluster.server.objects("ConfigMap"))


def transitions(cluster: Kubernetes) -> int:
    (lease,) = (
        each
        for each in cluster.server.objects("Lease")
        if name_of(each) == "orders-resourcemanager"
    )
    return int(lease["spec"]["leaseTransitions"])
