"""A session cluster on Kubernetes, from the command line."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from firesteel.kubernetes.pods.labels import TASK_EXECUTOR
from tests.waiting import eventually

from .conftest import ROOT, firesteel
from .kubernetes_clusters import kubernetes

TARGET = ("-t", "kubernetes-session")
FINITE = """
from firesteel import Environment

env = Environment(parallelism=1)
env.from_collection([{"x": number} for number in range(3)]).print()
env.execute("finite")
"""
ENDLESS = """
import sys
from firesteel import Environment
from firesteel.connectors import DiscardSink, SequenceSource

env = Environment(parallelism=1)
env.from_source(SequenceSource(0, rate_per_s=100)).sink_to(DiscardSink())
env.execute("endless")
"""


def succeeded(*arguments: str) -> str:
    ran = firesteel(*arguments)
    assert ran.returncode == 0, f"{arguments}\n{ran.stdout}{ran.stderr}"
    return ran.stdout + ran.stderr


def test_a_session_cluster_runs_jobs_until_it_is_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    values = {
        "taskmanager.numberOfTaskSlots": "1",
        "taskmanager.memory.process.size": "1 gb",
        "execution.checkpointing.interval": "1 s",
        "execution.checkpointing.dir": str(tmp_path / "checkpoints"),
        "execution.checkpointing.savepoint-dir": str(tmp_path / "savepoints"),
        "security.enabled": "false",  # for the page of the dashboard; others use TLS
    }
    finite, endless = tmp_path / "finite.py", tmp_path / "endless.py"
    finite.write_text(FINITE)
    endless.write_text(ENDLESS)
    with kubernetes(tmp_path, monkeypatch, values) as cluster:
        started = succeeded("cluster", "start", *TARGET, "--task-executors", "1")
        assert "Cluster started: orders in namespace default" in started
        assert f"firesteel run {' '.join(TARGET)} -D kubernetes.cluster-id=orders" in started
        again = firesteel("cluster", "start", *TARGET)
        assert again.returncode == 1 and "the cluster orders" in again.stderr
        assert len(cluster.pods(TASK_EXECUTOR)) == 1, "the cluster is untouched"

        ran = succeeded("run", *TARGET, "--output", str(finite))
        assert "{'x': 2}" in ran and "job FINISHED" in ran
        submitted = succeeded("run", *TARGET, "-d", str(endless))
        found = re.search(r"Job has been submitted with JobID (\w{32})", submitted)
        assert found is not None
        job_id = found[1]
        eventually(lambda: f"{job_id} : endless (RUNNING)" in succeeded("list", *TARGET), "it runs")
        everything = succeeded("list", "-a", "-m", "kubernetes://default/orders")
        assert ": finite (FINISHED)" in everything, "the address is the same cluster"
        assert "endless" in succeeded("show", *TARGET, "endless")
        logs = succeeded("logs", *TARGET, "endless")
        assert "dispatcher" in logs and "jobmaster" in logs
        eventually(
            lambda: f'job submitted" job_id={job_id}' in cluster.kubelet.log(cluster.master),
            "`kubectl logs` shows what the Dispatcher writes",
        )
        eventually(lambda: "RUNNING  127." in succeeded("show", *TARGET, job_id), "its task runs")
        assert "Savepoint completed." in succeeded("savepoint", *TARGET, job_id)
        assert list((tmp_path / "savepoints").glob("savepoint-*/_metadata"))
        status = succeeded("cluster", "status", *TARGET)
        assert "orders-taskexecutor-" in status and "Slots: 0 free of 1" in status
        assert "ResourceManager leads" in status
        assert_dashboard_is_served()
        assert f"Cancelled job {job_id}." in succeeded("cancel", *TARGET, job_id)

        assert "Cluster stopped" in succeeded("cluster", "stop", *TARGET)
        assert not cluster.left()
        gone = firesteel("list", *TARGET)
        assert gone.returncode == 1 and "there is no cluster orders" in gone.stderr


def assert_dashboard_is_served() -> None:
    """The command forwards a port until Ctrl-C."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    process = subprocess.Popen(
        [sys.executable, "-m", "firesteel", "dashboard", *TARGET, "--no-open"],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        process_group=0,
    )
    signal.signal(signal.SIGINT, before)
    with process:
        try:
            assert process.stdout is not None
            url = process.stdout.readline().strip()
            assert url.startswith("http://127.0.0.1:"), url
            with urllib.request.urlopen(url, timeout=60) as page:
                assert b"<html" in page.read()
            process.send_signal(signal.SIGINT)
            assert process.wait() == 0
        finally:
            process.kill()
