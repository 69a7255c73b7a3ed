"""Runs batch jobs on Firesteel and on Spark alone, one engine at a time, on 2 cores and the same
files.

Complete results are compared: an engine whose result differs from Spark's gets no time.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.batch import data
from benchmarks.batch.programs import PROGRAMS
from benchmarks.batch.protocol import SMALL, TIMED, result
from benchmarks.nexmark.data import shared_memory
from benchmarks.peers.measure import EngineFailed, Runs, measure_each
from benchmarks.peers.rows import FIRESTEEL, Result, row
from benchmarks.progress import Steps

NAME = "batch"
SPARK = "Spark, local[2]"
GOAL = 0.9
SCALE = 5.0  # 7.5 M orders with 30 M lines: 1.1 GB of Parquet
SMALL_SCALE = 0.05
SMALL_FILE_ORDERS = 20_000  # several files, so that each Firesteel slot reads one and is warm
ENGINES = {FIRESTEEL: "run_firesteel", SPARK: "run_spark"}
STEPS = 1 + len(ENGINES)


def run(steps: Steps, share: float) -> Iterator[dict[str, Any]]:
    """`share` is the share of a full run's rows."""
    scale = SCALE * share
    with tempfile.TemporaryDirectory(prefix="bench-batch-", dir=shared_memory()) as folder:
        tables, results = Path(folder) / "tables", Path(folder) / "results"
        with steps.step(f"{NAME}: writing tables"):
            data.write(tables / SMALL, SMALL_SCALE, seed=2, file_orders=SMALL_FILE_ORDERS)
            size_bytes = data.write(tables / TIMED, scale)
        runs = {}
        for engine, module in ENGINES.items():
            with steps.step(f"{NAME} on {engine}"):
                runs[engine] = _run(module, tables, results / module)
        for query in PROGRAMS:
            found = _found(runs, results, query)
            yield row(f"{query}, {size_bytes / 1e9:.2g} GB of Parquet", found, {SPARK: GOAL})


def _run(module: str, tables: Path, results: Path) -> Runs | EngineFailed:
    arguments = [str(tables), str(results), *PROGRAMS]
    try:
        return measure_each([sys.executable, "-m", f"benchmarks.batch.{module}", *arguments])
    except EngineFailed as failed:
        return failed


def _found(runs: dict[str, Runs | EngineFailed], results: Path, query: str) -> dict[str, Result]:
    found: dict[str, Result] = {
        engine: each.of(query) if isinstance(each, Runs) else each for engine, each in runs.items()
    }
    if not any(isinstance(each, EngineFailed) for each in found.values()):
        for size in (SMALL, TIMED):
            ours, theirs = (result(results / module, size, query) for module in ENGINES.values())
            if ours != theirs or not theirs:
                found[FIRESTEEL] = EngineFailed(
                    f"its result of the {size} tables differs from Spark's",
                    f"{ours[:3]}\n{theirs[:3]}",
                )
    return found
