"""Masters and TaskExecutors in pods, with keys from Secrets and connections over TLS."""

from __future__ import annotations

from pathlib import Path

from firesteel import Environment
from firesteel.connectors import CollectSink
from tests.kubernetes.pod_cluster import pod_cluster


def test_a_job_runs_in_pods_with_keys_from_secrets(tmp_path: Path) -> None:
    with pod_cluster(tmp_path) as cluster, cluster.client() as client:
        env = Environment(parallelism=2)
        rows = env.from_collection([{"n": n} for n in range(10)]).key_by("n")
        rows.aggregate("count(*) AS count").sink_to(CollectSink(), uid="counts")
        details = client.wait(client.submit(env.job_graph("secured")))
        assert details.status.name == "FINISHED", details.exceptions
        pods = cluster.pods("taskexecutor")
        assert len(pods) == 2, "rows are exchanged between pods"
        shown = str(pods + cluster.pods("jobmanager") + cluster.server.objects("ConfigMap"))
        assert "jobs.db" not in shown, "the address of the job store is a secret"
        for folder in (tmp_path / "pods").glob("*/root/etc/firesteel-security"):
            files = {path.name for path in folder.iterdir()}
            assert "admin.token" not in files
            if (folder / "holder").read_text() == "taskexecutors":
                assert not files & {"authority.key", "tokens.key"}
        folder = tmp_path / "pods" / pods[0]["metadata"]["uid"] / "root/etc/firesteel-security"
        assert (folder / "taskexecutors.key").stat().st_mode & 0o777 == 0o440
