"""Measures a job submitted to a warm session cluster: the time from submit() to the first details
with all tasks RUNNING.

The cluster has real processes, as `firesteel cluster start` starts them: 2 TaskExecutors of 2
slots. The job (source -> key_by -> map -> sink, parallelism 2, so four tasks in two slots) is
endless; otherwise its tasks might be FINISHED before they are seen RUNNING. It is cancelled; the
next is submitted when all slots are free again and the Dispatcher has had time to start another
spare JobMaster.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa

from firesteel import Environment
from firesteel.client.client import Client
from firesteel.client.cluster import LocalCluster
from firesteel.client.job_details import Attempt, JobDetails
from firesteel.common.config import Configuration, options
from firesteel.common.states import ExecutionState

TASK_EXECUTORS = 2
SLOTS = 2
JOBS = 10
GOAL_MS = 200
PAUSE_S = 2.0
TIMEOUT_S = 60.0


def nothing(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Drops all rows, so that their number does not matter."""
    for batch in batches:
        yield batch.slice(0, 0)


def job(number: int) -> Any:
    env = Environment(parallelism=2)
    env.from_sequence(0, 10**15).key_by("value").map_in_arrow(nothing, name="Map").print()
    return env.job_graph(f"submit {number}")


def attempts(details: JobDetails) -> list[Attempt]:
    return [
        attempt
        for vertex in details.vertices
        for subtask in vertex.subtasks
        if (attempt := subtask.current)
    ]


def all_running(details: JobDetails) -> bool:
    current = attempts(details)
    return bool(current) and all(attempt.state is ExecutionState.RUNNING for attempt in current)


def measure(
    client: Client, number: int, slots: int = TASK_EXECUTORS * SLOTS
) -> tuple[float, JobDetails]:
    """Returns the milliseconds until all tasks were seen RUNNING, and the details at that time.
    Then cancels the job, and waits until all `slots` of the cluster are free.
    """
    graph = job(number)
    began = time.perf_counter()
    job_id = client.submit(graph)
    details = next((seen for seen in client.watch_job(job_id) if all_running(seen)), None)
    took_ms = (time.perf_counter() - began) * 1000
    if details is None:
        raise RuntimeError(
            f"job {job_id} ended before all its tasks were RUNNING:"
            f" {client.job_details(job_id).exceptions}"
        )
    client.cancel(job_id)
    for seen in client.watch_job(job_id):
        if seen.status.globally_terminal:
            break
    wait(lambda: client.cluster_overview().slots_free == slots)
    time.sleep(PAUSE_S)
    return took_ms, details


def wait(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + TIMEOUT_S
    while not condition():
        if time.monotonic() > deadline:
            raise RuntimeError("the cluster does not become idle")
        time.sleep(0.02)


def parts_ms(details: JobDetails) -> dict[str, float]:
    """Returns the time after the job's start, divided by the JobMaster's own timestamps."""
    entered = [attempt.entered_ms for attempt in attempts(details)]
    deploying = max(states[ExecutionState.DEPLOYING] for states in entered)
    running = max(states[ExecutionState.RUNNING] for states in entered)
    return {
        "slots and analysis": deploying - details.start_ms,
        "deployment and opening": running - deploying,
    }


def run() -> list[dict[str, Any]]:
    conf = Configuration.load(overrides={options.METRICS_PORT.key: "0"})
    with LocalCluster(conf, task_executors=TASK_EXECUTORS, slots=SLOTS) as cluster:
        cluster.wait_for_slots()  # until they are warm
        client = cluster.client()
        measured = [measure(client, number) for number in range(JOBS)]
    took_ms = statistics.median(took for took, _ in measured)
    parts = {
        name: statistics.median(parts_ms(details)[name] for _, details in measured)
        for name in parts_ms(measured[0][1])
    }
    shown = ", ".join(f"{name} {value:.0f}" for name, value in parts.items())
    worst_ms = max(took for took, _ in measured)
    return [
        {
            "name": "a job submitted to a warm session cluster -> all tasks RUNNING",
            "ours": round(took_ms),
            "unit": f"ms (median of {JOBS}: first {measured[0][0]:.0f}, worst {worst_ms:.0f};"
            f" in the JobMaster: {shown})",
            "peers": {},
            "ratio": None,
            "goal": f"<= {GOAL_MS} ms",
            "met": took_ms <= GOAL_MS,
        }
    ]


if __name__ == "__main__":
    for row in run():
        print(row)
