"""Nexmark's q0, q5, q12 and q17 over bids as JSON, in a topic of eight partitions."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from typing import Any

from benchmarks.kafka import topics
from benchmarks.kafka.bids import QUERIES
from benchmarks.kafka.connectors import flink_jars, jars
from benchmarks.peers.environment import NotInstalled, flink_environ, flink_python
from benchmarks.peers.measure import EngineFailed, Runs, measure_each
from benchmarks.peers.rows import FIRESTEEL, FLINK, SPARK, FlinkInstallation, amount, row
from benchmarks.progress import Steps

NAME = "kafka_queries"
ENGINES = (FIRESTEEL, SPARK, FLINK)
GOALS: dict[str, float | None] = {SPARK: 3.0, FLINK: 2.0}
STEPS = 1 + len(ENGINES)

Found = Runs | EngineFailed | NotInstalled


def run(steps: Steps, flink: FlinkInstallation, bids: int) -> Iterator[dict[str, Any]]:
    with contextlib.ExitStack() as stack:
        with steps.step(f"{NAME}: a broker with {amount(bids)} bids, which are written once"):
            kafka = stack.enter_context(topics.broker(bids))
        runs: dict[str, Found] = {}
        for engine in ENGINES:
            missing = flink.install() if engine == FLINK else None
            with steps.step(f"{NAME} on {engine}"):
                runs[engine] = missing or _run(engine, kafka.bootstrap, bids)
    for query in QUERIES:
        results = {
            engine: found.of(query) if isinstance(found, Runs) else found
            for engine, found in runs.items()
        }
        yield row(f"{query}, Kafka, {amount(bids)} bids as JSON", results, GOALS)


def _run(engine: str, bootstrap: str, bids: int) -> Found:
    arguments = [bootstrap, str(bids)]
    try:
        if engine == FIRESTEEL:
            return measure_each([*_python("run_firesteel"), *arguments, *QUERIES])
        connectors = jars()
        if engine == SPARK:
            return measure_each([*_python("run_spark"), *arguments, *QUERIES])
        arguments.append(",".join(flink_jars(connectors)))
        program = [str(flink_python()), "benchmarks/kafka/run_flink.py"]
        return measure_each([*program, *arguments, *QUERIES], flink_environ())
    except (EngineFailed, NotInstalled) as failed:
        return failed


def _python(module: str) -> list[str]:
    return [sys.executable, "-m", f"benchmarks.kafka.{module}"]
