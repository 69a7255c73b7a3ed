"""The steps of docs/how-to/kubernetes-guide.md work and print what the page shows, with Helm,
kubectl, masters, TaskExecutors and S3, on an API server of the tests.
"""

from __future__ import annotations

import base64
import os
import ssl
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tests.clients import packages
from tests.e2e.test_tutorial import Command, File, missing, steps
from tests.kubernetes.api_server import ApiServer
from tests.kubernetes.kubelet import Kubelet
from tests.object_store import ACCESS_KEY, SECRET_KEY, ObjectStore
from tests.waiting import PATIENCE_S, eventually

pytestmark = pytest.mark.clients

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "how-to" / "kubernetes-guide.md"
REPEATED = ("firesteel list", "kubectl get", "firesteel savepoint")  # until the job runs


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ApiServer]:
    with ApiServer(tmp_path) as server, Kubelet(server, tmp_path / "pods") as kubelet:
        kubelet.node.environment |= {
            "PYTHONPATH": str(ROOT),
            "XDG_CACHE_HOME": str(Path.home() / ".cache"),
        }
        yield server


class Machine:
    """The machine of the reader: a folder with the files of the page, beside the repository."""

    def __init__(self, folder: Path, server: ApiServer, store: ObjectStore) -> None:
        self._folder = folder
        self._store = store
        folder.mkdir()
        (folder / "deploy").symlink_to(ROOT / "deploy")
        programs = (packages.helm().parent, packages.kubectl().parent, Path(sys.executable).parent)
        self._environment = {
            "PATH": ":".join([*map(str, programs), os.environ["PATH"]]),
            "HOME": str(folder),
            "KUBECONFIG": str(server.kubeconfig),
        }

    def write(self, file: File) -> None:
        path = self._folder / file.name
        path.parent.mkdir(exist_ok=True)
        text = file.text
        if file.name == "values.yaml":  # addresses of pods are loopback addresses here
            text += "  security.tls: always\n"
        elif file.name == "orders/config.yaml":
            secrets = {"s3.access-key": ACCESS_KEY, "s3.secret-key": SECRET_KEY}
            values = yaml.safe_load(text) | secrets | {"s3.endpoint": self._store.endpoint}
            text = yaml.safe_dump(values)
        path.write_text(text)

    def logs(self) -> str:
        found = (self._folder.parent / "pods").rglob("*.log")
        return "\n".join(f"{path}:\n{path.read_text()}" for path in found)

    def run(self, line: str) -> str:
        if line.startswith("export "):
            name, _, value = line.removeprefix("export ").partition("=")
            self._environment[name] = value
            return ""
        done = subprocess.run(
            ["bash", "-o", "pipefail", "-c", line],
            cwd=self._folder,
            env=self._environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0 or line.startswith(REPEATED), (line, done.stdout, done.stderr)
        return done.stdout + done.stderr


def test_every_step_of_the_guide_works(server: ApiServer, clients: None, tmp_path: Path) -> None:
    with ObjectStore() as store:
        machine = Machine(tmp_path / "machine", server, store)
        for step in steps(PAGE):
            match step:
                case File():
                    machine.write(step)
                case Command():
                    check(machine, step)
                    if step.line.startswith("firesteel savepoint"):
                        check_metrics(server, tmp_path)
    assert not server.objects("Deployment")
    eventually(lambda: not server.objects("Pod"), "the pods are deleted")


def check(machine: Machine, command: Command) -> None:
    printed = [machine.run(command.line)]

    def is_printed() -> bool:
        if not missing(command.output, printed[0]):
            return True
        if command.line.startswith(REPEATED):
            printed[0] = machine.run(command.line)
        return not missing(command.output, printed[0])

    patience_s = 3 * PATIENCE_S if command.line.startswith(REPEATED) else 1.0
    eventually(
        is_printed,
        lambda: f"{command.line} prints it: {printed[0]}\n{machine.logs()}",
        patience_s=patience_s,
    )


def check_metrics(server: ApiServer, folder: Path) -> None:
    """Reads the metrics of all pods with the Secret that the ServiceMonitor names."""
    (secret,) = (
        each for each in server.objects("Secret") if each["metadata"]["name"] == "orders-metrics"
    )
    for name, content in secret["data"].items():
        (folder / name).write_bytes(base64.b64decode(content))
    context = ssl.create_default_context(cafile=folder / "authority.pem")
    context.load_cert_chain(folder / "metrics.pem", folder / "metrics.key")
    token = (folder / "metrics.token").read_text().strip()
    found = {}
    for pod in server.objects("Pod"):
        url = f"https://{pod['status']['podIP']}:9249/metrics"
        request = urllib.request.Request(url, headers={"Authorization": f"Bearer {token}"})
        with urllib.request.urlopen(request, context=context) as answer:
            found[pod["metadata"]["labels"]["component"]] = answer.read().decode()
    assert "flink_jobmanager_Status" in found["jobmanager"]
    assert "flink_taskmanager_job_task_numRecordsOut" in found["taskexecutor"]
