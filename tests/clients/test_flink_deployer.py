"""Flink's own client deploys clusters on Kubernetes with the image of Firesteel."""

from __future__ import annotations

import base64
import os
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tests.clients import packages
from tests.kubernetes import names
from tests.kubernetes.api_server import ApiServer
from tests.kubernetes.containers import Image
from tests.kubernetes.kubelet import Kubelet
from tests.waiting import PATIENCE_S, eventually

pytestmark = pytest.mark.clients

ROOT = Path(__file__).parents[2]
IMAGE = ROOT / "deploy" / "image"
JOB = """
import sys
from pathlib import Path
from firesteel import Environment
from firesteel.connectors import FileSink

env = Environment()
env.from_sequence(1, int(sys.argv[2])).sink_to(FileSink(sys.argv[1], "csv"))
env.execute("counted")
"""
ENDLESS = """
from firesteel import Environment
from firesteel.connectors import SequenceSource

env = Environment()
env.from_source(SequenceSource(0, 10**12, rate_per_s=10)).print()
env.execute("endless")
"""
NAMESPACE = "firesteel"
CLIENT = {  # the pod in which Flink's client would run
    "metadata": {"name": "client", "namespace": NAMESPACE},
    "status": {"podIP": "127.0.0.1"},
}
OPTIONS = {
    "kubernetes.cluster-id": "orders",
    "kubernetes.namespace": NAMESPACE,
    "kubernetes.container.image.ref": "firesteel:1",
    "kubernetes.service-account": "flink",
    "taskmanager.numberOfTaskSlots": "1",
    "kubernetes.application.retention": "1 s",
    "security.enabled": "false",
    "security.insecure-listen": "true",
}


def definitions(**options: str) -> list[str]:
    return [f"-D{key}={value}" for key, value in (OPTIONS | options).items()]


def rows(folder: Path) -> int:
    return sum(len(path.read_text().splitlines()) for path in folder.glob("[!._]*"))


def logs(server: ApiServer) -> str:
    """Returns the logs of all pods, for errors."""
    found = (server.directory / "pods").rglob("*.log")
    return "\n".join(f"{path}:\n{path.read_text()}" for path in found)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ApiServer]:
    with (
        ApiServer(tmp_path, namespaces=(NAMESPACE,)) as server,
        Kubelet(server, tmp_path / "pods") as kubelet,
    ):
        programs = f"{Path(sys.executable).parent}:{IMAGE / 'bin'}:{os.environ['PATH']}"
        kubelet.add_image(
            "firesteel:1",
            Image(
                environment={"PATH": programs, "FLINK_CONF_DIR": "/opt/flink/conf"},
                programs={"/docker-entrypoint.sh": IMAGE / "docker-entrypoint.sh"},
            ),
        )
        kubelet.node.environment |= {
            "PYTHONPATH": str(ROOT),
            "XDG_CACHE_HOME": str(Path.home() / ".cache"),
        }
        kubectl = [packages.kubectl(), "--kubeconfig", server.kubeconfig]
        account = ("apply", "-n", NAMESPACE, "-f", ROOT / "deploy/kubernetes/flink.yaml")
        subprocess.run([*kubectl, *account], check=True)
        yield server


