"""Measures latency at 1,000 records/s, from the source to the sink, through a key_by to another
slot or the same one.

A function chained to the source stamps each record, and a function chained to the sink reads the
stamp. The source emits a group of records about every 10 ms; waiting for the group does not count.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

if TYPE_CHECKING:
    from firesteel.client.client import Client

RATE_PER_S = 1_000
WARM_ROWS = 5_000
ROWS = 15_000
GOALS_MS = {"spark": 6.0, "python": 20.0}  # p99


def stamped(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        now = pa.array(np.full(batch.num_rows, time.time_ns()))
        yield pa.RecordBatch.from_arrays([batch.column(0), now], names=["value", "at_ns"])


def mapped(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        keys = pa.array(batch.column("value").to_numpy() % 100)
        yield pa.RecordBatch.from_arrays([keys, *batch.columns], names=["k", *batch.schema.names])


def arrived(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        late_ns = time.time_ns() - batch.column("at_ns").to_numpy()
        yield pa.RecordBatch.from_arrays(
            [batch.column("value"), pa.array(late_ns / 1e6)], names=["value", "ms"]
        )


def latencies_ms(client: Client, through: str) -> np.ndarray:
    """Runs the job, and returns the latencies of its records but the first ones, in order."""
    from benchmarks.peers.run_firesteel import SLOTS, collected
    from firesteel import Environment
    from firesteel.connectors import SequenceSource

    env = Environment(parallelism=SLOTS)
    numbers = env.from_source(SequenceSource(0, WARM_ROWS + ROWS, rate_per_s=RATE_PER_S))
    records = numbers.map_in_arrow(stamped, "value long, at_ns long")
    if through == "spark":
        keyed = records.transform(
            lambda df: df.where("value >= 0").selectExpr("value % 100 AS k", "value", "at_ns")
        ).key_by("k")
    else:
        keyed = records.map_in_arrow(mapped, "k long, value long, at_ns long").key_by("k")
    table = collected(client, keyed.map_in_arrow(arrived, "value long, ms double"))
    if sorted(table["value"].to_pylist()) != list(range(WARM_ROWS + ROWS)):
        raise RuntimeError(f"records are missing: {table.num_rows} of {WARM_ROWS + ROWS}")
    return np.sort(table["ms"].to_numpy()[table["value"].to_numpy() >= WARM_ROWS])


def latency(through: str) -> dict[str, Any]:
    from benchmarks.peers.run_firesteel import SLOTS, configuration
    from firesteel.client.cluster import LocalCluster

    load = os.getloadavg()[0]
    with LocalCluster(configuration(), task_executors=1, slots=SLOTS) as cluster:
        cluster.wait_for_slots()
        late_ms = latencies_ms(cluster.client(), through)
    p99_ms = float(np.percentile(late_ms, 99))
    goal_ms = GOALS_MS[through]
    what = "a Spark transform" if through == "spark" else "Python functions"
    return {
        "name": f"latency at {RATE_PER_S:,} records/s through {what} and a key_by, p99",
        "ours": round(p99_ms, 1),
        "unit": f"ms (median {statistics.median(late_ms):.1f}, worst {late_ms[-1]:.0f};"
        f" load before {load:.1f})",
        "peers": {},
        "ratio": None,
        "goal": f"<= {goal_ms:g} ms",
        "met": p99_ms <= goal_ms,
    }
