"""Measures the driver of Kubernetes: 1,000 pods requested together, and the replacement of a
killed one.

The API server of the tests runs in another process, over TLS, without a scheduler and kubelets. It
counts the requests, and notes their times with the clock of this machine. All options that limit
requests have their defaults: at most 100 pods are created per second. A killed pod's status becomes
Failed; the time ends when the request for its replacement arrives, so it includes the watch, the
verdict and the wait for the log, which this API server does not have.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import shutil
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import structlog

from firesteel.common.config import Configuration, options
from firesteel.common.ids import Epoch
from firesteel.kubernetes.access.kubeconfig import from_kubeconfig
from resourcemanager.core.events import (
    PreviousWorkersFound,
    WorkerEvent,
    WorkerExited,
    WorkerId,
    WorkerStarted,
)
from resourcemanager.kubernetes.driver import KubernetesDriver
from resourcemanager.kubernetes.settings import kubernetes_settings

PODS = 1_000
KILLED = 20
CALLS_GOAL = 1.1
CPU_GOAL_S = 5.0
LAST_GOAL_S = 15.0
REPLACED_GOAL_MS = 200.0
PATIENCE_S = 120.0


# ------------------------------------------------------------ the API server's process


class Requests(list[str]):
    """The requests with the times of their arrival."""

    def __init__(self) -> None:
        super().__init__()
        self.times_s: list[float] = []

    def append(self, request: str) -> None:
        super().append(request)
        self.times_s.append(time.monotonic())


def serve(directory: Path) -> None:
    """Prints the path of the kubeconfig, and then answers commands with a line of JSON each."""
    from tests.kubernetes.api_server import ApiServer
    from tests.kubernetes.kinds import BY_NAME

    with ApiServer(directory) as server:
        server.faults.controllers_stopped = True
        server.requests = requests = Requests()
        print(server.kubeconfig, flush=True)
        for line in sys.stdin:
            match line.split():
                case ["requests"]:
                    last = [
                        t
                        for t, r in zip(requests.times_s, requests, strict=True)
                        if r == "create pods"
                    ]
                    answer = {"counts": Counter(requests), "last_create_s": max(last, default=0.0)}
                    print(json.dumps(answer), flush=True)
                case ["kill", name]:
                    killed_s = time.monotonic()

                    def fail(registry: Any, name: str = name) -> None:
                        pod = registry.get(BY_NAME["Pod"], "default", name)
                        status = pod["status"] | {"phase": "Failed"}
                        registry.set_status(BY_NAME["Pod"], pod, status)

                    server.act(fail)
                    print(json.dumps({"killed_s": killed_s}), flush=True)


class Server:
    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    async def line(self) -> str:
        assert self._process.stdout is not None
        async with asyncio.timeout(PATIENCE_S):
            return (await self._process.stdout.readline()).decode().strip()

    async def call(self, command: str) -> dict[str, Any]:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{command}\n".encode())
        await self._process.stdin.drain()
        answer: dict[str, Any] = json.loads(await self.line())
        return answer


@contextlib.asynccontextmanager
async def api_server(directory: Path) -> AsyncIterator[tuple[Server, Path]]:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "benchmarks.kubernetes", str(directory)),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    server = Server(process)
    try:
        yield server, Path(await server.line())
    finally:
        assert process.stdin is not None
        process.stdin.close()
        await process.wait()


# ------------------------------------------------------------ the driver's process


class Events:
    """The events of the driver. Dead workers are replaced immediately."""

    def __init__(self, driver: KubernetesDriver) -> None:
        self._driver = driver
        self.known = asyncio.Event()
        self.all_started = asyncio.Event()
        self.replaced = asyncio.Event()
        self.started = 0
        self._numbered = 0

    def request(self) -> None:
        self._numbered += 1
        self._driver.request_worker(WorkerId(f"worker-{self._numbered}"))

    def post(self, event: WorkerEvent) -> None:
        match event:
            case PreviousWorkersFound():
                self.known.set()
            case WorkerStarted():
                self.started += 1
                if self.started == PODS:
                    self.all_started.set()
                elif self.started > PODS:
                    self.replaced.set()
            case WorkerExited():
                self.request()
            case _:
                pass


async def measure(directory: Path) -> dict[str, Any]:
    conf = Configuration(
        {
            options.KUBERNETES_CLUSTER_ID.key: "bench",
            options.KUBERNETES_IMAGE.key: "firesteel:1",
            options.KUBERNETES_OWNER.key: "none",
            options.TASK_SLOTS.key: "1",
            options.MAX_SLOTS.key: str(2 * PODS),
        }
    )
    async with api_server(directory) as (server, kubeconfig):
        driver = KubernetesDriver(
            kubernetes_settings(conf, initial_workers=0),
            from_kubeconfig([kubeconfig]),
            directory=directory,
        )
        events = Events(driver)
        driver.start("rm:6124", events.post, Epoch(1))
        async with asyncio.timeout(PATIENCE_S):
            await events.known.wait()
            began_s, cpu_s = time.monotonic(), time.process_time()
            for _ in range(PODS):
                events.request()
            await events.all_started.wait()
        cpu_s = time.process_time() - cpu_s
        seen = await server.call("requests")
        replaced_ms = []
        for number in range(1, KILLED + 1):
            events.replaced.clear()
            killed = await server.call(f"kill bench-taskexecutor-1-{number}")
            async with asyncio.timeout(PATIENCE_S):
                await events.replaced.wait()
            last_s = (await server.call("requests"))["last_create_s"]
            replaced_ms.append((last_s - killed["killed_s"]) * 1000)
        driver.core.workers.clear()  # its pods end with the API server
        driver.core.by_name.clear()
        await driver.stop()
    return {
        "calls": sum(seen["counts"].values()) / PODS,
        "counts": seen["counts"],
        "cpu_s": cpu_s,
        "last_s": seen["last_create_s"] - began_s,
        "replaced_ms": sorted(replaced_ms),
    }


def run() -> list[dict[str, Any]]:
    # Not a line per pod.
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    directory = Path(tempfile.mkdtemp())
    try:
        found = asyncio.run(measure(directory))
    finally:
        structlog.reset_defaults()
        shutil.rmtree(directory, ignore_errors=True)
    replaced_ms = found["replaced_ms"]
    worst_ms = replaced_ms[-1]
    return [
        {
            "name": f"calls of the API per pod, {PODS:,} pods requested together",
            "ours": round(found["calls"], 3),
            "unit": f"calls (last request after {found['last_s']:.2f} s,"
            f" {found['cpu_s']:.2f} s of CPU)",
            "peers": {},
            "ratio": None,
            "goal": f"<= {CALLS_GOAL:g} ({LAST_GOAL_S:g} s, {CPU_GOAL_S:g} s of CPU)",
            "met": found["calls"] <= CALLS_GOAL
            and found["last_s"] <= LAST_GOAL_S
            and found["cpu_s"] <= CPU_GOAL_S,
        },
        {
            "name": "pod killed until its replacement is requested",
            "ours": round(statistics.median(replaced_ms), 1),
            "unit": f"ms median of {KILLED} (worst {worst_ms:.1f})",
            "peers": {},
            "ratio": None,
            "goal": f"<= {REPLACED_GOAL_MS:g} ms",
            "met": statistics.median(replaced_ms) <= REPLACED_GOAL_MS,
        },
    ]


if __name__ == "__main__":
    if len(sys.argv) > 1:
        serve(Path(sys.argv[1]))
    else:
        for row in run():
            print(row)
