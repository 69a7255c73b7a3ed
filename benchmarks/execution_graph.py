"""Measures the ExecutionGraph of two vertices with 10,000 subtasks each, ALL_TO_ALL: the time to
build it, memory per subtask, and the time to find the tasks that a failure restarts.
"""

from __future__ import annotations

import gc
import statistics
import time
import tracemalloc
from dataclasses import replace
from typing import Any

from firesteel.common.ids import IdSource
from firesteel.common.job_graph import JobGraph, Partitioner, ResultPartitionId, ResultType
from firesteel.common.states import TaskEvent
from firesteel.common.units import size
from jobmaster.core.execution_graph import ExecutionGraph, build, share_slots
from jobmaster.core.failover.regions import (
    Failure,
    PartitionUnreadable,
    Regions,
    SlotsLost,
    TaskFailed,
    tasks_to_restart,
)
from tests.job_master import job, vertex

PARALLELISM = 10_000
GOAL_MS = 300.0
GOAL_RESTART_MS = 10.0
SLOTS_LOST = 100  # of each vertex, with one TaskExecutor
GOAL_GROWTH = 2.2  # memory at twice the subtasks; with edges it would be 4


def graph_of(parallelism: int) -> JobGraph:
    return job(vertex("producer", parallelism), vertex("consumer", parallelism))


def build_ms() -> float:
    """Returns the median of five, with the slot sharing groups, as in the JobMaster."""
    times = []
    for _ in range(5):
        graph = graph_of(PARALLELISM)
        gc.collect()
        began = time.perf_counter()
        share_slots(build(graph, IdSource(), 0))
        times.append((time.perf_counter() - began) * 1000)
    return statistics.median(times)


def bytes_of(parallelism: int) -> int:
    graph = graph_of(parallelism)
    gc.collect()
    tracemalloc.start()
    built: ExecutionGraph = build(graph, IdSource(), 0)
    share_slots(built)
    size = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    return size


def restart_ms() -> float:
    """Returns CPU time: the longest of the medians of nine for each kind of failure of a batch job
    whose consumers run. Rows are redistributed, so a result that is produced again restarts all
    consumers.
    """
    graph = job(
        vertex("producer", PARALLELISM),
        vertex("consumer", PARALLELISM),
        partitioner=Partitioner.REBALANCE,
    )
    edges = tuple(replace(edge, result_type=ResultType.BLOCKING) for edge in graph.edges)
    built = build(replace(graph, batch=True, edges=edges), IdSource(), 0)
    share_slots(built)
    producers, consumers = (job_vertex.vertices for job_vertex in built.vertices)
    steps = (TaskEvent.SCHEDULE, TaskEvent.DEPLOY, TaskEvent.REPORTED_RUNNING)
    for subtask in (*producers, *consumers):
        for step in steps:
            subtask.current.apply(step, 0)
    for subtask in producers:
        subtask.current.apply(TaskEvent.REPORTED_FINISHED, 0)
    regions = Regions(built)
    lost = [ResultPartitionId(edges[0].result_id, n, 0) for n in range(SLOTS_LOST)]
    everyone = PARALLELISM + SLOTS_LOST
    failures: list[tuple[Failure, int]] = [
        (TaskFailed(consumers[5]), 1),
        (TaskFailed(producers[5]), 1 + PARALLELISM),
        (PartitionUnreadable(consumers[5], lost[7]), 1 + PARALLELISM),
        (SlotsLost(tuple(consumers[:SLOTS_LOST]), tuple(lost)), everyone),
    ]
    return max(_restart_ms(regions, failure, tasks) for failure, tasks in failures)


def _restart_ms(regions: Regions, failure: Failure, tasks: int) -> float:
    times = []
    for _ in range(9):
        gc.collect()
        began = time.process_time()
        found = tasks_to_restart(regions, failure)
        times.append((time.process_time() - began) * 1000)
        if len(found) != tasks:
            raise RuntimeError(f"{type(failure).__name__} restarts {len(found)} tasks, not {tasks}")
    return statistics.median(times)


def run() -> list[dict[str, Any]]:
    took_ms = build_ms()
    restart = restart_ms()
    half, whole = bytes_of(PARALLELISM // 2), bytes_of(PARALLELISM)
    growth = whole / half
    return [
        {
            "name": "execution graph, 2 x 10,000 ALL_TO_ALL: build",
            "ours": round(took_ms, 1),
            "unit": "ms",
            "peers": {},
            "ratio": None,
            "goal": f"<= {GOAL_MS:g} ms",
            "met": took_ms <= GOAL_MS,
        },
        {
            "name": "execution graph: memory at 2 x 10,000 over 2 x 5,000",
            "ours": round(growth, 2),
            "unit": f"x ({size(whole)}, {whole / (2 * PARALLELISM):.0f} bytes per subtask)",
            "peers": {},
            "ratio": None,
            "goal": f"<= {GOAL_GROWTH:g} x (linear)",
            "met": growth <= GOAL_GROWTH,
        },
        {
            "name": "tasks to restart, 10,000 x 10,000 ALL_TO_ALL, blocking",
            "ours": round(restart, 1),
            "unit": "ms",
            "peers": {},
            "ratio": None,
            "goal": f"<= {GOAL_RESTART_MS:g} ms",
            "met": restart <= GOAL_RESTART_MS,
        },
    ]


if __name__ == "__main__":
    for row in run():
        print(row)
