"""The same work on Firesteel, Spark Structured Streaming and Flink, one engine at a time, on 2 cores; results are checked.

`python -m benchmarks.peers [WORK...]` runs some of it. Each engine first runs the work on fewer rows, whose result must be
right and which warms it up; then it is timed, from the start of the job to its end. CPU time is shown, too: on a machine that
others use as well, it is what can be compared.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from benchmarks.peers.environment import flink_environ, flink_python
from benchmarks.peers.measure import Measured, amount, measure
from benchmarks.peers.work import WORKS

# Of the peers' rows per second; a goal for "Flink SQL" is measured against the better of plain and tuned.
SPARK, FLINK, TUNED, PYFLINK = "Spark Structured Streaming", "Flink SQL", "Flink SQL, mini-batch two-phase", "PyFlink"
GOALS: dict[str, dict[tuple[str, ...], float]] = {
    "filter_project": {(SPARK,): 1.2},
    "keyed_aggregate_1k": {(SPARK,): 2.0, (FLINK, TUNED): 4.0},
    "keyed_aggregate_1m": {(SPARK, FLINK, TUNED): 1.5},
    "window_aggregate": {(SPARK,): 1.5, (FLINK, TUNED): 5.0},
    "stateful_processor": {(SPARK,): 2.0, (PYFLINK,): 20.0},
}
PEERS = {
    "filter_project": (SPARK, FLINK),
    "keyed_aggregate_1k": (SPARK, FLINK, TUNED),
    "keyed_aggregate_1m": (SPARK, FLINK, TUNED),
    "window_aggregate": (SPARK, FLINK),
    "stateful_processor": (SPARK, PYFLINK),
}
OTHERS = ("latency_spark", "latency_python", "executor_memory")
NAMES = (*WORKS, *OTHERS)


def on(engine: str, work: str) -> Measured:
    folder = "benchmarks/peers"
    match engine:
        case "Firesteel":
            return measure([sys.executable, "-m", "benchmarks.peers.run_firesteel", work])
        case "Spark Structured Streaming":
            return measure([sys.executable, "-m", "benchmarks.peers.run_spark", work])
        case "PyFlink":
            return measure([str(flink_python()), f"{folder}/run_pyflink.py", work], flink_environ())
        case _:
            tuned = ["tuned"] if engine == TUNED else []
            return measure([str(flink_python()), f"{folder}/run_flink.py", work, *tuned], flink_environ())


def row(work: str) -> dict[str, Any]:
    ours = on("Firesteel", work)
    peers = {engine: on(engine, work) for engine in PEERS[work]}
    best = {group: max(peers[engine].rows_per_s for engine in group if engine in peers) for group in GOALS[work]}
    factors = {group: ours.rows_per_s / peer for group, peer in best.items()}
    nearest = min(factors, key=lambda group: factors[group] / GOALS[work][group])
    return {
        "name": f"{work}, {amount(ours.rows)} rows",
        "ours": amount(ours.rows_per_s),
        "unit": f"rows/s ({amount(ours.rows_per_cpu_s)} per s of CPU; load before {ours.load:.1f})",
        "peers": {engine: peer.shown() for engine, peer in peers.items()},
        "ratio": round(factors[nearest], 2),
        "goal": ", ".join(f">= {goal:g} x {_short(group)}" for group, goal in GOALS[work].items()),
        "met": all(factors[group] >= goal for group, goal in GOALS[work].items()),
        "seconds": round(ours.seconds, 2),
        "cpu_ratios": {engine: round(ours.rows_per_cpu_s / peer.rows_per_cpu_s, 2) for engine, peer in peers.items()},
        "load": {"Firesteel": round(ours.load, 1), **{engine: round(peer.load, 1) for engine, peer in peers.items()}},
    }


def _short(group: tuple[str, ...]) -> str:
    return group[0] if len(group) == 1 else f"the best of {', '.join(group)}"


def run(names: tuple[str, ...] = NAMES) -> list[dict[str, Any]]:
    from benchmarks.peers.latency import latency
    from benchmarks.peers.memory import executor_memory

    others: dict[str, Callable[[], dict[str, Any]]] = {
        "latency_spark": lambda: latency("spark"),
        "latency_python": lambda: latency("python"),
        "executor_memory": executor_memory,
    }
    rows = []
    for name in names:
        print(f"  {name} ...", file=sys.stderr, flush=True)
        rows.append(row(name) if name in WORKS else others[name]())
    return rows
