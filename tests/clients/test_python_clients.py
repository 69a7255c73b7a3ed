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


TYPED_CLIENT = """
import importlib, inspect, json, pkgutil, sys
from flink_job_manager_api import AuthenticatedClient
from flink_job_manager_api.api import default

url, token, *ids = sys.argv[1:]
known = {"subtaskindex": 0, "attempt": 0}
known |= zip(("jobid", "vertexid", "taskmanagerid"), ids, strict=True)
client = AuthenticatedClient(base_url=url, token=token, timeout=60)
read, failed = [], {}
for name in (module.name for module in pkgutil.iter_modules(default.__path__)):
    call = importlib.import_module(f"{default.__name__}.{name}").sync_detailed
    needed = [
        parameter.name
        for parameter in inspect.signature(call).parameters.values()
        if parameter.default is parameter.empty and parameter.name != "client"
    ]
    if name.startswith("get_") and known.keys() >= set(needed):
        try:
            answer = call(client=client, **{each: known[each] for each in needed})
            assert answer.status_code == 200, answer.status_code
            read.append(name)
        except Exception as error:
            failed[name] = f"{type(error).__name__}: {error}"
print(json.dumps({"read": read, "failed": failed}))
"""

# Calls that the client, which is generated for Flink 1.20, does not understand of Flink either: it
# takes lists for objects, and its enums are in upper case.
NOT_UNDERSTOOD = {
    "get_checkpoint_config",
    "get_job_details",
    "get_job_manager_metrics",
    "get_job_metrics",
    "get_job_vertex_flame_graph",
    "get_job_vertex_metrics",
    "get_job_vertex_watermarks",
    "get_subtask_metrics",
    "get_task_manager_metrics",
}
# Routes that Firesteel does not serve.
NOT_SERVED = {
    "get_cluster_data_set_list",
    "get_job_manager_log_url",
    "get_job_manager_operator_metrics",
    "get_task_manager_log_url",
}


def test_a_client_generated_from_flinks_description_finds_all_fields(jobs: Jobs) -> None:
    vertex = jobs.details(jobs.running).vertices[-1].vertex_id
    (executor,) = jobs.session.overview().task_executors
    called = run(
        TYPED_CLIENT, jobs.rest, jobs.token, jobs.running, vertex, executor.task_executor_id
    )
    assert called["failed"].keys() <= NOT_UNDERSTOOD | NOT_SERVED, called["failed"]
    assert len(called["read"]) >= 34
