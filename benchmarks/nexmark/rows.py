"""Runs Nexmark on Firesteel, Spark Structured Streaming and Flink SQL, one engine at a time, on 2
cores and the same files: see `protocol`. Each row is a query over one kind of input.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from benchmarks.nexmark import data, recovery
from benchmarks.nexmark.protocol import (
    CSV,
    FLINK_JOINS,
    GENERATED,
    JOINS,
    PARQUET,
    QUERIES,
    ROW_BY_ROW,
    SPARK_JOINS,
    writes_parquet,
)
from benchmarks.peers.environment import NotInstalled, flink_environ, flink_python
from benchmarks.peers.measure import EngineFailed, Runs, measure_each
from benchmarks.peers.rows import FIRESTEEL, FLINK, SPARK, FlinkInstallation, Result, amount, row
from benchmarks.progress import Steps

NAME = "nexmark"
LARGEST = "q16"
ENGINES = {PARQUET: (FIRESTEEL, SPARK), CSV: (FIRESTEEL, SPARK, FLINK), GENERATED: (FIRESTEEL,)}
STEPS = 2 + sum(map(len, ENGINES.values()))


def queries_of(engine: str, kind: str) -> tuple[str, ...]:
    """Returns the queries that an engine can run over this kind of input. Generated input has only
    bids.
    """
    joins = {FIRESTEEL: JOINS, SPARK: SPARK_JOINS, FLINK: FLINK_JOINS}[engine]
    return QUERIES if kind == GENERATED else (*QUERIES, *joins)


def goals(query: str, kind: str) -> Mapping[str, float | None]:
    """Returns the goals as multiples of each peer's rows per second."""
    if query in JOINS:
        joins = {SPARK: 1.2, FLINK: 1.5}
        return {peer: joins[peer] for peer in ENGINES[kind][1:] if query in queries_of(peer, kind)}
    spark, flink = (1.5, 5.0) if query == "q14" else (2.5, 2.5)
    if kind == PARQUET and query != "q14":
        spark = 2.0 if query in ROW_BY_ROW else 3.0
    by_engine = {FIRESTEEL: None, SPARK: spark, FLINK: flink}
    return {engine: by_engine[engine] for engine in ENGINES[kind] if engine != FIRESTEEL}


def run(steps: Steps, flink: FlinkInstallation, bids: int) -> Iterator[dict[str, Any]]:
    memory = data.shared_memory(bids)
    with tempfile.TemporaryDirectory(prefix="bench-nexmark-", dir=memory) as folder:
        with steps.step(f"{NAME}: writing {amount(bids)} bids as Parquet and as CSV"):
            data.write(Path(folder), bids)
        with steps.step(f"{NAME}: after a kill -9 of a TaskExecutor, on {FIRESTEEL}"):
            recoveries = _recoveries(min(bids, recovery.BIDS))
        for kind, engines in ENGINES.items():
            runs: dict[str, Runs | EngineFailed | NotInstalled] = {}
            for engine in engines:
                missing = flink.install() if engine == FLINK else None
                with steps.step(f"{NAME}, {kind}, on {engine}"):
                    runs[engine] = missing or _run(engine, kind, folder)
            for query in queries_of(FIRESTEEL, kind):
                results = {
                    engine: _result(found, query)
                    for engine, found in runs.items()
                    if query in queries_of(engine, kind)
                }
                title = f"{query}, {kind}" + (" to Parquet" * writes_parquet(query, kind))
                found = row(f"{title}, {amount(bids)} bids", results, goals(query, kind))
                if kind == PARQUET and query in recoveries:
                    found["engines"][FIRESTEEL]["recovery"] = recoveries[query]
                yield found


def _recoveries(bids: int) -> dict[str, str]:
    try:
        return dict(recovery.run(bids))
    except Exception as error:  # the engines are still measured
        reason = str(error).partition("\n")[0] or type(error).__name__
        return dict.fromkeys(recovery.ALL, f"failed: {reason}")


def _run(engine: str, kind: str, folder: str) -> Runs | EngineFailed:
    module = {FIRESTEEL: "run_firesteel", SPARK: "run_spark", FLINK: "run_flink"}[engine]
    # The query with the most state comes last: an engine that does not complete it has run the
    # others.
    queries = sorted(queries_of(engine, kind), key=lambda query: query == LARGEST)
    arguments = [kind, folder, *queries]
    try:
        if engine == FLINK:
            program = f"benchmarks/nexmark/{module}.py"
            return measure_each([str(flink_python()), program, *arguments], flink_environ())
        return measure_each([sys.executable, "-m", f"benchmarks.nexmark.{module}", *arguments])
    except EngineFailed as failed:
        return failed


def _result(runs: Runs | EngineFailed | NotInstalled, query: str) -> Result:
    return runs.of(query) if isinstance(runs, Runs) else runs
