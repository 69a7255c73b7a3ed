"""Measures the REST API: the latency of GET /jobs/overview under load, and what viewers of a job
cost the masters.

The overview lists 1,000 ended jobs, at 200 requests per second over 16 connections. A latency
counts from the moment at which the request was due, so that a request that waits for others counts
with its waiting time.

Each viewer polls a job every two seconds, as the dashboard does: its details, and its last hour.
The cost is the CPU time of the Dispatcher and the JobMaster, with 500 viewers and with one.
"""

from __future__ import annotations

import asyncio
import shutil
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import aiohttp
import psutil

from dispatcher.core.records import JobAdded, JobEnded
from dispatcher.job_store import JobStore
from firesteel import Environment
from firesteel.client.cluster import LocalCluster
from firesteel.common.config import Configuration, options
from firesteel.common.ids import JobId
from firesteel.common.security.client import ClientSecurity
from firesteel.common.states import ExecutionState, JobStatus
from firesteel.connectors import DiscardSink, SequenceSource

JOBS = 1_000
RATE_PER_S = 200
CONNECTIONS = 16
LOAD_S = 15.0
GOAL_MS = 20.0
VIEWERS = 500
POLL_S = 2.0
WATCHED_S = 20.0
GOAL_PERCENT = 1.0
ROWS_PER_S = 1_000


@contextmanager
def cluster(directory: Path, **counts: int) -> Iterator[LocalCluster]:
    overrides = {options.METRICS_PORT.key: "0", options.JOB_HISTORY.key: str(JOBS)}
    conf = Configuration.load(overrides=overrides)
    with LocalCluster(conf, directory=directory, **counts) as running:
        yield running


def add_ended_jobs(directory: Path) -> None:
    store = JobStore(JobStore.sqlite_url(directory))
    graph_id = store.put_graph(b"")
    for number in range(JOBS):
        job_id = JobId(f"{number:032x}")
        store.persist(
            [
                JobAdded(job_id=job_id, name=f"job {number}", graph_id=graph_id, start_ms=number),
                JobEnded(job_id=job_id, status=JobStatus.FINISHED, end_ms=number + 1),
            ]
        )
    store.close()


def session(running: LocalCluster) -> aiohttp.ClientSession:
    address = running.client().dashboard_url().rstrip("/")
    token = ClientSecurity(running.conf).token()
    return aiohttp.ClientSession(
        address,
        headers={"Authorization": f"Bearer {token}"},
        connector=aiohttp.TCPConnector(limit=0),
    )


async def read(client: aiohttp.ClientSession, path: str) -> None:
    async with client.get(path) as answer:
        body = await answer.read()
        if answer.status != 200:
            raise RuntimeError(f"GET {path} was answered {answer.status}: {body[:200]!r}")


async def latencies_ms(running: LocalCluster) -> list[float]:
    taken_ms: list[float] = []
    async with session(running) as client:
        await read(client, "/jobs/overview")  # starts the REST process
        began = time.perf_counter()

        async def connection(first: int) -> None:
            for number in range(first, int(RATE_PER_S * LOAD_S), CONNECTIONS):
                due = began + number / RATE_PER_S
                await asyncio.sleep(max(0.0, due - time.perf_counter()))
                await read(client, "/jobs/overview")
                taken_ms.append((time.perf_counter() - due) * 1000)

        await asyncio.gather(*map(connection, range(CONNECTIONS)))
    return sorted(taken_ms)


def masters(running: LocalCluster) -> list[psutil.Process]:
    """The Dispatcher and the JobMasters."""
    of_cluster = (str(running.directory), running.address)
    return [
        process
        for process in psutil.process_iter()
        if {"dispatcher", "jobmaster"} & set((argv := _argv(process))[2:4])
        and any(name in argv for name in of_cluster)
    ]


def _argv(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:
        return []


async def cost_percent(running: LocalCluster, job_id: str, viewers: int) -> float:
    """Returns the percentage of a core that the masters use."""
    job = f"/firesteel/v1/jobs/{job_id}"
    stopping = asyncio.Event()

    async with session(running) as client:

        async def viewer(number: int) -> None:
            await asyncio.sleep(POLL_S * number / viewers)
            while not stopping.is_set():
                await read(client, job)
                await read(client, f"{job}/series?points=200")
                await asyncio.sleep(POLL_S)

        await read(client, job)  # starts the REST process
        watching = [asyncio.create_task(viewer(number)) for number in range(viewers)]
        await asyncio.sleep(POLL_S + 1)
        processes, began = masters(running), time.monotonic()
        before_s = cpu_s(processes)
        await asyncio.sleep(WATCHED_S)
        percent = (cpu_s(processes) - before_s) / (time.monotonic() - began) * 100
        stopping.set()
        await asyncio.gather(*watching)
    return percent


def cpu_s(processes: Sequence[psutil.Process]) -> float:
    return sum(sum(process.cpu_times()[:2]) for process in processes)


def watched_job(running: LocalCluster) -> str:
    env = Environment(parallelism=1)
    env.from_source(SequenceSource(0, rate_per_s=ROWS_PER_S)).sink_to(DiscardSink())
    client = running.client()
    job_id = client.submit(env.job_graph("watched"))
    for details in client.watch_job(job_id):
        if set(details.states) == {ExecutionState.RUNNING}:
            break
    return job_id


def run() -> list[dict[str, Any]]:
    directory = Path(tempfile.mkdtemp())
    try:
        add_ended_jobs(directory)
        with cluster(directory, task_executors=0) as running:
            taken_ms = asyncio.run(latencies_ms(running))
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    directory = Path(tempfile.mkdtemp())
    try:
        with cluster(directory, task_executors=1, slots=1) as running:
            running.wait_for_slots()
            job_id = watched_job(running)
            one = asyncio.run(cost_percent(running, job_id, 1))
            many = asyncio.run(cost_percent(running, job_id, VIEWERS))
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    median_ms, p99_ms = taken_ms[len(taken_ms) // 2], taken_ms[int(len(taken_ms) * 0.99)]
    return [
        {
            "name": f"GET /jobs/overview with {JOBS:,} jobs at {RATE_PER_S} requests/s",
            "ours": round(p99_ms, 1),
            "unit": f"ms p99 (median {median_ms:.1f}, worst {taken_ms[-1]:.1f})",
            "peers": {},
            "ratio": None,
            "goal": f"<= {GOAL_MS:g} ms",
            "met": p99_ms <= GOAL_MS,
        },
        {
            "name": f"CPU of Dispatcher and JobMaster: {VIEWERS} viewers of a job, above one",
            "ours": round(many - one, 2),
            "unit": f"% of a core (one viewer {one:.2f}, {VIEWERS} viewers {many:.2f})",
            "peers": {},
            "ratio": None,
            "goal": f"<= {GOAL_PERCENT:g} %",
            "met": many - one <= GOAL_PERCENT,
        },
    ]


if __name__ == "__main__":
    for row in run():
        print(row)
