"""Clients of Flink's REST API on PyPI."""

from __future__ import annotations

import json
import subprocess
from typing import Any

import pytest

from tests.clients import packages
from tests.clients.conftest import Jobs

pytestmark = pytest.mark.clients


def run(program: str, *arguments: str) -> Any:
    """Runs a program in the environment of the clients; returns the JSON that it prints."""
    done = subprocess.run(
        [packages.PYTHON, "-c", program, *arguments], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


REST_CLIENT = """
import json, sys, requests
from flink_rest_client import FlinkRestClient

host, port, token, job_id = sys.argv[1:]
# The client has no option for headers.
own = requests.Session.request
def request(session, method, url, **given):
    given["headers"] = {**(given.get("headers") or {}), "Authorization": f"Bearer {token}"}
    return own(session, method, url, **given)
requests.Session.request = request

client = FlinkRestClient.get(host=host, port=int(port))
vertex = client.jobs.get_vertex(job_id, client.jobs.get_vertex_ids(job_id)[0])
executor = client.taskmanagers.all()[0]["id"]
print(json.dumps({
    "overview": client.overview(),
    "jobs": client.jobs.all(),
    "vertex": vertex.details(),
    "back_pressure": vertex.backpressure(),
    "metrics": vertex.metrics(),
    "config": client.jobs.get_config(job_id),
    "checkpoints": client.jobs.get_checkpoints(job_id)["counts"],
    "executor": client.taskmanagers.get(executor),
    "executor_metrics": client.taskmanagers.metrics(),
    "manager": client.jobmanager.metrics(),
}))
"""


def test_flink_rest_client_reads_jobs_vertices_and_processes(jobs: Jobs) -> None:
    host, _, port = jobs.rest.removeprefix("http://").partition(":")
    read = run(REST_CLIENT, host, port, jobs.token, jobs.running)
    assert read["overview"]["jobs-running"] >= 1
    assert {job["id"] for job in read["jobs"]} >= {jobs.running, jobs.failed, jobs.finished}
    assert read["vertex"]["subtasks"][0]["status"] == "RUNNING"
    assert read["back_pressure"]["status"] == "ok"
    assert read["checkpoints"]["completed"] > 0
    assert read["executor"]["slotsNumber"] == 4
