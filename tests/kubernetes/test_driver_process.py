"""A ResourceManager's process whose TaskExecutors are pods."""

from __future__ import annotations

import asyncio
import re
import sys
from pathlib import Path

from firesteel.common.config import options
from tests.kubernetes.api_server import ApiServer
from tests.kubernetes.kubelet import Kubelet
from tests.waiting import until

ROOT = Path(__file__).parents[2]


async def test_task_executors_in_pods_register_and_are_replaced(
    api_server: ApiServer, tmp_path: Path
) -> None:
    log_path = tmp_path / "rm.log"
    values = {
        options.KUBERNETES_CLUSTER_ID.key: "orders",
        options.KUBERNETES_IMAGE.key: "firesteel:1",
        options.KUBERNETES_CONFIG_FILE.key: str(api_server.kubeconfig),
        options.KUBERNETES_OWNER.key: "none",
        options.SECURITY_ENABLED.key: "false",
        options.TASK_SLOTS.key: "1",
        options.METRICS_PORT.key: "0",
    }
    given = [part for key, value in values.items() for part in ("-D", f"{key}={value}")]

    def registered() -> int:
        return len(re.findall("TaskExecutor registered", log_path.read_text()))

    with Kubelet(api_server, tmp_path / "pods") as kubelet, log_path.open("wb") as log:
        kubelet.node.environment["PYTHONPATH"] = str(ROOT)
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "resourcemanager", "--driver", "kubernetes"),
            *("--dir", str(tmp_path / "rm"), "--task-executors", "1", *given),
            cwd=ROOT,
            stdout=log,
            stderr=log,
        )
        try:
            await until(lambda: registered() == 1, log_path.read_text)
            (pod,) = api_server.objects("Pod")
            await until(
                lambda: all(c["ready"] for c in containers(api_server)), "its probes succeed"
            )
            kubelet.oom_kill(pod["metadata"]["name"])
            await until(lambda: registered() == 2, log_path.read_text)
            assert "(OOMKilled)" in log_path.read_text()
        finally:
            process.terminate()
            assert await process.wait() == 0
        await until(lambda: not api_server.objects("Pod"), "they end with the ResourceManager")


def containers(api_server: ApiServer) -> list[dict[str, object]]:
    pods = api_server.objects("Pod")
    return [status for pod in pods for status in pod["status"].get("containerStatuses") or ()]
