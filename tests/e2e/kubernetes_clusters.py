"""An API server and a kubelet on which `firesteel` deploys clusters: their pods are processes."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import yaml

from firesteel import Environment
from firesteel.client.client import Client
from firesteel.common.config import Configuration
from firesteel.common.ids import JobId
from firesteel.kubernetes.pods.labels import COMPONENT_LABEL, JOB_MANAGER
from firesteel.kubernetes.resources import Object, name_of
from firesteel.program import Program
from tests.kubernetes.api_server import ApiServer
from tests.kubernetes.kubelet import Kubelet

from .conftest import ROOT

IMAGE = "firesteel:1"
CLUSTER_ID = "orders"
CONFIGURATION = {
    "kubernetes.cluster-id": CLUSTER_ID,
    "kubernetes.container.image.ref": IMAGE,
    "kubernetes.client.start-timeout": "5 min",
    "high-availability.kubernetes.leader-election.lease-duration": "10 s",
    "high-availability.kubernetes.leader-election.renew-deadline": "8 s",
    "high-availability.kubernetes.leader-election.retry-period": "1 s",
    "taskmanager.numberOfTaskSlots": "2",
    "taskmanager.memory.process.size": "2 gb",
    "metrics.reporter.prom.port": "0",
    # Addresses of pods are not loopback in a cluster.
    "security.tls": "always",
}


@dataclass(frozen=True, slots=True)
class Kubernetes:
    server: ApiServer
    kubelet: Kubelet
    conf: Configuration

    def pods(self, component: str = "") -> list[Object]:
        return [
            pod
            for pod in self.server.objects("Pod")
            if component in ("", pod["metadata"]["labels"].get(COMPONENT_LABEL))
        ]

    @property
    def master(self) -> str:
        (pod,) = self.pods(JOB_MANAGER)
        return name_of(pod)

    def left(self) -> list[str]:
        """Returns the objects of clusters that exist."""
        kinds = ("Deployment", "ReplicaSet", "Pod", "Service", "ConfigMap", "Secret", "Lease")
        kinds += ("Role", "RoleBinding", "NetworkPolicy", "PodDisruptionBudget")
        return [f"{kind} {name_of(each)}" for kind in kinds for each in self.server.objects(kind)]

    def logs(self) -> str:
        return "\n".join(f"--- {name_of(p)}\n{self.kubelet.log(name_of(p))}" for p in self.pods())


@contextlib.contextmanager
def kubernetes(
    directory: Path, patch: pytest.MonkeyPatch, values: Mapping[str, str] | None = None
) -> Iterator[Kubernetes]:
    """`firesteel` uses it through KUBECONFIG, with CONFIGURATION and `values` as its config.yaml."""
    configuration, home, files = (directory / name for name in ("conf", "home", "kubernetes"))
    for folder in (configuration, home, files):
        folder.mkdir()
    given = CONFIGURATION | dict(values or {})
    (configuration / "config.yaml").write_text(yaml.safe_dump(given))
    with ApiServer(files) as server, Kubelet(server, directory / "pods") as kubelet:
        cache = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
        kubelet.node.environment |= {"PYTHONPATH": str(ROOT), "XDG_CACHE_HOME": cache}
        kubelet.node.probe_speed = 10
        patch.setenv("KUBECONFIG", str(server.kubeconfig))
        patch.setenv("FIRESTEEL_CONF_DIR", str(configuration))
        patch.setenv("HOME", str(home))  # of the credentials of clients
        yield Kubernetes(server, kubelet, Configuration.load())


class ApplicationSession:
    """Submits one job, as a `Session` does."""

    def __init__(self, client: Client, job_id: str) -> None:
        self.client = client
        self._job_id = JobId(job_id)

    def submit(self, env: Environment | Program, name: str = "job", **overrides: str) -> str:
        given = {key.replace("__", "."): value for key, value in overrides.items()}
        graph = env.job_graph(name, overrides=given)
        return self.client.submit(replace(graph, job_id=self._job_id))
