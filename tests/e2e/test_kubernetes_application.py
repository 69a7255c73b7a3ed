"""Application clusters on Kubernetes: one job, after which nothing is left."""

from __future__ import annotations

from pathlib import Path

import pytest

from firesteel.client.kubernetes_cluster import KubernetesCluster
from firesteel.errors import ClusterUnreachable
from firesteel.kubernetes.cluster import Application
from firesteel.kubernetes.cluster.deployed import Outcome
from firesteel.kubernetes.resources import name_of
from tests.waiting import PATIENCE_S, eventually

from .conftest import firesteel
from .exactly_once import exactly_once_job
from .kubernetes_clusters import ApplicationSession, kubernetes
from .test_adoption import attempts
from .test_kubernetes_masters import runs
from .test_kubernetes_session import ENDLESS, succeeded

TARGET = ("-t", "kubernetes-application")
ONE_SLOT = {"taskmanager.numberOfTaskSlots": "1", "taskmanager.memory.process.size": "1 gb"}
FAILING = """
from firesteel import Environment

def broken(batches):
    raise ValueError("no such price")

env = Environment(parallelism=1)
env.from_collection([{"x": 1}]).map_in_arrow(broken).print()
env.execute("failing")
"""
SOURCE = {"component": "firesteel"}
PROGRAM = """
import sys
from firesteel import Environment

env = Environment(parallelism=1)
env.from_collection([{"x": number} for number in range(int(sys.argv[1]))]).print()
env.execute("numbers")
"""


def test_a_program_of_the_image_runs_and_its_cluster_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "numbers.py"
    program.write_text(PROGRAM)
    with kubernetes(tmp_path, monkeypatch, ONE_SLOT) as cluster:
        store = f"database.url=sqlite:///{tmp_path}/jobs.db"
        storage = f"high-availability.storageDir={tmp_path}/storage"
        shared = ("-D", store, "-D", storage)
        ran = firesteel("run", *TARGET, *shared, f"local://{program}", "3")
        assert ran.returncode == 0, ran.stdout + ran.stderr
        assert ran.stdout.count("{'x': ") == 3, "its output is shown"
        assert "Job has been submitted with JobID" in ran.stdout
        assert "job FINISHED" in ran.stderr
        assert "is deleted" in ran.stderr
        assert not cluster.left()
        again = firesteel("run", *TARGET, *shared, f"local://{program}", "3")
        assert again.returncode == 1
        assert "which is FINISHED, and it is not run again" in again.stderr
        eventually(lambda: not cluster.left(), lambda: f"all is deleted: {cluster.left()}")
        failed = firesteel("run", *TARGET, f"local://{program}", "three")
        assert failed.returncode == 1
        assert "invalid literal for int() with base 10: 'three'" in failed.stderr
        assert not cluster.left()
        program.write_text(FAILING)
        failed = firesteel("run", *TARGET, "-D", "restart-strategy.type=none", str(program))
        assert failed.returncode == 1
        assert 'raise ValueError("no such price")' in failed.stderr, "the frames of user code"
        assert f"job {KubernetesCluster(cluster.conf).job_id} (failing) failed" in failed.stderr
        assert not cluster.left()


@pytest.mark.long  # test_kubernetes_pods.py kills pods under such a job
def test_a_job_survives_the_death_of_its_master_and_runs_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, postgres: str
) -> None:
    values = {"kubernetes.application.retention": "15 s"}
    job_folder = tmp_path / "job"
    job_folder.mkdir()
    with kubernetes(tmp_path, monkeypatch, values) as cluster:
        deployed = KubernetesCluster(cluster.conf)
        deployed.create(Application())
        said: list[str] = []
        deployed.wait(said.append)
        with deployed.client() as client:
            session = ApplicationSession(client, deployed.job_id)
            with exactly_once_job(session, job_folder, postgres) as job:  # type: ignore[arg-type]
                job.progress("the start")
                before = attempts(client.job_details(job.job_id))
                cluster.kubelet.kill(cluster.master)
                job.progress("the death of the master")

                def resumed() -> bool:
                    try:
                        return attempts(client.job_details(job.job_id)) == before
                    except ClusterUnreachable:
                        return False

                eventually(resumed, cluster.logs, patience_s=PATIENCE_S)
                assert [each.job_id for each in client.list_jobs()] == [deployed.job_id]
            assert [each.job_id for each in client.list_jobs()] == [deployed.job_id]
        eventually(deployed.outcome, "the master records the outcome")
        assert deployed.outcome() == Outcome(status="FINISHED")
        eventually(lambda: not cluster.left(), lambda: f"it deletes itself: {cluster.left()}")
        (event,) = [e for e in cluster.server.objects("Event") if e["reason"] == "JobEnded"]
        assert event["message"] == "FINISHED"


def test_a_cluster_whose_client_has_disappeared_deletes_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    values = {
        "kubernetes.masters": "separate",
        "kubernetes.application.submission-timeout": "1 s",
        "kubernetes.application.retention": "0 s",
    }
    with kubernetes(tmp_path, monkeypatch, values) as cluster:
        KubernetesCluster(cluster.conf).create(Application())
        eventually(lambda: not cluster.left(), cluster.logs)
        (event,) = [e for e in cluster.server.objects("Event") if e["source"] == SOURCE]
        assert event["reason"] == "ApplicationFailed"
        assert "no client has submitted the job in time" in event["message"]


@pytest.mark.long  # test_kubernetes_session.py has the commands
def test_every_command_serves_the_job_of_an_application_cluster(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    values = ONE_SLOT | {
        "kubernetes.application.retention": "1 s",
        "execution.checkpointing.interval": "1 s",
        "execution.checkpointing.dir": str(tmp_path / "checkpoints"),
        "execution.checkpointing.savepoint-dir": str(tmp_path / "savepoints"),
        "database.url": f"sqlite:///{tmp_path}/jobs.db",
        "high-availability.storageDir": str(tmp_path / "storage"),
    }
    program = tmp_path / "endless.py"
    program.write_text(ENDLESS)
    with kubernetes(tmp_path, monkeypatch, values) as cluster:
        job_id = KubernetesCluster(cluster.conf).job_id
        submitted = succeeded("run", *TARGET, "-d", str(program))
        assert f"Job has been submitted with JobID {job_id}" in submitted
        runs(cluster, TARGET, job_id)
        assert ": 1 -> 2" in succeeded("scale", *TARGET, "endless", "--parallelism", "2")
        assert "parallelism 2 " in succeeded("show", *TARGET, job_id)
        assert "Savepoint completed." in succeeded("savepoint", *TARGET, job_id)
        earlier = {name_of(pod) for pod in cluster.pods()}
        updated = succeeded("cluster", "update", *TARGET, "-D", "slot.idle.timeout=47 s")
        assert "Cluster updated: orders" in updated
        assert not earlier & {name_of(pod) for pod in cluster.pods()}, "all are replaced"
        runs(cluster, TARGET, job_id)
        assert "Savepoint completed." in succeeded("stop", *TARGET, job_id)
        assert len(list((tmp_path / "savepoints").glob("savepoint-*/_metadata"))) == 2
        eventually(lambda: not cluster.left(), lambda: f"it deletes itself: {cluster.left()}")
