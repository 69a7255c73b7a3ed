"""Measures the memory and the CPU time of each process of a cluster, for the requests and limits of
pods: `python -m benchmarks.sizing`.

A cluster with one TaskExecutor starts and becomes idle; then it runs Nexmark's q5 on generated
bids. A row has the memory of the processes of one role with their children, pages that processes
share divided among them (PSS), when they are idle and the maximum under load, and the CPU time
until they are idle.
"""

from __future__ import annotations

import contextlib
import os
import platform
import sys
import threading
from collections.abc import Iterator
from typing import Any
from urllib.error import HTTPError
from urllib.request import urlopen

import psutil

from benchmarks.nexmark.data import NEXMARK
from benchmarks.nexmark.programs import QUERIES, bids_of_generator
from benchmarks.peers.memory import wait_until_idle
from benchmarks.peers.run_firesteel import configuration
from firesteel import Environment
from firesteel.client.cluster import LocalCluster
from firesteel.client.cluster.directory import ClusterDirectory
from firesteel.connectors import DiscardSink

BIDS = 10_000_000
INTERVAL_S = 0.5
# By the module that a process runs; the first that fits.
_ROLES = {
    "taskexecutor.executor": "slot",
    "taskexecutor": "TaskExecutor",
    "dispatcher.rest": "REST server",
    "dispatcher": "Dispatcher",
    "resourcemanager": "ResourceManager",
    "jobmaster": "JobMaster",
    "firesteel.client.cluster": "supervisor",
}


def role_of(process: psutil.Process) -> str:
    """Returns the role of a process; empty if it has that of its parent."""
    command = process.cmdline()
    module = command[command.index("-m") + 1] if "-m" in command[:-1] else ""
    found = (role for name, role in _ROLES.items() if f"{module}.".startswith(f"{name}."))
    return next(found, "")


def roles(root: psutil.Process, above: str = "") -> Iterator[tuple[str, psutil.Process]]:
    """Yields all descendants with their roles."""
    for child in root.children():
        with contextlib.suppress(psutil.NoSuchProcess):
            role = role_of(child) or above
            yield role, child
            yield from roles(child, role)


def measured() -> dict[str, tuple[float, float]]:
    """Returns the proportional memory in MB and the CPU time in seconds by role."""
    found: dict[str, tuple[float, float]] = {}
    for role, process in roles(psutil.Process()):
        with contextlib.suppress(psutil.NoSuchProcess):
            memory_mb = process.memory_full_info().pss / 1e6
            cpu_s = sum(process.cpu_times()[:2])
            before = found.get(role, (0.0, 0.0))
            found[role] = (before[0] + memory_mb, before[1] + cpu_s)
    return found


def measure(slots: int, bids: int) -> list[dict[str, Any]]:
    done = threading.Event()
    highest: dict[str, float] = {}

    def watch() -> None:
        while not done.wait(INTERVAL_S):
            for role, (memory_mb, _) in measured().items():
                highest[role] = max(highest.get(role, 0.0), memory_mb)

    with LocalCluster(configuration(), task_executors=1, slots=slots) as cluster:
        cluster.wait_for_slots()
        state = ClusterDirectory(cluster.directory).read()
        with contextlib.suppress(HTTPError), urlopen(f"http://{state.rest_address}/"):
            pass  # the first request starts the REST server
        wait_until_idle([process for _, process in roles(psutil.Process())])
        idle = measured()
        env = Environment(parallelism=slots)
        QUERIES["q5"](bids_of_generator(env, NEXMARK, bids)).sink_to(DiscardSink())
        client = cluster.client()
        watcher = threading.Thread(target=watch)
        watcher.start()
        try:
            client.wait(client.submit(env.job_graph("q5")))
        finally:
            done.set()
            watcher.join()
    return [
        {
            "slots": slots,
            "role": role,
            "idle_mb": round(idle.get(role, (0.0, 0.0))[0]),
            "highest_mb": round(highest[role]),
            "start_cpu_s": round(idle.get(role, (0.0, 0.0))[1], 1),
        }
        for role in sorted(highest)
    ]


def main() -> None:
    bids = int(sys.argv[1]) if sys.argv[1:] else BIDS
    print(f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores, {bids:,} bids")
    for slots in (1, 2):
        for row in measure(slots, bids):
            print(row, flush=True)


if __name__ == "__main__":
    main()
