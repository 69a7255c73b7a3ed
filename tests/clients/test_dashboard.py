"""Flink's own dashboard shows jobs, tasks and processes, without an error in the browser."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.clients import packages
from tests.clients.conftest import Jobs

pytestmark = pytest.mark.clients

SCREENSHOTS = Path(os.environ.get("SCREENSHOTS", packages.ROOT / "build" / "flink-dashboard"))
BROWSE = Path(__file__).with_name("browse.py")


@pytest.fixture(scope="module")
def dashboard(jobs: Jobs, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of Flink's dashboard in front of the REST API."""
    folder = tmp_path_factory.mktemp("dashboard")
    token = folder / "token"
    token.write_text(jobs.token)
    server = subprocess.Popen(
        [
            *(sys.executable, "-m", "tests.clients.dashboard_server"),
            *(str(packages.unpack_dashboard(folder)), jobs.rest, str(token)),
        ],
        cwd=packages.ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with server:
        assert server.stdout is not None and server.stdin is not None
        yield f"http://127.0.0.1:{int(server.stdout.readline())}"
        server.stdin.close()


def test_every_page_opens_without_an_error(jobs: Jobs, dashboard: str) -> None:
    SCREENSHOTS.mkdir(parents=True, exist_ok=True)
    browsed = subprocess.run(
        [packages.PYTHON, BROWSE, packages.browser(), dashboard, SCREENSHOTS],
        input=json.dumps(pages(jobs)),
        capture_output=True,
        text=True,
        check=False,
    )
    assert browsed.returncode == 0, browsed.stderr
    assert json.loads(browsed.stdout) == {}


def pages(jobs: Jobs) -> dict[str, dict[str, Any]]:
    """The pages of the dashboard, with texts that each shows once it has its data."""
    of_job = f"/job/running/{jobs.running}"
    vertex = jobs.details(jobs.running).vertices[-1]
    drawer = f"{of_job}/overview/{vertex.vertex_id}"
    (executor,) = jobs.session.overview().task_executors
    of_executor = f"/task-manager/{executor.task_executor_id}"
    made: dict[str, tuple[str, tuple[str, ...]]] = {
        "overview": ("/overview", ("running", "failed", "restarting", "finished")),
        "running-jobs": ("/job/running", ("running", "restarting")),
        "completed-jobs": ("/job/completed", ("failed", "finished")),
        "job": (f"{of_job}/overview", ("Slow", "HASH")),
        "exceptions": (f"/job/running/{jobs.restarting}/exceptions", ("ValueError",)),
        "timeline": (f"{of_job}/timeline", ("Slow",)),
        "skew": (f"{of_job}/dataskew", ("Slow",)),
        "checkpoints": (f"{of_job}/checkpoints", ("Completed:",)),
        "configuration": (f"{of_job}/configuration", ("execution.checkpointing.interval",)),
        "rescales": (f"{of_job}/rescales", ("Rescale Counts",)),
        "vertex-detail": (f"{drawer}/detail", (vertex.name,)),
        "vertex-subtasks": (f"{drawer}/subtasks", ("RUNNING",)),
        "vertex-taskmanagers": (f"{drawer}/taskmanagers", ("RUNNING",)),
        "vertex-watermarks": (f"{drawer}/watermarks", ("Watermark",)),
        "vertex-accumulators": (f"{drawer}/accumulators", ()),
        "vertex-backpressure": (f"{drawer}/backpressure", ("OK",)),
        "vertex-metrics": (f"{drawer}/metrics", ()),
        "failed-job": (f"/job/completed/{jobs.failed}/overview", ("FAILED",)),
        "failed-exceptions": (f"/job/completed/{jobs.failed}/exceptions", ("ValueError",)),
        "finished-job": (f"/job/completed/{jobs.finished}/overview", ("FINISHED",)),
        "applications": ("/application/running", ("running",)),
        "application": (f"/application/running/{jobs.running}", ("running",)),
        "taskmanagers": ("/task-manager", (executor.address,)),
        "taskmanager": (f"{of_executor}/metrics", ("Managed Memory",)),
        "taskmanager-log": (f"{of_executor}/logs", ()),
        "taskmanager-stdout": (f"{of_executor}/stdout", ()),
        "taskmanager-logs": (f"{of_executor}/log-list", ("slot-0.log",)),
        "taskmanager-file": (f"{of_executor}/log-list/slot-0.log", ()),
        "jobmanager": ("/job-manager/metrics", ("Heap",)),
        "jobmanager-config": ("/job-manager/config", ("rest.port",)),
        "jobmanager-log": ("/job-manager/logs", ()),
        "jobmanager-stdout": ("/job-manager/stdout", ()),
        "jobmanager-logs": ("/job-manager/log", ("dispatcher.log",)),
    }
    return {name: {"path": path, "shows": shows} for name, (path, shows) in made.items()}
