"""Measures the memory of one PySpark executor, Python and JVM: idle when warm, and the maximum
under keyed aggregation.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from typing import Any

import psutil

from taskexecutor.memory import tree_memory

IDLE_GOAL_MB, BUSY_GOAL_MB = 450, 700
INTERVAL_S = 0.2
# An executor that is ready still compiles its start-up code and trims its heap; it is idle
# afterwards.
QUIET_S, QUIET_CPU_S, SETTLE_LIMIT_S = 5.0, 0.1, 120.0


def executors(root: int) -> list[psutil.Process]:
    found = []
    for process in psutil.Process(root).children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            if "taskexecutor.executor" in process.cmdline():
                found.append(process)
    return found


def resident_mb(executor: psutil.Process) -> float:
    """Returns the resident memory of the Python process and its children. Pages that slots share
    are counted in each of them, and so are pages of files, which a slot's limit excludes.
    """
    memory = tree_memory([executor.pid]).get(executor.pid)
    return 0.0 if memory is None else (memory.total + memory.files) / 1e6


def proportional_mb(executor: psutil.Process) -> float:
    """Returns the memory with shared pages divided among their processes: the cost of one more
    slot.
    """
    total = 0
    for process in (executor, *executor.children(recursive=True)):
        with contextlib.suppress(psutil.NoSuchProcess):
            total += process.memory_full_info().pss
    return total / 1e6


def wait_until_idle(processes: list[psutil.Process], quiet_cpu_s: float = QUIET_CPU_S) -> None:
    """Returns once the processes take less CPU time in QUIET_S, each on average."""
    done = threading.Event()
    limit = time.monotonic() + SETTLE_LIMIT_S
    before = float("-inf")
    while (used := sum(cpu_s(process) for process in processes)) - before > quiet_cpu_s * len(
        processes
    ):
        if time.monotonic() > limit:
            raise RuntimeError(f"the executors were not idle within {SETTLE_LIMIT_S:g} s")
        before = used
        done.wait(QUIET_S)


def cpu_s(executor: psutil.Process) -> float:
    return sum(
        sum(process.cpu_times()[:2]) for process in (executor, *executor.children(recursive=True))
    )


def executor_memory() -> dict[str, Any]:
    from benchmarks.peers.run_firesteel import SLOTS, configuration, program
    from benchmarks.peers.work import WORKS
    from firesteel import Environment
    from firesteel.client.cluster import LocalCluster
    from firesteel.connectors import DiscardSink

    load = os.getloadavg()[0]
    work = WORKS["keyed_aggregate_1k"]
    done = threading.Event()
    most = [0.0]

    def watch(processes: list[psutil.Process]) -> None:
        while not done.wait(INTERVAL_S):
            most[0] = max(most[0], *(resident_mb(process) for process in processes))

    with LocalCluster(configuration(), task_executors=1, slots=SLOTS) as cluster:
        cluster.wait_for_slots()
        found = executors(os.getpid())
        if len(found) != SLOTS:
            raise RuntimeError(f"{len(found)} executors were found, not {SLOTS}")
        wait_until_idle(found)
        idle_mb = max(resident_mb(process) for process in found)
        idle_share_mb = max(proportional_mb(process) for process in found)
        watcher = threading.Thread(target=watch, args=(found,))
        watcher.start()
        try:
            env = Environment(parallelism=SLOTS)
            program(env, work, work.rows).sink_to(DiscardSink())
            client = cluster.client()
            client.wait(client.submit(env.job_graph("memory")))
        finally:
            done.set()
            watcher.join()
    return {
        "name": "memory of one PySpark executor (Python and JVM), idle / under keyed aggregation",
        "ours": f"{idle_mb:.0f} / {most[0]:.0f}",
        "unit": f"MB resident (idle, {idle_share_mb:.0f} MB with shared pages divided;"
        f" load before {load:.1f})",
        "peers": {},
        "ratio": None,
        "goal": f"<= {IDLE_GOAL_MB} / {BUSY_GOAL_MB} MB",
        "met": idle_mb <= IDLE_GOAL_MB and most[0] <= BUSY_GOAL_MB,
    }
