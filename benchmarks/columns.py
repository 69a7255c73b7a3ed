"""Measures only the transfer from Arrow to Spark to Arrow: bundles through a cached plan.

Four columns, one of them a string. The measure is CPU time, of this process and of the JVM's
threads except its compilers, on one core: the median of several runs of a warm plan.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from firesteel.common.units import MIB
from firesteel.operators import TransformSpec
from taskexecutor.executor.columnar.jvm.engine import SparkEngine
from taskexecutor.executor.columnar.runners.bundle_plans import BundlePlans
from taskexecutor.executor.columnar.schemas import to_arrow
from taskexecutor.executor.columnar.warm_up import start_warm
from taskexecutor.executor.timing.clock import PlanMeter, TaskClock

ROWS = 1_000_000
SMALL_ROWS = 1_000
WARM, RUNS = 10, 9
REPEATED = 20  # small bundles per run
_COMPILERS = ("C1 ", "C2 ")


def run() -> list[dict[str, Any]]:
    engine = SparkEngine()
    start_warm(engine, {}, cores=1, heap_bytes=1024 * MIB)
    try:
        return [
            _rate(engine, "filter and project", _project, goal=20.0),
            _rate(engine, "functions of texts", _texts, goal=10.0),
            _small(engine),
        ]
    finally:
        engine.stop()


def _project(df: Any) -> Any:
    return df.where("a % 4 <> 0").selectExpr("a + k AS x", "c * 2 AS y", "k", "s")


def _texts(df: Any) -> Any:
    return df.where("a % 4 <> 0").selectExpr("upper(s) AS u", "concat(s, '-', k) AS v", "c")


def _rate(
    engine: SparkEngine, name: str, function: Callable[[Any], Any], goal: float
) -> dict[str, Any]:
    bundle = _bundle(ROWS)
    took_s = _median_s(engine, function, bundle, 1)
    ours = round(ROWS / took_s / 1e6, 1)
    return _row(f"{name}, 1 M rows", ours, "M rows/s of CPU", goal, ours >= goal)


def _small(engine: SparkEngine) -> dict[str, Any]:
    ours = round(_median_s(engine, _project, _bundle(SMALL_ROWS), REPEATED) * 1e3, 2)
    return _row("filter and project, 1,000 rows", ours, "ms of CPU", 1.0, ours <= 1.0)


def _row(name: str, ours: float, unit: str, goal: float, met: bool) -> dict[str, Any]:
    return {
        "name": f"Arrow to Spark to Arrow, {name}",
        "ours": ours,
        "unit": unit,
        "peers": {},
        "ratio": None,
        "goal": f"{'<=' if unit.startswith('ms') else '>='} {goal:g}",
        "met": met,
        "failed": [],
    }


def _median_s(
    engine: SparkEngine, function: Callable[[Any], Any], bundle: pa.RecordBatch, repeated: int
) -> float:
    plans = BundlePlans(
        engine, bundle.schema, [TransformSpec(function=function)], PlanMeter(TaskClock())
    )
    plans.make()
    assert plans.frame is not None, "the plan is not cached"
    schema = to_arrow(plans.frame.schema)
    right = int(np.count_nonzero(bundle["a"].to_numpy() % 4))
    try:
        taken = []
        for number in range(WARM + RUNS):
            began_s = _cpu_s(engine)
            for _ in range(repeated):
                rows = sum(batch.num_rows for batch in plans.run([bundle], schema, "benchmark"))
                assert rows == right, f"{rows} rows instead of {right}"
            if number >= WARM:
                taken.append(_cpu_s(engine) - began_s)
        return statistics.median(taken) / repeated
    finally:
        plans.close()


def _cpu_s(engine: SparkEngine) -> float:
    threads = Path(f"/proc/{engine.jvm_pid}/task")
    spent_ns = sum(
        int((threads / thread / "schedstat").read_text().split()[0])
        for thread in os.listdir(threads)
        if not (threads / thread / "comm").read_text().startswith(_COMPILERS)
    )
    return spent_ns / 1e9 + time.process_time()


def _bundle(rows: int) -> pa.RecordBatch:
    random = np.random.default_rng(1)
    names = np.array([f"channel-{number}" for number in range(5000)])
    return pa.record_batch(
        {
            "a": random.integers(0, 10**6, rows),
            "k": random.integers(0, 1000, rows),
            "c": random.integers(0, 10**9, rows),
            "s": pa.array(names[random.integers(0, 5000, rows)]),
        }
    )


if __name__ == "__main__":
    for row in run():
        print(row)
