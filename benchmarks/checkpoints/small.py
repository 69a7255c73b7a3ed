"""Measures checkpoints of a small job: 1,000 numbers per second, through Spark, counted by key, one
checkpoint per second; compared with the same job on Flink SQL.
"""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

from benchmarks.checkpoints import jobs
from benchmarks.peers.environment import (
    ROOT,
    NotInstalled,
    flink_environ,
    flink_python,
    install,
)
from firesteel import Environment
from firesteel.connectors import DiscardSink, SequenceSource

CHECKPOINTS = 80
WARM = 5  # number of checkpoints taken before
GOALS_MS = (15, 60)
FLINK_START_S = 120.0


def program(directory: Path) -> Environment:
    env = Environment(parallelism=2, configuration=jobs.settings(directory, "1 s"))
    (
        env.from_source(SequenceSource(0, 10**12, rate_per_s=1_000))
        .transform(lambda df: df.selectExpr("value % 100 AS k", "value"))
        .key_by("k")
        .aggregate("count(*) AS n", "sum(value) AS s")
        .sink_to(DiscardSink())
    )
    return env


def run(share: float = 1.0) -> list[dict[str, Any]]:
    count = jobs.scaled(CHECKPOINTS, share, least=3)
    with jobs.folder() as directory, jobs.cluster() as cluster:
        client = cluster.client()
        job_id = client.submit(program(directory).job_graph("small"))
        with jobs.Watched(client, job_id) as watched:
            found = watched.wait_for(WARM + count)[WARM:]
        jobs.end(client, job_id)
    name = "checkpoint of a small job, one per second"
    return [jobs.durations(name, found, GOALS_MS, **{"Flink SQL": flink(count)})]


def flink(count: int) -> str:
    """Returns p50 / p99 in ms, or why there are none."""
    try:
        install()
    except NotInstalled as reason:
        return f"not installed: {reason}"
    script = ROOT / "benchmarks" / "checkpoints" / "run_flink.py"
    with jobs.folder() as directory:
        try:
            done = subprocess.run(
                [str(flink_python()), str(script), str(directory), str(WARM), str(count)],
                env=flink_environ(),
                capture_output=True,
                text=True,
                timeout=FLINK_START_S + (WARM + count) * 5,
                check=False,
            )
        except subprocess.TimeoutExpired as expired:
            return f"not within {expired.timeout:.0f} s"
    if done.returncode:
        return f"failed: {(done.stderr.strip() or done.stdout.strip()).splitlines()[-1][:200]}"
    took_ms = json.loads(done.stdout.splitlines()[-1])
    return f"{jobs.percentile(took_ms, 50):.0f} / {jobs.percentile(took_ms, 99):.0f} ms"


if __name__ == "__main__":
    for measured in run():
        print(measured)
