"""The time until a failed job continues from its latest checkpoint.

The job reads 1,000 numbers per second, has Spark work on them, counts them by key and drops them;
four tasks in two of the four slots of two TaskExecutors. It takes a checkpoint every second, and
restarts without a delay.

* A function raises: until the JobMaster has seen all tasks of the next attempt RUNNING.
* kill -9 of a process in a slot, or of a TaskExecutor with all of its slots: until all tasks of the
  next attempt are RUNNING, and until rows have come to the last function of every subtask. Before
  the next kill, all slots are warm again.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import psutil

from benchmarks.checkpoints import jobs
from benchmarks.checkpoints.functions import FAIL, FAILED, FIRST, Seen
from firesteel import Environment
from firesteel.client.client import Client
from firesteel.client.job_details import JobDetails
from firesteel.common.states import ExecutionState
from firesteel.connectors import DiscardSink, SequenceSource

TASK_EXECUTORS = SLOTS = PARALLELISM = 2
FAILURES = 25
KILLS = 15
TASK_EXECUTOR_KILLS = 6
RUNNING_GOAL_MS = 300
PROCESS_GOAL_MS = 500
TASK_EXECUTOR_GOAL_MS = 1_000
OUTPUT_GOAL_MS = 2_000

Victim = Callable[[Client, JobDetails], psutil.Process]  # finds one in a cluster with this job


def noted(folder: Path, what: str, since_ns: int) -> list[int]:
    """Returns the recorded times, in order."""
    found = (int(path.name.split("-")[1]) for path in folder.glob(f"{what}*"))
    return sorted(at_ns for at_ns in found if at_ns > since_ns)


def program(directory: Path, folder: Path) -> Environment:
    env = Environment(
        parallelism=PARALLELISM, configuration=jobs.settings(directory / "checkpoints", "1 s")
    )
    (
        env.from_source(SequenceSource(0, 10**12, rate_per_s=1_000))
        .transform(lambda df: df.selectExpr("value % 100 AS k", "value"))
        .key_by("k")
        .aggregate("count(*) AS n")
        .map_in_arrow(Seen(folder), "k long, n long")
        .sink_to(DiscardSink())
    )
    return env


def running_ms(details: JobDetails) -> int:
    """Returns when the last of the current attempts was RUNNING."""
    return max(
        subtask.current.entered_ms[ExecutionState.RUNNING]
        for vertex in details.vertices
        for subtask in vertex.subtasks
        if subtask.current is not None
    )


def number(details: JobDetails) -> int:
    current = details.vertices[0].subtasks[0].current
    return -1 if current is None else current.number


def settled(client: Client, job_id: str, details: JobDetails) -> None:
    """Waits until the attempt has a complete checkpoint, which the next attempt restores."""
    since_ms = running_ms(details)
    jobs.wait(
        lambda: any(
            checkpoint.state == "COMPLETED" and checkpoint.triggered_ms >= since_ms
            for checkpoint in client.job_details(job_id).checkpoints
        ),
        "a checkpoint of the new attempt",
    )


def failed_task_ms(client: Client, job_id: str, folder: Path) -> float:
    before = jobs.wait_until(client, job_id, jobs.all_running)
    settled(client, job_id, before)
    since_ns = time.time_ns()
    (folder / FAIL).touch()
    after = jobs.wait_until(
        client, job_id, lambda d: number(d) > number(before) and jobs.all_running(d)
    )
    return running_ms(after) - noted(folder, FAILED, since_ns)[0] / 1e6


class Killed(NamedTuple):
    """Milliseconds after the kill."""

    running: float  # until all tasks of the next attempt were RUNNING
    output: float  # until rows had reached each subtask


def killed_ms(client: Client, job_id: str, folder: Path, of: Victim) -> Killed:
    before = jobs.wait_until(client, job_id, jobs.all_running)
    jobs.wait(
        lambda: client.cluster_overview().slots_warm == TASK_EXECUTORS * SLOTS, "all slots are warm"
    )
    settled(client, job_id, before)
    victim = of(client, before)
    since_ns = time.time_ns()
    victim.kill()
    jobs.wait(
        lambda: len(noted(folder, FIRST, since_ns)) >= PARALLELISM,
        "rows have come to every subtask",
    )
    after = jobs.wait_until(
        client, job_id, lambda d: number(d) > number(before) and jobs.all_running(d)
    )
    output_ns = noted(folder, FIRST, since_ns)[PARALLELISM - 1]
    return Killed(running_ms(after) - since_ns / 1e6, (output_ns - since_ns) / 1e6)


def task_executor_of(client: Client, details: JobDetails) -> psutil.Process:
    """Returns the TaskExecutor of the job's first subtask."""
    current = details.vertices[0].subtasks[0].current
    assert current is not None
    (task_executor,) = [
        found
        for found in client.cluster_overview().task_executors
        if found.task_executor_id == current.task_executor_id
    ]
    return psutil.Process(task_executor.pid)


def process_of(client: Client, details: JobDetails) -> psutil.Process:
    """Returns the process in the slot of the job's first subtask."""
    current = details.vertices[0].subtasks[0].current
    assert current is not None
    (executor,) = [
        child
        for child in task_executor_of(client, details).children()
        if f"--slot {current.slot_index}" in " ".join(child.cmdline())
    ]
    return executor


def run(share: float = 1.0) -> list[dict[str, Any]]:
    failures = jobs.scaled(FAILURES, share, least=3)
    kills = jobs.scaled(KILLS, share, least=2)
    executor_kills = jobs.scaled(TASK_EXECUTOR_KILLS, share, least=2)
    with (
        jobs.folder() as directory,
        jobs.cluster(task_executors=TASK_EXECUTORS, slots=SLOTS) as cluster,
    ):
        folder = directory / "seen"
        folder.mkdir()
        client = cluster.client()
        job_id = client.submit(program(directory, folder).job_graph("recovery"))
        running = [failed_task_ms(client, job_id, folder) for _ in range(failures)]
        killed = [killed_ms(client, job_id, folder, process_of) for _ in range(kills)]
        executors = [
            killed_ms(client, job_id, folder, task_executor_of) for _ in range(executor_kills)
        ]
        jobs.end(client, job_id)
    output = [each.output for each in killed]
    output_p99 = jobs.percentile(output, 99)
    return [
        until_running("a task fails", running, RUNNING_GOAL_MS, "from the checkpoint"),
        until_running(
            "kill -9 of a slot's process",
            [each.running for each in killed],
            PROCESS_GOAL_MS,
            "on a warm spare",
        ),
        until_running(
            "kill -9 of a TaskExecutor",
            [each.running for each in executors],
            TASK_EXECUTOR_GOAL_MS,
            "in spare slots elsewhere",
        ),
        jobs.row(
            "kill -9 of a slot's process -> new rows from every subtask, p99",
            f"{output_p99:.0f}",
            f"ms (of {kills}: median {jobs.percentile(output, 50):.0f}, worst {max(output):.0f};"
            " other slots are warm)",
            f"<= {OUTPUT_GOAL_MS} ms",
            met=output_p99 <= OUTPUT_GOAL_MS,
        ),
    ]


def until_running(what: str, times: list[float], goal_ms: int, how: str) -> dict[str, Any]:
    p50 = jobs.percentile(times, 50)
    return jobs.row(
        f"{what} -> all tasks RUNNING {how}, p50",
        f"{p50:.0f}",
        f"ms (of {len(times)}: best {min(times):.0f}, worst {max(times):.0f})",
        f"<= {goal_ms} ms",
        met=p50 <= goal_ms,
    )


if __name__ == "__main__":
    for measured in run():
        print(measured)
