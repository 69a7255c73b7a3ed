"""The effect of a JobMaster's death on its job: the next JobMaster adopts its tasks.

The job reads 1,000 numbers per second, counts them by key and writes the counts into files, exactly
once: a file is there for readers when the checkpoint with its rows is complete. It takes one every
second. Its JobMaster is killed (-9) again and again, each time after another part of the interval.
Measured are the time until the job is RUNNING under the next JobMaster, and the longest time in
which no file came, which without a death is the interval. What `elected` measures follows.
"""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.checkpoints import elected, jobs
from firesteel import Environment
from firesteel.client.client import Client
from firesteel.client.cluster import LocalCluster
from firesteel.client.job_details import JobDetails
from firesteel.common.states import JobStatus
from firesteel.connectors import FileSink, SequenceSource

KILLS = 15
INTERVAL_S = 1.0
PARALLELISM = 2
RUNNING_GOAL_MS = 2_000
GAP_GOAL_MS = 1_000


class Death(NamedTuple):
    running_ms: float  # after the kill
    gap_ms: float  # without new files, beyond the interval
    restarted: int  # tasks


def program(directory: Path, out: Path) -> Environment:
    env = Environment(
        parallelism=PARALLELISM, configuration=jobs.settings(directory / "checkpoints", "1 s")
    )
    (
        env.from_source(SequenceSource(0, 10**12, rate_per_s=1_000))
        .transform(lambda df: df.selectExpr("value % 100 AS k", "value"))
        .key_by("k")
        .aggregate("count(*) AS n")
        .sink_to(FileSink(str(out)))
    )
    return env


def attempts(details: JobDetails) -> set[str]:
    return {
        attempt.attempt_id
        for vertex in details.vertices
        for subtask in vertex.subtasks
        for attempt in subtask.attempts
    }


def job_master(cluster: LocalCluster, job_id: str) -> int:
    """Returns the pid of the JobMaster with the highest epoch."""
    found = jobs.job_masters(cluster.directory, job_id)
    return found[max(found)]


def shown_ns(out: Path) -> list[int]:
    """Returns when each file appeared, in order: files are renamed then."""
    return sorted(path.stat().st_ctime_ns for path in out.glob("part-*"))


def death(cluster: LocalCluster, client: Client, job_id: str, out: Path, number: int) -> Death:
    before = jobs.wait_until(client, job_id, jobs.all_running)
    files = len(shown_ns(out))
    jobs.wait(lambda: len(shown_ns(out)) > files, "a checkpoint is complete")
    time.sleep(number / KILLS * INTERVAL_S)  # at a different moment each time
    victim = job_master(cluster, job_id)
    killed_ns = time.time_ns()
    os.kill(victim, signal.SIGKILL)
    jobs.wait(lambda: job_master(cluster, job_id) != victim, "a new JobMaster has the job")
    jobs.wait(lambda: shown_ns(out)[-1] > killed_ns, "new files")
    after = jobs.wait_until(client, job_id, jobs.all_running)
    running_ms = next(
        change.timestamp_ms
        for change in after.entered_ms
        if change.status is JobStatus.RUNNING and change.timestamp_ms >= killed_ns // 10**6
    )
    shown = shown_ns(out)
    last = max(at for at in shown if at <= killed_ns)
    first = min(at for at in shown if at > killed_ns)
    return Death(
        running_ms - killed_ns / 1e6,
        (first - last) / 1e6 - INTERVAL_S * 1000,
        len(attempts(after) ^ attempts(before)),
    )


def run(share: float = 1.0) -> list[dict[str, Any]]:
    kills = jobs.scaled(KILLS, share, least=3)
    with jobs.folder() as directory, jobs.cluster(slots=PARALLELISM) as cluster:
        out = directory / "out"
        client = cluster.client()
        job_id = client.submit(program(directory, out).job_graph("masters"))
        jobs.wait(lambda: len(shown_ns(out)) > 0, "the first checkpoint is complete")
        deaths = [death(cluster, client, job_id, out, number) for number in range(kills)]
        jobs.end(client, job_id)
    running = [each.running_ms for each in deaths]
    gaps = [each.gap_ms for each in deaths]
    restarted = sum(each.restarted for each in deaths)
    return [
        jobs.row(
            "kill -9 of the JobMaster -> RUNNING under the next one, worst",
            f"{max(running):.0f}",
            f"ms (of {kills}: median {jobs.percentile(running, 50):.0f};"
            f" {restarted} tasks were restarted)",
            f"<= {RUNNING_GOAL_MS} ms, no task restarted",
            met=max(running) <= RUNNING_GOAL_MS and not restarted,
        ),
        jobs.row(
            "kill -9 of the JobMaster -> no new files for longer than the interval, worst",
            f"{max(gaps):.0f}",
            f"ms (of {kills}: median {jobs.percentile(gaps, 50):.0f})",
            f"<= {GAP_GOAL_MS} ms",
            met=max(gaps) <= GAP_GOAL_MS,
        ),
        *elected.run(share),
    ]


if __name__ == "__main__":
    for measured in run():
        print(measured)
