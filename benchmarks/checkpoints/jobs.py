"""Shared parts of these benchmarks: clusters, jobs with checkpoints, and their durations."""

from __future__ import annotations

import math
import re
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.nexmark.data import shared_memory
from firesteel.client.client import Client
from firesteel.client.cluster import LocalCluster
from firesteel.client.job_details import CheckpointDetails, JobDetails
from firesteel.common.config import Configuration, options
from firesteel.common.states import ExecutionState

TIMEOUT_S = 120.0
WARM_S = 600.0  # the slots start together
_TOO_LATE = "finished before it acknowledged"
# As often as Flink is polled. The JobMaster remembers more checkpoints than it takes in between.
POLL_S = 0.5


@contextmanager
def folder() -> Iterator[Path]:
    """Yields the checkpoint folder of a benchmark: as for the peers, in shared memory if
    available.
    """
    with tempfile.TemporaryDirectory(prefix="bench-checkpoints-", dir=shared_memory()) as path:
        yield Path(path)


@contextmanager
def cluster(*, task_executors: int = 1, slots: int = 2) -> Iterator[LocalCluster]:
    conf = Configuration.load(overrides={options.METRICS_PORT.key: "0"})
    with LocalCluster(conf, task_executors=task_executors, slots=slots) as started:
        started.wait_for_slots(timeout_s=WARM_S)
        yield started


def settings(directory: Path, interval: str, **others: str) -> dict[str, str]:
    """Returns the configuration of a job with checkpoints that restarts without a delay."""
    return {
        options.CHECKPOINT_INTERVAL.key: interval,
        options.CHECKPOINT_DIR.key: str(directory),
        options.RESTART_STRATEGY.key: "fixed-delay",
        options.RESTART_ATTEMPTS.key: "1000000",
        options.RESTART_DELAY.key: "0 s",
        **others,
    }


def all_running(details: JobDetails) -> bool:
    current = [subtask.current for vertex in details.vertices for subtask in vertex.subtasks]
    return bool(current) and all(
        attempt is not None and attempt.state is ExecutionState.RUNNING for attempt in current
    )


def job_masters(directory: Path, job_id: str) -> dict[int, int]:
    """Returns the pids of the job's JobMasters by epoch, from the logs of the cluster's folder."""
    started = re.compile(
        rf'process=jobmaster\[(\d+)\] event="job starts" job_id={job_id} .*epoch=(\d+)'
    )
    return {
        int(epoch): int(pid)
        for log in directory.rglob("jobmaster-*.log")
        for pid, epoch in started.findall(log.read_text())
    }


def wait_until(client: Client, job_id: str, wanted: Callable[[JobDetails], bool]) -> JobDetails:
    for details in client.watch_job(job_id):
        if wanted(details):
            return details
    raise RuntimeError(f"the job ended too soon: {client.job_details(job_id).exceptions}")


def end(client: Client, job_id: str) -> None:
    client.cancel(job_id)
    for details in client.watch_job(job_id):
        if details.status.globally_terminal:
            return


def wait(condition: Callable[[], bool], what: str, *, timeout_s: float = TIMEOUT_S) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            raise RuntimeError(f"after {timeout_s:g} s still not: {what}")
        time.sleep(0.02)


class Watched:
    """Collects a job's complete checkpoints while it runs."""

    def __init__(self, client: Client, job_id: str) -> None:
        self._client = client
        self._job_id = job_id
        self._seen: dict[int, CheckpointDetails] = {}
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Watched:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    @property
    def complete(self) -> list[CheckpointDetails]:
        """Returns the complete checkpoints, oldest first. Raises RuntimeError if one failed, unless
        the job was about to end.
        """
        found = [seen for _, seen in sorted(self._seen.items())]
        for checkpoint in found:
            if checkpoint.state == "FAILED" and _TOO_LATE not in checkpoint.failure:
                raise RuntimeError(
                    f"checkpoint {checkpoint.checkpoint_id} failed: {checkpoint.failure}"
                )
        return [checkpoint for checkpoint in found if checkpoint.state == "COMPLETED"]

    def wait_for(self, count: int) -> list[CheckpointDetails]:
        """Waits until this many are complete, which takes about a second each."""
        wait(
            lambda: len(self.complete) >= count,
            f"{count} complete checkpoints",
            timeout_s=TIMEOUT_S + 5 * count,
        )
        return self.complete

    def _watch(self) -> None:
        while True:
            last = self._ended.wait(POLL_S)
            details = self._client.job_details(self._job_id)
            self._seen.update({c.checkpoint_id: c for c in details.checkpoints})
            if last or details.status.globally_terminal:
                return


def percentile(values: Sequence[float], percent: float) -> float:
    """Returns the smallest value that `percent` percent of all values do not exceed."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(len(ordered) * percent / 100) - 1)]


def scaled(count: int, share: float, *, least: int) -> int:
    """Returns a smaller number for a shorter run. `share` is that of the full run, up to 1."""
    return max(least, round(count * min(1.0, share)))


def row(name: str, ours: str, unit: str, goal: str, *, met: bool, **peers: str) -> dict[str, Any]:
    return {
        "name": name,
        "ours": ours,
        "unit": unit,
        "peers": peers,
        "ratio": None,
        "goal": goal,
        "met": met,
    }


def durations(
    name: str, found: Sequence[CheckpointDetails], goals_ms: tuple[int, int], **peers: str
) -> dict[str, Any]:
    """Returns the row about complete checkpoints; `goals_ms` are those of p50 and p99."""
    took_ms = [float(checkpoint.duration_ms) for checkpoint in found]
    p50, p99 = percentile(took_ms, 50), percentile(took_ms, 99)
    return row(
        name,
        f"{p50:.0f} / {p99:.0f}",
        f"ms (p50 / p99 of {len(found)}, worst {max(took_ms):.0f})",
        f"<= {goals_ms[0]} / {goals_ms[1]} ms",
        met=p50 <= goals_ms[0] and p99 <= goals_ms[1],
        **peers,
    )
