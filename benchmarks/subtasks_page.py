"""Measures the pages of a job with 10,000 subtasks in headless Chromium: the time from the
navigation until the page can be used.

A process runs the real REST server in front of a Dispatcher that answers with the details of such a
job, as its JobMaster sends them. Each visit has an empty cache. The page of the job can be used
when it shows its graph and the table of vertices, and that of a vertex when it shows its subtasks;
then the browser must also have answered a frame. The details change from visit to visit, so that
the server decodes them for each.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from dispatcher.rest.gateway import Gateway
from dispatcher.rest.programs import Programs
from dispatcher.rest.server import RestServer
from firesteel._proto import (
    common_pb2,
    dispatcher_pb2,
    dispatcher_pb2_grpc,
    job_master_pb2,
    resource_manager_pb2,
)
from firesteel.common.config import Configuration
from firesteel.common.leader import FixedLeader
from firesteel.common.rpc.convert import state_number
from firesteel.common.rpc.server import bind, new_server
from firesteel.common.states import ExecutionState, JobStatus

SUBTASKS = 10_000
VISITS = 7
GOAL_MS = 300
HOST = "127.0.0.1"
JOB, SOURCE, MAP = "a" * 32, "b" * 32, "c" * 32
CHROMIUM = "chromium"
PATIENCE_MS = 60_000
# Resolves with the milliseconds since the navigation at which `selector` is shown and a frame was
# painted.
_USABLE = """selector => new Promise((resolve) => {
  const look = () => document.querySelector(selector)
    ? requestAnimationFrame(() => setTimeout(() => resolve(performance.now())))
    : requestAnimationFrame(look);
  look();
})"""


def vertex(vertex_id: str, name: str, subtasks: int, inputs: list[str]) -> Any:
    return job_master_pb2.VertexDetails(
        vertex_id=vertex_id,
        name=name,
        parallelism=subtasks,
        max_parallelism=32_768,
        slot_sharing_group="default",
        operators=[job_master_pb2.OperatorDetails(operator_id=vertex_id, name=name, kind="Map")],
        input_vertex_ids=inputs,
        input_partitioners=["HASH"] * len(inputs),
        activity=job_master_pb2.Activity(records_in=1e6, records_out=1e6, busy=0.5, idle=0.5),
        subtasks=[
            job_master_pb2.SubtaskDetails(index=index, attempts=[attempt(vertex_id, index)])
            for index in range(subtasks)
        ],
    )


def attempt(vertex_id: str, index: int) -> Any:
    return job_master_pb2.ExecutionDetails(
        attempt_id=f"{vertex_id[:4]}{index:028x}",
        state=state_number(ExecutionState.RUNNING),
        host=f"worker-{index // 8}",
        task_executor_id=f"{index // 8:032x}",
        slot_index=index % 8,
        entered_ms={state.value: 1_000 + state.value for state in list(ExecutionState)[:5]},
        metrics=common_pb2.TaskMetrics(
            attempt_id=f"{vertex_id[:4]}{index:028x}",
            records_in=index,
            records_out=2 * index,
            bytes_in=100 * index,
            bytes_out=100 * index,
            busy_ms=index % 977,
            idle_ms=500.0,
            watermark_us=1_700_000_000_000_000 + index,
        ),
    )


class Dispatcher(dispatcher_pb2_grpc.DispatcherServicer):
    def __init__(self) -> None:
        self._details = job_master_pb2.JobDetails(
            job_id=JOB,
            name="ten thousand",
            status=state_number(JobStatus.RUNNING),
            start_ms=1,
            vertices=[
                vertex(SOURCE, "Source", 1, []),
                vertex(MAP, "Map", SUBTASKS, [SOURCE]),
            ],
        )

    async def GetJobDetails(self, request: Any, context: Any) -> Any:
        return self._details

    async def GetJobSeries(self, request: Any, context: Any) -> Any:
        return job_master_pb2.JobSeries(step_ms=5_000)

    async def ListJobs(self, request: Any, context: Any) -> Any:
        return dispatcher_pb2.ListJobsResponse()

    async def GetClusterOverview(self, request: Any, context: Any) -> Any:
        return resource_manager_pb2.ClusterOverview()


async def serve() -> None:
    """Serves until standard input ends. Prints the port."""
    server = new_server([])
    dispatcher_pb2_grpc.add_DispatcherServicer_to_server(Dispatcher(), server)  # type: ignore[no-untyped-call]
    address = bind(server, HOST, 0)
    await server.start()
    directory = Path(tempfile.mkdtemp())
    gateway = Gateway(FixedLeader(address), None, cluster_name="benchmark")
    rest = RestServer(gateway, None, Programs(directory, Configuration()))
    await rest.start(socket.create_server((HOST, 0)))
    print(json.dumps(rest.address), flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    await rest.stop()
    await server.stop(grace=None)
    shutil.rmtree(directory, ignore_errors=True)


def measured_ms(address: str) -> dict[str, list[float]]:
    from playwright.sync_api import sync_playwright

    executable = shutil.which(CHROMIUM)
    if executable is None:
        raise RuntimeError(f"there is no {CHROMIUM}; install the package of Debian")
    pages = {
        "job": (f"/jobs/{JOB}", ".vertex"),
        "vertex": (f"/jobs/{JOB}/vertices/{MAP}", ".subtasks tbody tr"),
    }
    taken: dict[str, list[float]] = {name: [] for name in pages}
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=executable, args=["--no-sandbox", "--disable-gpu"]
        )
        for _ in range(VISITS):
            for name, (path, selector) in pages.items():
                context = browser.new_context(viewport={"width": 1280, "height": 800})
                page = context.new_page()
                page.set_default_timeout(PATIENCE_MS)
                page.goto(f"http://{address}/#{path}", wait_until="commit")
                taken[name].append(page.evaluate(_USABLE, selector))
                context.close()
                time.sleep(2.0)  # until the server keeps no answer
        browser.close()
    return taken


def run() -> list[dict[str, Any]]:
    with subprocess.Popen(
        [sys.executable, "-m", "benchmarks.subtasks_page"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as server:
        assert server.stdin is not None and server.stdout is not None
        try:
            taken = measured_ms(json.loads(server.stdout.readline()))
        finally:
            server.stdin.close()
    return [
        {
            "name": f"page of a {name} with {SUBTASKS:,} subtasks -> interactive",
            "ours": round(statistics.median(times_ms)),
            "unit": f"ms (median of {VISITS}: {min(times_ms):.0f} to {max(times_ms):.0f})",
            "peers": {},
            "ratio": None,
            "goal": f"<= {GOAL_MS} ms",
            "met": statistics.median(times_ms) <= GOAL_MS,
        }
        for name, times_ms in taken.items()
    ]


if __name__ == "__main__":
    asyncio.run(serve())
