"""Measures a batch job of ten regions in sequence, one of which fails when it has done all its
work: only that region's work is repeated.

Each region is one task, which reads the whole result of the previous one, and computes for about
half a second. Runs without and with a failure alternate in one slot, after a warm-up run; all must
return the same rows.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.checkpoints import jobs
from firesteel import Environment
from firesteel.client.client import Client
from firesteel.common.config import options
from firesteel.connectors import FileSink, SequenceSource

REGIONS = 10
FAILS = 5
ROWS = 1_000_000
STEPS = 250  # of work on each row, in each region
RUNS = 3
GOAL = 1.15


class Work:
    """A function for `map_in_arrow`. Fails once, if there is a file `fails`, when it has seen all
    rows.
    """

    def __init__(self, fails: Path | None = None) -> None:
        self._fails = fails
        self._seen = 0

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            value = batch["value"].to_numpy().copy()
            for _ in range(STEPS):
                np.bitwise_xor(value << 7, value >> 9, out=value)
            self._seen += batch.num_rows
            if self._seen == ROWS and self._fails is not None and self._fails.exists():
                self._fails.unlink()
                raise RuntimeError("it fails once")
            yield pa.RecordBatch.from_arrays([pa.array(value)], names=["value"])


def program(result: Path, fails: Path) -> Environment:
    env = Environment(
        mode="batch",
        configuration={
            options.RESTART_STRATEGY.key: "fixed-delay",
            options.RESTART_ATTEMPTS.key: "1",
            options.RESTART_DELAY.key: "0 s",
        },
    )
    stream = env.from_source(SequenceSource(0, ROWS))
    for region in range(1, REGIONS + 1):
        if region > 1:
            stream = stream.rebalance()
        stream = stream.map_in_arrow(Work(fails if region == FAILS else None), "value long")
    stream.sink_to(FileSink(str(result), "parquet"))
    return env


def run_s(client: Client, folder: Path, *, fails: bool) -> tuple[float, pa.Table]:
    """Returns seconds, and the sorted rows. Raises RuntimeError if other tasks were restarted."""
    result, mark = folder / f"result-{time.time_ns()}", folder / "fails"
    if fails:
        mark.touch()
    graph = program(result, mark).job_graph("regions")
    began = time.perf_counter()
    details = client.wait(client.submit(graph))
    took_s = time.perf_counter() - began
    attempts = [
        subtask.current.number if subtask.current is not None else -1
        for vertex in details.vertices
        for subtask in vertex.subtasks
    ]
    expected = [int(fails and region == FAILS) for region in range(1, REGIONS + 1)]
    if attempts != expected:
        raise RuntimeError(f"the attempts of the regions are {attempts}, not {expected}")
    return took_s, pq.read_table(result).sort_by("value")


def run() -> list[dict[str, Any]]:
    with jobs.folder() as folder, jobs.cluster(slots=1) as cluster:
        client = cluster.client()
        _, rows = run_s(client, folder, fails=False)
        took: dict[bool, list[float]] = {False: [], True: []}
        for _ in range(RUNS):
            for fails, seconds in took.items():
                took_s, found = run_s(client, folder, fails=fails)
                if not found.equals(rows):
                    raise RuntimeError("the rows of two runs differ")
                seconds.append(took_s)
    without_s, with_s = (statistics.median(seconds) for seconds in took.values())
    ratio = with_s / without_s
    return [
        {
            "name": f"batch, region {FAILS} of {REGIONS} fails: time over that without a failure",
            "ours": round(ratio, 2),
            "unit": f"x ({with_s:.1f} s instead of {without_s:.1f} s)",
            "peers": {},
            "ratio": None,
            "goal": f"<= {GOAL:g} x",
            "met": ratio <= GOAL,
        }
    ]


if __name__ == "__main__":
    for row in run():
        print(row)
