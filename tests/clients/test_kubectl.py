"""kubectl drives the API server that stands in for Kubernetes in tests."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.clients import packages
from tests.kubernetes.api_server import ApiServer
from tests.kubernetes.kubelet import Kubelet

pytestmark = pytest.mark.clients

MANIFEST = """
apiVersion: apps/v1
kind: Deployment
metadata: {name: web, labels: {app: web}}
spec:
  replicas: 2
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec:
      terminationGracePeriodSeconds: 5
      containers:
      - name: main
        image: "image:1"
        command: [python, -uc, "import time; print('started'); time.sleep(3600)"]
---
apiVersion: v1
kind: ConfigMap
metadata: {name: conf}
data: {a: "1"}
---
apiVersion: v1
kind: Service
metadata: {name: web}
spec: {selector: {app: web}, ports: [{port: 8081}]}
"""


class Kubectl:
    def __init__(self, server: ApiServer, home: Path) -> None:
        self._command = packages.kubectl()
        self._environment = {
            "PATH": os.environ["PATH"],
            "HOME": str(home),
            "KUBECONFIG": str(server.kubeconfig),
        }

    def __call__(self, *arguments: str, fails: bool = False) -> str:
        """Returns the output; that of errors if the command is expected to fail."""
        done = subprocess.run(
            [self._command, *arguments],
            env=self._environment,
            capture_output=True,
            text=True,
            timeout=90,
            check=False,
        )
        assert (done.returncode != 0) == fails, done.stdout + done.stderr
        return done.stderr if fails else done.stdout


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ApiServer]:
    with ApiServer(tmp_path) as server, Kubelet(server, tmp_path / "pods"):
        yield server


@pytest.fixture
def kubectl(server: ApiServer, tmp_path: Path) -> Kubectl:
    return Kubectl(server, tmp_path)


@pytest.fixture
def manifest(tmp_path: Path) -> Path:
    path = tmp_path / "manifest.yaml"
    path.write_text(MANIFEST)
    return path


def change(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


def test_manifests_are_applied_waited_for_and_deleted(kubectl: Kubectl, manifest: Path) -> None:
    file = str(manifest)
    assert kubectl("apply", "-f", file).splitlines() == [
        "deployment.apps/web created",
        "configmap/conf created",
        "service/web created",
    ]
    assert "deployment.apps/web unchanged" in kubectl("apply", "-f", file)
    kubectl("wait", "--for=condition=Available", "deployment/web", "--timeout=60s")
    change(manifest, "replicas: 2", "replicas: 1")
    change(manifest, 'a: "1"', 'b: "2"')
    assert "configmap/conf configured" in kubectl("apply", "-f", file)
    assert kubectl("get", "configmap", "conf", "-o", "jsonpath={.data}") == '{"b":"2"}'
    rolled_out = kubectl("rollout", "status", "deployment/web", "--timeout=60s")
    assert "successfully rolled out" in rolled_out
    kubectl("delete", "-f", file)
    kubectl("wait", "--for=delete", "pod", "-l", "app=web", "--timeout=60s")
    assert kubectl("get", "pods,deployments,replicasets") == ""


def test_pods_are_listed_described_and_read(kubectl: Kubectl, manifest: Path) -> None:
    kubectl("apply", "-f", str(manifest))
    kubectl("wait", "--for=condition=Available", "deployment/web", "--timeout=60s")
    names = kubectl("get", "pods", "-l", "app=web", "-o", "name").split()
    assert len(names) == 2 and all(name.startswith("pod/web-") for name in names)
    described = kubectl("describe", names[0])
    assert "Controlled By:  ReplicaSet/web-" in described
    assert "Successfully assigned default/web-" in described
    assert kubectl("logs", names[0]) == "started\n"
    kubectl("delete", names[0])
    kubectl("scale", "deployment/web", "--replicas=0")
    kubectl("wait", "--for=delete", "pod", "-l", "app=web", "--timeout=60s")


def test_a_server_applies_manifests_with_conflicts(kubectl: Kubectl, manifest: Path) -> None:
    server_side = ("apply", "--server-side", "-f", str(manifest))
    assert "deployment.apps/web serverside-applied" in kubectl(*server_side)
    kubectl("scale", "deployment/web", "--replicas=0")
    refused = kubectl(*server_side, fails=True)
    assert 'conflict with "kubectl"' in refused and ".spec.replicas" in refused
    kubectl(*server_side, "--force-conflicts")
    assert kubectl("get", "deployment", "web", "-o", "jsonpath={.spec.replicas}") == "2"


def test_a_pod_runs_once_and_a_node_is_drained(kubectl: Kubectl) -> None:
    once = ("run", "one", "--image=image:1", "--restart=Never", "--command", "--")
    kubectl(*once, "echo", "done")
    kubectl("wait", "--for=jsonpath={.status.phase}=Succeeded", "pod/one", "--timeout=60s")
    assert kubectl("logs", "one") == "done\n"
    kubectl("drain", "node-1", "--force", "--timeout=60s")
    assert kubectl("get", "pods", "-o", "name") == ""
    assert kubectl("get", "node", "node-1", "-o", "jsonpath={.spec.unschedulable}") == "true"


def test_errors_of_the_server_are_shown(kubectl: Kubectl, server: ApiServer) -> None:
    assert 'pods "none" not found' in kubectl("get", "pod", "none", fails=True)
    server.deny("list", "secrets")
    refused = kubectl("get", "secrets", fails=True)
    assert 'cannot list resource "secrets" in API group "" in the namespace "default"' in refused
