"""A cluster whose masters and TaskExecutors are pods that run as processes, for tests."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

from firesteel.client.client import Client
from firesteel.client.kubernetes_cluster import KubernetesCluster
from firesteel.common.config import Configuration, options
from firesteel.kubernetes.client import KubernetesClient
from firesteel.kubernetes.configuration import access_of
from firesteel.kubernetes.resources import Object, resource_of
from tests.kubernetes.api_server import ApiServer
from tests.kubernetes.kinds import BY_NAME
from tests.kubernetes.kubelet import Kubelet
from tests.waiting import PATIENCE_S, eventually

ROOT = Path(__file__).parents[2]
CLUSTER_ID = "orders"


class PodCluster:
    """A session cluster with security and a job store that several masters may share."""

    def __init__(self, server: ApiServer, kubelet: Kubelet, folder: Path, values: Any) -> None:
        self.server, self.kubelet = server, kubelet
        self.conf = Configuration(
            {
                options.KUBERNETES_CONFIG_FILE.key: str(server.kubeconfig),
                options.KUBERNETES_CLUSTER_ID.key: CLUSTER_ID,
                options.KUBERNETES_IMAGE.key: "firesteel:1",
                options.DATABASE_URL.key: f"sqlite:///{folder}/jobs.db",
                options.HA_STORAGE_DIR.key: f"file://{folder}/storage",
                options.SECURITY_TLS.key: "always",  # addresses of pods are loopback addresses here
                options.TASK_SLOTS.key: "1",
                options.MAX_SLOTS.key: "4",
                options.METRICS_PORT.key: "0",
                options.KUBERNETES_TM_GRACE.key: "20 min",  # slots start slowly on a busy machine
                **values,
            }
        )
        self.kubernetes = KubernetesCluster(self.conf)

    @property
    def address(self) -> str:
        return self.kubernetes.address

    def start(self, *, task_executors: int = 0) -> None:
        """Returns when the masters lead, and this many TaskExecutors have a warm slot."""
        self.kubernetes.create(task_executors=task_executors)
        self.kubernetes.wait(print)
        with self.client() as client:
            eventually(
                lambda: client.cluster_overview().slots_warm >= task_executors,
                self.logs,
                patience_s=5 * PATIENCE_S,
            )

    def client(self) -> Client:
        return self.kubernetes.client()

    def pods(self, component: str) -> list[Object]:
        found = self.server.objects("Pod")
        return [pod for pod in found if pod["metadata"]["labels"]["component"] == component]

    def ready(self, component: str) -> int:
        """The number of pods that are ready."""
        return sum(
            condition["type"] == "Ready" and condition["status"] == "True"
            for pod in self.pods(component)
            for condition in pod["status"].get("conditions") or ()
        )

    def cordon(self, node: str) -> None:
        """Makes the node unschedulable, as `kubectl cordon` does."""

        def unschedulable(found: Object) -> Object:
            found["spec"] = (found.get("spec") or {}) | {"unschedulable": True}
            return found

        kind = BY_NAME["Node"]
        self.server.act(lambda registry: registry.patch(kind, "", node, unschedulable, "kubectl"))

    def evict(self, pod: str) -> None:
        """Evicts a pod with the eviction API, as `kubectl drain` does."""
        found = next(p for p in self.server.objects("Pod") if p["metadata"]["name"] == pod)
        self.server.act(lambda registry: self.server.evict(found, {}))

    def apply(self, manifest: Object) -> None:
        """Replaces an object, as `kubectl apply` does."""
        self._call(lambda client: client.apply(resource_of(manifest), manifest, force=True))

    def _call(self, request: Callable[[KubernetesClient], Awaitable[object]]) -> None:
        async def call() -> None:
            async with KubernetesClient(access_of(self.conf)) as client:
                await request(client)

        asyncio.run(call())

    def logs(self) -> str:
        """The logs of all pods, for failures."""
        found = []
        for pod in self.server.objects("Pod"):
            with contextlib.suppress(AssertionError, OSError):
                name = pod["metadata"]["name"]
                found.append(f"--- {name}\n{self.kubelet.log(name)[-6000:]}")
        return "\n".join(found)


@contextlib.contextmanager
def pod_cluster(
    folder: Path, *, nodes: int = 1, task_executors: int = 0, **values: str
) -> Iterator[PodCluster]:
    """Runs a cluster until the end of the block; `values` has keys with `__` in place of dots."""
    (folder / "kubernetes").mkdir(parents=True)
    names = tuple(f"node-{number + 1}" for number in range(nodes))
    with (
        ApiServer(folder / "kubernetes") as server,
        Kubelet(server, folder / "pods", nodes=names) as kubelet,
    ):
        cache = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
        kubelet.node.environment |= {"PYTHONPATH": str(ROOT), "XDG_CACHE_HOME": cache}
        kubelet.node.probe_speed = 10
        given = {key.replace("__", "."): value for key, value in values.items()}
        cluster = PodCluster(server, kubelet, folder, given)
        cluster.start(task_executors=task_executors)
        yield cluster
