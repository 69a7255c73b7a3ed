"""Measures how long it takes to decide which tasks trigger a checkpoint: three vertices of 10,000
subtasks, ALL_TO_ALL, in the slowest states: all run; half of each vertex has finished; the first
vertex has finished.
"""

from __future__ import annotations

import functools
import gc
import statistics
import time
from collections.abc import Callable
from typing import Any

from benchmarks.checkpoints import jobs
from firesteel.common.ids import IdSource
from firesteel.common.states import TaskEvent
from jobmaster.core.checkpoints.plan import plan_checkpoint, tasks_to_trigger
from jobmaster.core.execution_graph import Execution, ExecutionGraph, build
from tests.job_master import job, vertex

PARALLELISM = 10_000
RUNS = 15
GOAL_MS = 10.0
_TO_RUNNING = (TaskEvent.SCHEDULE, TaskEvent.DEPLOY, TaskEvent.REPORTED_RUNNING)
FINISHED: dict[str, Callable[[Execution, ExecutionGraph], bool]] = {
    "all run": lambda execution, graph: False,
    "half have finished": lambda execution, graph: execution.vertex.subtask % 2 == 0,
    "sources have finished": (
        lambda execution, graph: execution.vertex.job_vertex is graph.vertices[0]
    ),
}


def graph_with(finished: Callable[[Execution, ExecutionGraph], bool], size: int) -> ExecutionGraph:
    graph = build(job(*(vertex(name, size) for name in "abc")), IdSource(), 0)
    for execution in graph.executions():
        for event in _TO_RUNNING:
            execution.apply(event, 0)
        if finished(execution, graph):
            execution.apply(TaskEvent.REPORTED_FINISHED, 0)
    return graph


def median_ms(work: Callable[[], object]) -> float:
    times = []
    gc.collect()
    for _ in range(RUNS):
        began = time.perf_counter()
        work()
        times.append((time.perf_counter() - began) * 1000)
    return statistics.median(times)


def _to_trigger(graph: ExecutionGraph) -> list[Execution]:
    return list(tasks_to_trigger(graph))


def run(share: float = 1.0) -> list[dict[str, Any]]:
    subtasks = jobs.scaled(PARALLELISM, share, least=100)
    to_trigger, whole = {}, {}
    for name, finished in FINISHED.items():
        graph = graph_with(finished, subtasks)
        to_trigger[name] = median_ms(functools.partial(_to_trigger, graph))
        whole[name] = median_ms(functools.partial(plan_checkpoint, graph, after_tasks_finish=True))
    worst = max(to_trigger.values())
    each = ", ".join(f"{name} {took_ms:.1f}" for name, took_ms in to_trigger.items())
    return [
        jobs.row(
            f"tasks to trigger, 3 x {subtasks:,} subtasks, ALL_TO_ALL",
            f"{worst:.1f}",
            f"ms ({each}; with those that acknowledge, at most {max(whole.values()):.1f})",
            f"<= {GOAL_MS:g} ms",
            met=worst <= GOAL_MS,
        )
    ]


if __name__ == "__main__":
    for measured in run():
        print(measured)
