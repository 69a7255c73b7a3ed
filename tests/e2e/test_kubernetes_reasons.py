"""The exceptions of a job say why Kubernetes ended its pods."""

from __future__ import annotations

from pathlib import Path

from firesteel import Environment
from firesteel.connectors import DiscardSink
from firesteel.kubernetes.pods.labels import TASK_EXECUTOR
from tests.kubernetes.pod_cluster import pod_cluster
from tests.waiting import PATIENCE_S, eventually

from .conftest import Session, running
from .jobs import unhurried


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


def test_the_reason_of_an_oom_kill_and_of_an_eviction(tmp_path: Path) -> None:
    with pod_cluster(tmp_path / "cluster", task_executors=1) as cluster:
        session = Session(cluster)  # type: ignore[arg-type]
        job_id = session.submit(program(tmp_path / "checkpoints"))

        def explained(reason: str) -> str:
            """Waits for a failure whose error has this reason; returns the error."""
            summaries: list[str] = []

            def found() -> bool:
                exceptions = session.client.job_details(job_id).exceptions
                summaries[:] = [each.summary for each in exceptions if reason in each.summary]
                return bool(summaries)

            eventually(found, cluster.logs, patience_s=3 * PATIENCE_S)
            return summaries[0]

        session.wait_until(job_id, running)
        (pod,) = cluster.pods(TASK_EXECUTOR)
        name = pod["metadata"]["name"]
        limit = pod["spec"]["containers"][0]["resources"]["limits"]["memory"]
        cluster.kubelet.oom_kill(name)
        text = explained(f"it reached its memory limit of {limit} (OOMKilled)")
        assert f"its pod {name} was killed by the kernel on node node-1" in text
        assert "The last lines of its log:\n" in text
        session.wait_until(job_id, running)
        (pod,) = cluster.pods(TASK_EXECUTOR)
        cluster.kubelet.evict(pod["metadata"]["name"])
        text = explained("was evicted from node node-1")
        assert "The node was low on resource: memory" in text
        session.wait_until(job_id, running)
        session.client.cancel(job_id)
        session.client.close()
