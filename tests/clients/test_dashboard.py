"""Flink's own dashboard shows jobs, tasks and processes, without an error in the browser."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

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


def pages(jobs: Jobs) -> dict[str, dict[str, Sequence[str]]]:
    """The pages of the dashboard: each shows these texts once it has its data."""
    of_job = f"/job/running/{jobs.running}"
    vertex = jobs.details(jobs.running).vertices[-1]
    drawer = f"{of_job}/overview/{vertex.vertex_id}"
    (executor,) = jobs.session.overview().task_executors
    of_executor = f"/task-manager/{executor.task_executor_id}"
    shows: dict[str, tuple[str, ...]] = {
        "/overview": ("running", "failed", "restarting", "finished"),
        "/job/running": ("running", "restarting"),
        "/job/completed": ("failed", "finished"),
        f"{of_job}/overview": ("REBALANCE", "HASH", r"Busy \(max\): \d"),
        f"/job/running/{jobs.restarting}/overview": ("Failing", "RESTARTING"),
        f"/job/running/{jobs.restarting}/exceptions": ("ValueError",),
        f"{of_job}/timeline": ("Vertex TimeLine",),
        f"{of_job}/dataskew": ("Slow",),
        f"{of_job}/checkpoints": ("Completed:", "unaligned checkpoint", r"/chk-\d"),
        f"{of_job}/configuration": ("execution.checkpointing.interval",),
        f"{of_job}/rescales": ("Rescale Counts",),
        f"{drawer}/detail": (re.escape(vertex.name),),
        f"{drawer}/subtasks": ("RUNNING",),
        f"{drawer}/taskmanagers": ("RUNNING",),
        f"{drawer}/watermarks": ("1970-01-01",),
        f"{drawer}/accumulators": ("Vertex Accumulators",),
        f"{drawer}/backpressure": ("OK",),
        f"{drawer}/flamegraph": ("Measurement:",),
        f"{drawer}/metrics": ("Add Metric",),
        f"/job/completed/{jobs.failed}/overview": ("FAILED",),
        f"/job/completed/{jobs.failed}/exceptions": ("ValueError",),
        f"/job/completed/{jobs.finished}/overview": ("FINISHED",),
        "/application/running": ("running",),
        "/application/completed": ("failed",),
        f"/application/running/{jobs.running}": ("running",),
        f"/application/completed/{jobs.failed}/exceptions": ("ValueError",),
        "/task-manager": (re.escape(executor.address),),
        f"{of_executor}/metrics": ("Managed Memory", r"\d MB / "),
        f"{of_executor}/logs": ("timestamp",),
        f"{of_executor}/stdout": ("value",),
        f"{of_executor}/log-list": ("slot-0.log",),
        f"{of_executor}/log-list/slot-0.log": ("timestamp",),
        f"{of_executor}/thread-dump": ("MainThread",),
        "/job-manager/metrics": ("Heap",),
        "/job-manager/config": ("rest.port",),
        "/job-manager/logs": ("timestamp",),
        "/job-manager/stdout": ("Stdout",),
        "/job-manager/log": ("dispatcher.log",),
        "/job-manager/log/dispatcher.log": ("timestamp",),
        "/job-manager/thread-dump": ("MainThread",),
    }
    known = {jobs.running: "running", jobs.restarting: "restarting", jobs.failed: "failed"}
    known |= {jobs.finished: "finished", vertex.vertex_id: "vertex"}
    known |= {executor.task_executor_id: "one"}
    made = {}
    for path, texts in shows.items():
        name = "-".join(known.get(part, part) for part in path.strip("/").split("/"))
        made[name] = {"path": path, "click": (), "shows": texts}
    history = made["job-running-restarting-exceptions"]
    made["exception-history"] = {
        **history,
        "click": ("Exception History",),
        "shows": (executor.task_executor_id,),
    }
    checkpoints = made["job-running-running-checkpoints"]
    for tab, text in (
        ("History", "COMPLETED"),
        ("Summary", "Maximum"),
        ("Configuration", "Exactly Once"),
    ):
        made[f"checkpoints-{tab.lower()}"] = {**checkpoints, "click": (tab,), "shows": (text,)}
    return made
