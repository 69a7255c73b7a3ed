"""Building the ExecutionGraph of two vertices with 10,000 subtasks each, ALL_TO_ALL: time, and
memory per subtask.
"""

from __future__ import annotations

import gc
import statistics
import time
import tracemalloc
from typing import Any

from firesteel.common.ids import IdSource
from firesteel.common.job_graph import JobGraph
from firesteel.common.units import size
from jobmaster.core.execution_graph import ExecutionGraph, build, share_slots
from jobmaster.testing import job, vertex

PARALLELISM = 10_000
GOAL_MS = 300.0
GOAL_GROWTH = 2.2  # memory at twice the subtasks; edges would make it 4


def graph_of(parallelism: int) -> JobGraph:
    return job(vertex("producer", parallelism), vertex("consumer", parallelism))


def build_ms() -> float:
    """With the slot sharing groups, as in the JobMaster. Median of five."""
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


def run() -> list[dict[str, Any]]:
    took_ms = build_ms()
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
    ]


if __name__ == "__main__":
    for row in run():
        print(row)