def flink(server: ApiServer, script: str, *arguments: str | Path) -> str:
    """Runs a command of Flink's distribution inside the cluster; returns its output. Fails if the
    command does.
    """
    hosts = server.directory / "hosts"
    names.write(hosts, names.hosts(server.store, CLIENT))
    done = subprocess.run(
        [*names.command_with(hosts), "bash", packages.flink_home() / "bin" / script, *arguments],
        env={**os.environ, "KUBECONFIG": str(server.kubeconfig)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def test_flink_runs_an_application(server: ApiServer, clients: None, tmp_path: Path) -> None:
    program, output = tmp_path / "job.py", tmp_path / "rows"
    program.write_text(JOB)
    target = ("run", "-t", "kubernetes-application", *definitions())
    printed = flink(server, "flink", *target, f"local://{program}", output, "1000")
    assert "application cluster orders successfully" in printed
    eventually(
        lambda: rows(output) == 1000,
        lambda: f"{rows(output)} rows\n{logs(server)}",
        patience_s=3 * PATIENCE_S,
    )
    eventually(lambda: not server.objects("Deployment"), lambda: logs(server))
    eventually(lambda: not server.objects("Pod"), "the pods are deleted with it")
    assert {o["metadata"]["name"] for o in server.objects("ConfigMap")} == set()


def test_flink_runs_a_secured_application(server: ApiServer, clients: None, tmp_path: Path) -> None:
    program, output = tmp_path / "job.py", tmp_path / "rows"
    program.write_text(JOB)
    conf = {"kubernetes.cluster-id": "orders", "kubernetes.namespace": NAMESPACE}
    named = [part for key, value in conf.items() for part in ("-D", f"{key}={value}")]
    made = subprocess.run(
        [Path(sys.executable).parent / "firesteel", "cluster", "secrets", *named],
        env={**os.environ, "KUBECONFIG": str(server.kubeconfig), "HOME": str(tmp_path)},
        stdout=subprocess.PIPE,
        check=True,
    ).stdout
    kubectl = [packages.kubectl(), "--kubeconfig", server.kubeconfig, "apply", "-f", "-"]
    subprocess.run(kubectl, input=made, check=True)
    secured = {
        "security.enabled": "true",
        "security.tls": "always",  # the addresses of pods are loopback addresses here
        "security.directory": str(keys_of_masters(tmp_path / "keys", made)),
    }
    target = ("run", "-t", "kubernetes-application", *definitions(**secured))
    flink(server, "flink", *target, f"local://{program}", output, "1000")
    eventually(
        lambda: rows(output) == 1000,
        lambda: f"{rows(output)} rows\n{logs(server)}",
        patience_s=3 * PATIENCE_S,
    )
    eventually(lambda: not server.objects("Pod"), lambda: logs(server))


def keys_of_masters(folder: Path, secrets: bytes) -> Path:
    """Writes the Secret of the masters where a pod template would mount it. Returns the folder."""
    folder.mkdir()
    (found,) = (
        each for each in yaml.safe_load_all(secrets) if each["metadata"]["name"] == "orders-masters"
    )
    for name, content in found["data"].items():
        (folder / name).write_bytes(base64.b64decode(content))
        (folder / name).chmod(0o440)
    return folder


def test_flink_starts_lists_and_cancels_on_a_session_cluster(
    server: ApiServer, clients: None, tmp_path: Path
) -> None:
    flink(server, "kubernetes-session.sh", *definitions())
    eventually(lambda: bool(ready(server)), lambda: logs(server))
    (address,) = ready(server)
    program = tmp_path / "job.py"
    program.write_text(ENDLESS)
    run = ("run", "-d", "-m", f"{address}:6123", "-D", "security.enabled=false", program)
    firesteel = [Path(sys.executable).parent / "firesteel", *run]
    submitted = subprocess.run(firesteel, capture_output=True, text=True, check=False)
    assert submitted.returncode == 0, submitted.stderr
    (job_id,) = re.findall("JobID ([0-9a-f]{32})", submitted.stdout)
    target = ("-t", "kubernetes-session", *definitions())
    listed = f"{job_id} : endless (RUNNING)"
    eventually(lambda: listed in flink(server, "flink", "list", *target), lambda: logs(server))
    assert f"Cancelled job {job_id}" in flink(server, "flink", "cancel", *target, job_id)
    assert f"{job_id} : endless (CANCELED)" in flink(server, "flink", "list", "-a", *target)
    stop = ("delete", "deployment", "orders", "-n", NAMESPACE)
    subprocess.run([packages.kubectl(), "--kubeconfig", server.kubeconfig, *stop], check=True)
    eventually(lambda: not server.objects("Pod"), "the pods are deleted with it")


def ready(server: ApiServer) -> list[str]:
    """Returns the address of the masters, once the Dispatcher listens."""
    found = []
    for pod in server.objects("Pod"):
        address = pod["status"].get("podIP", "")
        with socket.socket() as tried:
            if address and tried.connect_ex((address, 6123)) == 0:
                found.append(address)
    return found
