"""The same work on Firesteel, Spark Structured Streaming and Flink, one engine at a time, on 2
cores; results are checked.

Each engine first runs the work on fewer rows, which warms it up and whose result is checked; then
it is timed, from the start of the job to its end. CPU time is also shown: it is comparable even on
a machine with other load. An engine that fails or is missing does not affect the others.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

from benchmarks.peers.environment import FLINK as FLINK_PACKAGE
from benchmarks.peers.environment import (
    NotInstalled,
    flink_environ,
    flink_python,
    install,
    installed,
)
from benchmarks.peers.measure import EngineFailed, Measured, measure
from benchmarks.peers.work import WORKS
from benchmarks.progress import Steps

FIRESTEEL, SPARK = "Firesteel", "Spark Structured Streaming"
FLINK, TUNED = "Flink SQL", "Flink SQL, mini-batch, two-phase"
PYFLINK, PYFLINK_THREADS = "PyFlink", "PyFlink, in threads of the JVM"
FOLDER = "benchmarks/peers"
# The engines to compare with, and the goal as a multiple of their rows per second, or None. If both
# ways to run Flink have a goal, the faster one counts.
GOALS: dict[str, dict[str, float | None]] = {
    "filter_project": {SPARK: 1.2, FLINK: None},
    "keyed_aggregate_1k": {SPARK: 2.0, FLINK: 4.0, TUNED: 4.0},
    "keyed_aggregate_1m": {SPARK: 1.5, FLINK: 1.5, TUNED: 1.5},
    "window_aggregate": {SPARK: 1.5, FLINK: 5.0, TUNED: 5.0},
    "stateful_processor": {SPARK: 2.0, PYFLINK: 20.0, PYFLINK_THREADS: None},
    "keyed_process": {PYFLINK: 20.0, PYFLINK_THREADS: None},
}
OTHERS = ("latency_spark", "latency_python", "executor_memory")
NAMES = (*WORKS, *OTHERS)

Result = Measured | EngineFailed | NotInstalled


def steps(name: str) -> tuple[str, ...]:
    """Returns the steps of `Peers.run`."""
    return (
        tuple(f"{name} on {engine}" for engine in (FIRESTEEL, *GOALS[name]))
        if name in WORKS
        else (name,)
    )


class FlinkInstallation:
    """Looks for Flink, and installs it, once."""

    def __init__(self, steps: Steps) -> None:
        self._steps = steps
        self._missing: NotInstalled | None = None

    def install(self) -> NotInstalled | None:
        """Returns why Flink is not available, or None."""
        if not installed() and self._missing is None:
            self._steps.extend()
            with self._steps.step(
                f"installing {FLINK_PACKAGE} in .bench-venv, once (850 MB, some minutes)"
            ):
                try:
                    install()
                except NotInstalled as reason:
                    self._missing = reason
        return self._missing


class Peers:
    """Runs the benchmarks."""

    def __init__(self, steps: Steps) -> None:
        self._steps = steps
        self.flink = FlinkInstallation(steps)

    def run(self, name: str) -> list[dict[str, Any]]:
        if name not in WORKS:
            with self._steps.step(name):
                return [_other(name)]
        results: dict[str, Result] = {}
        for engine, what in zip((FIRESTEEL, *GOALS[name]), steps(name), strict=True):
            flinks = (FLINK, TUNED, PYFLINK, PYFLINK_THREADS)
            missing = self.flink.install() if engine in flinks else None
            with self._steps.step(what):
                results[engine] = missing or self._on(engine, name)
        title = f"{name}, {amount(WORKS[name].rows)} rows"
        return [row(title, results, GOALS[name])]

    def _on(self, engine: str, work: str) -> Result:
        try:
            match engine:
                case "Firesteel":
                    return measure([sys.executable, "-m", "benchmarks.peers.run_firesteel", work])
                case "Spark Structured Streaming":
                    return measure([sys.executable, "-m", "benchmarks.peers.run_spark", work])
            program = "run_pyflink.py" if engine in (PYFLINK, PYFLINK_THREADS) else "run_flink.py"
            how = {TUNED: ["tuned"], PYFLINK_THREADS: ["threads"]}.get(engine, [])
            return measure(
                [str(flink_python()), f"{FOLDER}/{program}", work, *how], flink_environ()
            )
        except EngineFailed as failed:
            return failed


def _other(name: str) -> dict[str, Any]:
    from benchmarks.peers.latency import latency
    from benchmarks.peers.memory import executor_memory

    return (
        executor_memory() if name == "executor_memory" else latency(name.removeprefix("latency_"))
    )


def row(
    name: str, results: Mapping[str, Result], goals: Mapping[str, float | None]
) -> dict[str, Any]:
    """`results` holds the measurement or the failure of each engine. `engines` has all numbers."""
    ours = results[FIRESTEEL]
    engines = {
        engine: _engine(result, ours, goals.get(engine)) for engine, result in results.items()
    }
    peers = {engine: fields for engine, fields in engines.items() if engine != FIRESTEEL}
    near = [
        (fields["ratio"] / fields["goal"], fields["ratio"])
        for fields in peers.values()
        if fields["goal"] and fields["ratio"]
    ]
    met = {fields["met"] for fields in peers.values() if fields["goal"]}
    return {
        "name": name,
        "ours": shown(engines[FIRESTEEL]),
        "unit": "rows/s",
        "peers": {engine: shown(fields) for engine, fields in peers.items()},
        # The engine closest to its goal, or farthest below it.
        "ratio": min(near)[1] if near else None,
        "goal": ", ".join(
            f">= {goal:g} x {engine}" for engine, goal in goals.items() if goal is not None
        ),
        "met": False if False in met else None if None in met else True,
        "engines": engines,
        "failed": [engine for engine, fields in engines.items() if "reason" in fields],
    }


def _engine(result: Result, ours: Result, goal: float | None) -> dict[str, Any]:
    fields: dict[str, Any] = {"goal": goal, "ratio": None, "cpu_ratio": None, "met": None}
    if not isinstance(result, Measured):
        how = "not installed" if isinstance(result, NotInstalled) else "failed"
        return fields | {"reason": f"{how}: {result}", "output": getattr(result, "output", "")}
    if isinstance(ours, Measured) and ours is not result:
        ratio = ours.rows_per_s / result.rows_per_s
        fields["ratio"] = round(ratio, 2)
        fields["met"] = None if goal is None else ratio >= goal
        if ours.rows_per_cpu_s and result.rows_per_cpu_s:
            fields["cpu_ratio"] = round(ours.rows_per_cpu_s / result.rows_per_cpu_s, 2)
    return fields | {
        "rows": result.rows,
        "seconds": round(result.seconds, 2),
        "cpu_s": None if result.cpu_s is None else round(result.cpu_s, 2),
        "rows_per_s": round(result.rows_per_s),
        "rows_per_cpu_s": None if result.rows_per_cpu_s is None else round(result.rows_per_cpu_s),
        "load": round(result.load, 1),
    }


def shown(fields: Mapping[str, Any]) -> str:
    return str(fields["reason"]) if "reason" in fields else amount(fields["rows_per_s"])


def amount(number: float | None) -> str:
    """Returns three digits; `-` if unknown."""
    if number is None:
        return "-"
    for unit, factor in (("M", 1e6), ("k", 1e3)):
        if number >= factor:
            return f"{number / factor:.3g} {unit}"
    return f"{number:.3g}"
