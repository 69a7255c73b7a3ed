"""Times TPC-H's q1, q3 and q6 in one PySpark program, on Spark with `local[2]` and with `firesteel
run --spark --slots 2`, on the same files and with equal memory for the tasks; then again on slots,
where each query loses an executor to a kill -9.

Results are compared. `python -m benchmarks.spark_programs.compare [SCALE]`.
"""

from __future__ import annotations

import json
import math
import os
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import psutil
import pyarrow.dataset as ds

from benchmarks.batch import data
from benchmarks.batch.programs import SQL
from benchmarks.nexmark.data import shared_memory

QUERIES = ("q1", "q3", "q6")
SCALE, SMALL_SCALE = 1.0, 0.05
ROUNDS = 3
GOAL, GOAL_KILLED = 0.9, 1.5
HEAP_MIB = 1024  # of each of two slots
PROGRAM = Path(__file__).with_name("program.py")
_EXECUTOR = re.compile(r"org\.apache\.spark\.deploy\.worker\.Worker")
_POLL_S = 0.02

Rows = list[tuple[Any, ...]]


class Timed(NamedTuple):
    seconds: dict[str, list[float]]  # by query
    rows: dict[str, Rows]


def run(scale: float = SCALE) -> list[dict[str, Any]]:
    with tempfile.TemporaryDirectory(prefix="bench-spark-", dir=shared_memory()) as temporary:
        folder = Path(temporary)
        data.write(folder / "small", SMALL_SCALE, seed=2)
        data.write(folder / "timed", scale, file_orders=100_000)
        local = _run(folder, "local", _spark())
        slots = _run(folder, "slots", _firesteel(2))
        killed = _run(folder, "killed", _firesteel(2), kill_after_s=_half(slots))
    return [row for query in QUERIES for row in _rows(query, local, slots, killed)]


def _spark() -> list[str]:
    memory = f"{2 * HEAP_MIB}m"
    options = f"--master local[2] --driver-memory {memory} pyspark-shell"
    return ["env", f"PYSPARK_SUBMIT_ARGS={options}", sys.executable, str(PROGRAM)]


def _firesteel(executors: int) -> list[str]:
    """Has one slot more than the program needs, so that a lost one is replaced immediately."""
    command = [sys.executable, "-m", "firesteel", "run", "-t", "local", "--spark"]
    options = ["-D", f"taskmanager.slot.heap.size={HEAP_MIB}m", "--slots", str(executors)]
    return [*command, *options, "--task-executors", "2", str(PROGRAM)]


def _half(timed: Timed) -> dict[str, float]:
    return {query: min(seconds) / 2 for query, seconds in timed.seconds.items()}


def _run(
    folder: Path,
    name: str,
    command: Sequence[str],
    *,
    kill_after_s: Mapping[str, float] | None = None,
) -> Timed:
    """`kill_after_s` is when an executor is killed after each query has begun."""
    results, rounds = folder / name, 1 if kill_after_s else ROUNDS
    results.mkdir()
    request = folder / f"{name}.json"
    settings = {
        "tables": {"small": str(folder / "small"), "timed": str(folder / "timed")},
        "results": str(results),
        "queries": {query: SQL[query] for query in QUERIES},
        "rounds": rounds,
    }
    request.write_text(json.dumps(settings))
    process = subprocess.Popen([*command, str(request)])
    killing = threading.Thread(target=_kill, args=(process, results, kill_after_s or {}))
    killing.start()
    code = process.wait()
    killing.join()
    if code:
        raise RuntimeError(f"{' '.join(command)} ended with exit code {code}")
    return Timed(
        {
            query: [float((results / f"{query}-{n}-s").read_text()) for n in range(rounds)]
            for query in QUERIES
        },
        {query: _result(results / f"{query}-0") for query in QUERIES},
    )


def _kill(
    process: subprocess.Popen[bytes], results: Path, kill_after_s: Mapping[str, float]
) -> None:
    for query, seconds in kill_after_s.items():
        while not (results / f"{query}-0-begins").exists():
            if process.poll() is not None:
                return
            time.sleep(_POLL_S)
        time.sleep(seconds)
        _kill_executor(process.pid)


def _kill_executor(pid: int) -> None:
    """Kills the process of a slot in which a worker runs."""
    for child in psutil.Process(pid).children(recursive=True):
        if _EXECUTOR.search(" ".join(child.cmdline())):
            os.kill(child.ppid(), signal.SIGKILL)
            return
    raise RuntimeError("no executor runs")


def _result(folder: Path) -> Rows:
    rows = ds.dataset(folder, format="parquet").to_table().to_pylist()
    return sorted(tuple(row.values()) for row in rows)


def _equal(one: Rows, other: Rows) -> bool:
    """Sums of floating-point numbers depend on their order."""
    values = [pair for rows in zip(one, other, strict=True) for pair in zip(*rows, strict=True)]
    return all(
        math.isclose(a, b, rel_tol=1e-9) if isinstance(a, float) else a == b for a, b in values
    )


def _rows(query: str, local: Timed, slots: Timed, killed: Timed) -> list[dict[str, Any]]:
    failed = [
        f"the result of {query} differs from that of Spark alone"
        for other in (slots, killed)
        if not _equal(local.rows[query], other.rows[query])
    ]
    local_s, slots_s = (statistics.median(of.seconds[query]) for of in (local, slots))
    killed_s = killed.seconds[query][0]
    return [
        {
            "name": f"{query} on two executors in slots, over local[2]",
            "ours": round(slots_s, 2),
            "unit": "s",
            "peers": {"Spark, local[2]": f"{local_s:.2f} s"},
            "ratio": local_s / slots_s,
            "goal": f">= {GOAL:g} x",
            "met": not failed and local_s / slots_s >= GOAL,
            "failed": failed,
        },
        {
            "name": f"{query} with a killed executor, over the time without",
            "ours": round(killed_s / slots_s, 2),
            "unit": f"x ({killed_s:.1f} s instead of {slots_s:.1f} s)",
            "peers": {},
            "ratio": None,
            "goal": f"<= {GOAL_KILLED:g} x",
            "met": not failed and killed_s / slots_s <= GOAL_KILLED,
            "failed": failed,
        },
    ]


if __name__ == "__main__":
    for row in run(*map(float, sys.argv[1:2])):
        print(row)
