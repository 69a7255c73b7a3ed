"""`python -m benchmarks.nexmark.recovery BIDS QUERY...`: the time until queries continue after a
kill -9 of a TaskExecutor with all of its slots.

Each query writes Parquet exactly once, with ten checkpoints per second, in two of the four slots of
two TaskExecutors; first undisturbed, then with the kill, as soon as a checkpoint is complete. The
result of the run with the kill must be, row for row, what pandas computes.
"""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import psutil
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.checkpoints import jobs
from benchmarks.checkpoints.recovery import number, running_ms, task_executor_of
from benchmarks.nexmark import protocol
from benchmarks.nexmark.data import NEXMARK
from benchmarks.nexmark.oracle import check, expected, expected_of_join, is_join
from benchmarks.nexmark.programs import JOINS, QUERIES, bids_of_files, events_of_files
from benchmarks.nexmark.protocol import PARQUET
from firesteel import Environment
from firesteel.client.client import Client
from firesteel.client.job_details import JobDetails
from firesteel.common.config import options
from firesteel.common.states import ExecutionState
from firesteel.connectors import FileSink

BIDS = 3_000_000  # at most: pandas also computes the result
ALL = (*protocol.QUERIES, *protocol.JOINS)
TRIES = 3  # for a query that may end before a checkpoint is complete
TASK_EXECUTORS = SLOTS = PARALLELISM = 2
FILE_BIDS = 100_000
INTERVAL = "100 ms"


class Recovery(NamedTuple):
    running_ms: float  # from the kill until all tasks of the next attempt were RUNNING
    took_s: float
    undisturbed_s: float

    def __str__(self) -> str:
        return (
            f"{self.running_ms:.0f} ms; {self.took_s:.1f} s in all instead of"
            f" {self.undisturbed_s:.1f} s"
        )


def submit(client: Client, query: str, data: Path, folder: Path) -> str:
    """Returns the job's id. Its result is written to `folder`/result."""
    settings = jobs.settings(folder / "checkpoints", INTERVAL)
    if query in JOINS:
        settings[options.STATE_BACKEND.key] = "rocksdb"
    env = Environment(parallelism=PARALLELISM, configuration=settings)
    result = (
        JOINS[query](events_of_files(env, data, PARQUET))
        if query in JOINS
        else QUERIES[query](bids_of_files(env, data, PARQUET))
    )
    result.sink_to(FileSink(str(folder / "result"), "parquet"))
    return client.submit(env.job_graph(query))


def in_the_middle(details: JobDetails) -> bool:
    return have_run(details) and any(c.state == "COMPLETED" for c in details.checkpoints)


def have_run(details: JobDetails) -> bool:
    """Returns whether all current attempts are RUNNING or were: tasks with little work left soon
    finish.
    """
    current = [subtask.current for vertex in details.vertices for subtask in vertex.subtasks]
    return all(
        attempt is not None and ExecutionState.RUNNING in attempt.entered_ms for attempt in current
    )


def kill(client: Client, job_id: str) -> float:
    """Returns the milliseconds until all tasks of the next attempt were RUNNING. Raises
    RuntimeError if the job has ended before it can be killed.
    """
    before = jobs.wait_until(client, job_id, in_the_middle)
    victim: psutil.Process = task_executor_of(client, before)
    killed_ms = time.time() * 1000
    victim.kill()
    try:
        after = jobs.wait_until(
            client, job_id, lambda d: number(d) > number(before) and have_run(d)
        )
    finally:  # its slots count as warm until then
        jobs.wait(lambda: victim.pid not in _pids(client), "the TaskExecutor is known to be lost")
    return running_ms(after) - killed_ms


def _pids(client: Client) -> list[int]:
    return [found.pid for found in client.cluster_overview().task_executors]


def recovered(client: Client, query: str, data: Path, folder: Path) -> Recovery:
    _wait_for_warm_slots(client)
    began = time.perf_counter()
    client.wait(submit(client, query, data, folder / "undisturbed"))
    undisturbed_s = time.perf_counter() - began
    for tries in reversed(range(TRIES)):
        began = time.perf_counter()
        job_id = submit(client, query, data, folder / "killed")
        try:
            running = kill(client, job_id)
            break
        except RuntimeError:
            if not tries:
                raise
            shutil.rmtree(folder / "killed")
            _wait_for_warm_slots(client)
    client.wait(job_id)
    took_s = time.perf_counter() - began
    tables = [_events(data, name) for name in ("bid", "auction", "person")]
    right = expected_of_join(query, *tables) if is_join(query) else expected(query, tables[0])
    check(query, pq.read_table(folder / "killed" / "result"), right)
    return Recovery(running, took_s, undisturbed_s)


def _wait_for_warm_slots(client: Client) -> None:
    jobs.wait(
        lambda: client.cluster_overview().slots_warm == TASK_EXECUTORS * SLOTS, "all slots are warm"
    )


def _events(data: Path, name: str) -> pa.Table:
    return pq.read_table(data / PARQUET / name)


def run(bids: int, queries: Sequence[str] = ALL) -> Iterator[tuple[str, str]]:
    """Yields each query, with its recovery or why there is none."""
    with (
        jobs.folder() as folder,
        jobs.cluster(task_executors=TASK_EXECUTORS, slots=SLOTS) as cluster,
    ):
        NEXMARK.write(folder / "data", bids, file_bids=FILE_BIDS)
        client = cluster.client()
        for query in queries:
            try:
                yield query, str(recovered(client, query, folder / "data", folder / query))
            except Exception as error:  # the other queries are still measured
                yield query, f"failed: {str(error).partition(chr(10))[0] or type(error).__name__}"
            shutil.rmtree(folder / query, ignore_errors=True)


def main() -> None:
    for query, found in run(int(sys.argv[1]), sys.argv[2:] or ALL):
        print(query, found, flush=True)


if __name__ == "__main__":
    main()
