"""Measures `start()` of a streaming query on a warm session cluster: the time from the call to the
first details of its job with all tasks RUNNING.

The query counts rows in windows with a parallelism of 2, so its four tasks are in two slots.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.peers.environment import ROOT
from benchmarks.submit import all_running
from firesteel.client.client import Client
from firesteel.client.cluster import LocalCluster
from firesteel.common.config import Configuration, options

SLOTS = 2
QUERIES = 11  # the first one also starts the session
GOAL_MS = 400
PROGRAM = Path(__file__).with_name("query_start_program.py")
_POLL_S = 0.05  # far shorter than a start; each poll takes CPU time from it


def run() -> list[dict[str, Any]]:
    conf = Configuration.load(overrides={options.METRICS_PORT.key: "0"})
    with (
        tempfile.TemporaryDirectory(prefix="bench-start-") as folder,
        LocalCluster(conf, task_executors=1, slots=SLOTS) as cluster,
    ):
        cluster.wait_for_slots()
        command = [sys.executable, "-m", "firesteel", "run", "-m", cluster.address, "-p", "2"]
        program = subprocess.Popen(
            [*command, str(PROGRAM), folder, str(QUERIES)],
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            stdout=subprocess.PIPE,
            text=True,
        )
        try:
            first, *others = _measured(program, cluster.client(), Path(folder))
        finally:
            program.terminate()
            program.wait()
    took_ms = statistics.median(others)
    return [
        {
            "name": "start() of a streaming query on a warm session cluster -> all tasks RUNNING",
            "ours": round(took_ms),
            "unit": f"ms (median of {len(others)}, worst {max(others):.0f}; with the start of the"
            f" session {first:.0f})",
            "peers": {},
            "ratio": None,
            "goal": f"<= {GOAL_MS} ms",
            "met": took_ms <= GOAL_MS,
            "failed": [],
        }
    ]


def _measured(program: subprocess.Popen[str], client: Client, folder: Path) -> list[float]:
    """Returns the milliseconds that each query took."""
    assert program.stdout is not None
    known: set[str] = set()
    measured: list[float] = []
    for line in program.stdout:
        match line.split():
            case ["starts", began_s]:
                job_id = _new_job(client, known, program)
                known.add(job_id)
                if not any(map(all_running, client.watch_job(job_id))):
                    raise RuntimeError(f"job {job_id} ended before all its tasks were RUNNING")
                measured.append((time.time() - float(began_s)) * 1000)
                (folder / str(len(measured) - 1)).touch()
    if len(measured) != QUERIES or program.wait():
        raise RuntimeError(f"the program ended with exit code {program.wait()}")
    return measured


def _new_job(client: Client, known: set[str], program: subprocess.Popen[str]) -> str:
    while program.poll() is None:
        for job in client.list_jobs():
            if job.job_id not in known:
                return job.job_id
        time.sleep(_POLL_S)
    raise RuntimeError(f"the program ended with exit code {program.returncode}")


if __name__ == "__main__":
    for row in run():
        print(row)
