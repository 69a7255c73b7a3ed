"""Runs Spark's program of Nexmark, unmodified, on Firesteel: beside Spark, and beside the same
queries written for Firesteel. Each reads the same Parquet files.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.nexmark import data
from benchmarks.nexmark.protocol import PARQUET
from benchmarks.peers.measure import ROOT, EngineFailed, Runs, measure_each
from benchmarks.peers.rows import FIRESTEEL, SPARK, amount, row
from benchmarks.progress import Steps

NAME = "nexmark_pyspark"
QUERIES = ("q0", "q1", "q2", "q5", "q7", "q8", "q11", "q12", "q20")
OWN = "Firesteel's own API"
GOALS: dict[str, float | None] = {SPARK: 2.5, OWN: 0.95}
_MODULE = "benchmarks.nexmark"
_COMMANDS = {
    FIRESTEEL: [
        *("-m", "firesteel", "run", "-t", "local", "-p", "2"),
        "benchmarks/nexmark/run_spark.py",
    ],
    SPARK: ["-m", f"{_MODULE}.run_spark"],
    OWN: ["-m", f"{_MODULE}.run_firesteel"],
}
STEPS = 1 + len(_COMMANDS)


def run(steps: Steps, bids: int) -> Iterator[dict[str, Any]]:
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}
    memory = data.shared_memory(bids)
    with tempfile.TemporaryDirectory(prefix="bench-nexmark-", dir=memory) as folder:
        with steps.step(f"{NAME}: writing {amount(bids)} bids as Parquet and as CSV"):
            data.write(Path(folder), bids)
        runs: dict[str, Runs | EngineFailed] = {}
        for engine, command in _COMMANDS.items():
            with steps.step(f"{NAME} on {engine}"):
                try:
                    arguments = [sys.executable, *command, PARQUET, folder, *QUERIES]
                    runs[engine] = measure_each(arguments, environ)
                except EngineFailed as failed:
                    runs[engine] = failed
    for query in QUERIES:
        results = {
            engine: found.of(query) if isinstance(found, Runs) else found
            for engine, found in runs.items()
        }
        yield row(f"{query}, Parquet, a PySpark program, {amount(bids)} bids", results, GOALS)
