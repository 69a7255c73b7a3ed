"""Measures 20,000 calls of 20 ms in one subtask, 500 in flight: their time relative to the minimum
that capacity and latency allow.

The job has one subtask, in a warm slot of an embedded cluster of real processes. A run lasts from
the first call until the last result reaches the next operator. The median of the runs counts.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Row

from benchmarks.peers.run_firesteel import collected, configuration
from firesteel import Environment
from firesteel.client.client import Client
from firesteel.client.cluster import LocalCluster

CALLS, LATENCY_S, CAPACITY = 20_000, 0.020, 500
LEAST_S = CALLS * LATENCY_S / CAPACITY
GOAL = 0.8
RUNS = 5
SCHEMA = "value BIGINT, called DOUBLE"


async def call(row: Row) -> dict[str, Any]:
    called_s = time.monotonic()
    await asyncio.sleep(LATENCY_S)
    return {"value": row.value, "called": called_s}


def emitted(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Adds the arrival time of each batch of results."""
    for batch in batches:
        now_s = pa.repeat(pa.scalar(time.monotonic()), batch.num_rows)
        yield batch.append_column("emitted", now_s)


def measure(client: Client, *, ordered: bool) -> float:
    """Returns the seconds from the first call to the last result. Raises AssertionError if a row is
    missing.
    """
    env = Environment(parallelism=1)
    stream = (
        env.from_sequence(0, CALLS)
        .map_async(call, SCHEMA, capacity=CAPACITY, timeout="10 s", ordered=ordered)
        .map_in_arrow(emitted, f"{SCHEMA}, emitted DOUBLE")
    )
    rows = collected(client, stream)
    values = rows["value"].to_pylist()
    assert sorted(values) == list(range(CALLS)), f"{len(values)} rows"
    assert not ordered or values == sorted(values), "the rows are out of order"
    took_s: float = pc.max(rows["emitted"]).as_py() - pc.min(rows["called"]).as_py()
    return took_s


def run() -> list[dict[str, Any]]:
    with LocalCluster(configuration(), task_executors=1, slots=1) as cluster:
        cluster.wait_for_slots()
        client = cluster.client()
        measure(client, ordered=True)  # imports
        return [
            result(order, [measure(client, ordered=order == "in order") for _ in range(RUNS)])
            for order in ("in order", "as they come")
        ]


def result(order: str, runs_s: list[float]) -> dict[str, Any]:
    took_s = statistics.median(runs_s)
    return {
        "name": f"{CALLS:,} calls of {LATENCY_S * 1000:g} ms, {CAPACITY} in flight, {order}",
        "ours": round(took_s, 3),
        "unit": "s",
        "peers": {"capacity / latency": f"{LEAST_S:g} s"},
        "ratio": LEAST_S / took_s,
        "goal": f">= {GOAL:g} x capacity / latency",
        "met": LEAST_S / took_s >= GOAL,
    }


if __name__ == "__main__":
    for row in run():
        print(row)
