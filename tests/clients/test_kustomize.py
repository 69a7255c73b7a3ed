"""Clusters that `kubectl apply -k` creates from overlays of deploy/kubernetes run jobs."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from scripts.kubernetes_manifests import FOLDER, NAMESPACE, PROGRAM, objects_of
from tests.clients import packages
from tests.kubernetes.api_server import ApiServer
from tests.kubernetes.kubelet import Kubelet
from tests.waiting import PATIENCE_S, eventually

pytestmark = pytest.mark.clients

ROOT = Path(__file__).parents[2]
COUNT = """
import sys
from firesteel import Environment
from firesteel.connectors import FileSink

env = Environment()
env.from_sequence(0, 1000).sink_to(FileSink(sys.argv[1], "csv"))
env.execute("counted")
"""
ENDLESS = """
from firesteel import Environment
from firesteel.connectors import SequenceSource

env = Environment()
env.from_source(SequenceSource(0, 10**12, rate_per_s=10)).print()
env.execute("endless")
"""


class Machine:
    """The machine of a user, who has an overlay of one of the clusters."""

    def __init__(self, server: ApiServer, folder: Path) -> None:
        self.server = server
        self.folder = folder
        folder.mkdir()
        programs = (packages.kubectl().parent, Path(sys.executable).parent)
        self._environment = {
            "PATH": ":".join([*map(str, programs), os.environ["PATH"]]),
            "HOME": str(folder),
            "KUBECONFIG": str(server.kubeconfig),
            "FIRESTEEL_CONF_DIR": str(folder / "client"),
        }

    def write_overlay(self, name: str, values: dict[str, str], patches: list[Any]) -> None:
        """`values` are added to the configuration of the cluster."""
        config = yaml.safe_load((FOLDER / name / "config.yaml").read_text()) | values
        (self.folder / "config.yaml").write_text(yaml.safe_dump(config))
        map_ = {"name": "firesteel-config", "behavior": "replace", "files": ["config.yaml"]}
        patch = {"target": {"kind": "Deployment"}, "patch": yaml.safe_dump(patches)}
        kustomization = {
            "resources": [os.path.relpath(FOLDER / name, self.folder)],
            "configMapGenerator": [map_],
            "patches": [patch] if patches else [],
        }
        (self.folder / "kustomization.yaml").write_text(yaml.safe_dump(kustomization))

    def write_client(self, **secrets: str) -> None:
        """Writes the configuration of the user's commands; the names of `secrets` have `__` in
        place of dots.
        """
        (self.folder / "client").mkdir()
        values = {key.replace("__", "."): value for key, value in secrets.items()}
        values |= {"kubernetes.cluster-id": "firesteel", "kubernetes.namespace": NAMESPACE}
        (self.folder / "client" / "config.yaml").write_text(yaml.safe_dump(values))

    def run(self, line: str) -> str:
        done = subprocess.run(
            ["bash", "-o", "pipefail", "-c", line],
            cwd=self.folder,
            env=self._environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, (line, done.stdout, done.stderr, self.logs())
        return done.stdout + done.stderr

    def start(self) -> None:
        self.run("firesteel cluster secrets | kubectl apply -f -")
        self.run("kubectl apply -k .")

    def logs(self) -> str:
        found = (self.server.directory / "pods").rglob("*.log")
        return "\n".join(f"{path}:\n{path.read_text()}" for path in found)


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    with (
        ApiServer(tmp_path, namespaces=(NAMESPACE,)) as server,
        Kubelet(server, tmp_path / "pods") as kubelet,
    ):
        kubelet.node.environment |= {
            "PYTHONPATH": str(ROOT),
            "XDG_CACHE_HOME": str(Path.home() / ".cache"),
        }
        yield Machine(server, tmp_path / "machine")


SECURED = {"security.tls": "always"}  # addresses of pods are loopback addresses here


@pytest.fixture
def files() -> Iterator[Path]:
    """A folder that pods see, unlike those in /tmp."""
    with tempfile.TemporaryDirectory(dir="/var/tmp") as folder:
        yield Path(folder)


def test_an_application_finishes(machine: Machine, clients: None, files: Path) -> None:
    program, output = files / "count.py", files / "rows"
    program.write_text(COUNT)
    deployment = objects_of("application")["Deployment", "firesteel"]
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    place = container["args"].index(PROGRAM.program)
    arguments = "/spec/template/spec/containers/0/args"
    patches = [
        {"op": "replace", "path": f"{arguments}/{place}", "value": str(program)},
        {"op": "add", "path": f"{arguments}/-", "value": str(output)},
    ]
    retention = {"kubernetes.application.retention": "1 s", "taskmanager.numberOfTaskSlots": "1"}
    machine.write_overlay("application", SECURED | retention, patches)
    machine.write_client()
    machine.start()
    eventually(
        lambda: not machine.server.objects("Deployment"), machine.logs, patience_s=3 * PATIENCE_S
    )
    rows = [line for path in output.glob("part-*") for line in path.read_text().splitlines()]
    assert sorted(map(int, rows[1:])) == list(range(1000))
    eventually(lambda: not machine.server.objects("Pod"), "the pods are deleted")


def test_a_standby_takes_over_jobs(machine: Machine, clients: None, files: Path) -> None:
    stored = {
        "high-availability.storageDir": f"file://{files}/storage",
        "execution.checkpointing.dir": f"file://{files}/checkpoints",
        "execution.checkpointing.interval": "1 s",
        "taskmanager.numberOfTaskSlots": "1",
    }
    machine.write_overlay("high-availability", SECURED | stored, [])
    machine.write_client(database__url=f"sqlite:///{files}/jobs.db")
    machine.start()
    machine.run("kubectl rollout status deployment/firesteel -n firesteel --timeout=120s")
    (machine.folder / "job.py").write_text(ENDLESS)
    target = "-t kubernetes-session"
    submitted = machine.run(f"firesteel run {target} -d job.py")
    (job_id,) = re.findall("JobID ([0-9a-f]{32})", submitted)
    running = f"{job_id} : endless (RUNNING)"
    eventually(lambda: running in machine.run(f"firesteel list {target}"), machine.logs)
    before = leader(machine)
    machine.run(f"kubectl delete -n firesteel pod/{before}")
    eventually(lambda: leader(machine) not in ("", before), machine.logs)
    eventually(lambda: running in machine.run(f"firesteel list {target}"), machine.logs)
    machine.run(f"firesteel cancel {target} {job_id}")
    machine.run("kubectl delete -k .")
    eventually(lambda: not machine.server.objects("Pod"), "the pods are deleted")


def leader(machine: Machine) -> str:
    """Returns the name of the pod whose Dispatcher leads; empty if it is gone."""
    (lease,) = (
        each
        for each in machine.server.objects("Lease")
        if each["metadata"]["name"] == "firesteel-dispatcher"
    )
    announced = str(lease["metadata"].get("annotations"))  # with the leader's address
    pods = machine.server.objects("Pod")
    found = (p["metadata"]["name"] for p in pods if f"{p['status'].get('podIP')}:" in announced)
    return next(found, "")
