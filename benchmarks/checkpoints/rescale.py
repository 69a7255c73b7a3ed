"""Measures how long the output of a job with 1 GB of keyed state pauses when it is rescaled.

The state is in RocksDB: a million keys with 1,000 random bytes each. The job replaces 2,000 of them
per second. All slots are warm. The pause is the longest time between two batches that reach the
sink. It is measured from 2 to 4 subtasks and back, and on Flink with its adaptive scheduler.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.checkpoints import jobs
from benchmarks.checkpoints.rescale_functions import FILLED, TIMES, VALUE_BYTES, Keep, Keys, Times
from benchmarks.peers.environment import ROOT, NotInstalled, flink_environ, flink_python, install
from firesteel import Environment
from firesteel.client.client import Client
from firesteel.common.rescales import Rescale
from firesteel.connectors import DiscardSink

KEYS, RATE_PER_S = 1_000_000, 2_000.0
FEW, MANY = 2, 4
ROUNDS = 3  # changes in each direction
SETTLES_S = 3.0
GOAL_S = 2.0
TIMEOUT_S = 900.0  # patience with a gigabyte


class Gap(NamedTuple):
    longest_s: float  # between two batches at the sink
    all_s: float  # from the last batch before, until every subtask has new output
    stages: dict[str, float]  # seconds


def program(directory: Path, keys: int) -> Environment:
    settings = jobs.settings(directory / "checkpoints", "10 s", **{"state.backend.type": "rocksdb"})
    env = Environment(parallelism=FEW, configuration=settings)
    (
        env.from_source(Keys(keys, RATE_PER_S, directory), uid="keys")
        .set_parallelism(1)
        .key_by("k")
        .operator("keep", Keep, "k BIGINT, n BIGINT")
        .map_in_arrow(Times(directory), "k BIGINT, n BIGINT")
        .sink_to(DiscardSink())
    )
    return env


def rescaled(client: Client, job_id: str, directory: Path, parallelism: int) -> Gap:
    before = set(directory.glob(f"{TIMES}*"))
    since_ns = time.time_ns()
    client.rescale(job_id, parallelism)

    def new() -> set[Path]:
        return {path for path in directory.glob(f"{TIMES}*") if path.stat().st_size} - before

    jobs.wait(
        lambda: len(new()) == parallelism, "every subtask has new output", timeout_s=TIMEOUT_S
    )
    time.sleep(SETTLES_S)
    (change, *_) = client.job_details(job_id).rescales
    old_ns = max(max(_times(path)) for path in before)
    firsts_ns = [min(_times(path)) for path in new()]
    every = sorted(t for path in before | new() for t in _times(path) if t > since_ns - 10**9)
    longest_ns = max(after - first for first, after in pairwise(every))
    return Gap(longest_ns / 1e9, (max(firsts_ns) - old_ns) / 1e9, _stages(change))


def _times(path: Path) -> list[int]:
    return [int(line) for line in path.read_text().split()]


def _stages(change: Rescale) -> dict[str, float]:
    ends_ms = [stage.timestamp_ms for stage in change.stages[1:]] + [change.end_ms]
    return {
        stage.name: (end_ms - stage.timestamp_ms) / 1000
        for stage, end_ms in zip(change.stages, ends_ms, strict=True)
    }


def measure(keys: int, rounds: int) -> dict[int, list[Gap]]:
    """Returns the gaps by the parallelism afterwards."""
    found: dict[int, list[Gap]] = {MANY: [], FEW: []}
    with jobs.folder() as directory, jobs.cluster(task_executors=2, slots=2) as cluster:
        client = cluster.client()
        job_id = client.submit(program(directory, keys).job_graph("rescale"))
        jobs.wait((directory / FILLED).exists, "the state is filled", timeout_s=TIMEOUT_S)
        for _ in range(rounds):
            for parallelism in (MANY, FEW):
                _await_checkpoint(client, job_id)
                found[parallelism].append(rescaled(client, job_id, directory, parallelism))
        jobs.end(client, job_id)
    return found


def _await_checkpoint(client: Client, job_id: str) -> None:
    """Waits for a complete checkpoint that was triggered from now on."""
    since_ms = time.time() * 1000
    jobs.wait(
        lambda: any(
            c.state == "COMPLETED" and c.triggered_ms >= since_ms
            for c in client.job_details(job_id).checkpoints
        ),
        "a complete checkpoint",
        timeout_s=TIMEOUT_S,
    )


def flink(keys: int, rounds: int) -> dict[int, str]:
    """Returns the gaps by the parallelism afterwards, as text, or why there are none."""
    try:
        install()
    except NotInstalled as reason:
        return dict.fromkeys((MANY, FEW), f"not installed: {reason}")
    script = ROOT / "benchmarks" / "checkpoints" / "run_flink_rescale.py"
    with jobs.folder() as directory, tempfile.TemporaryFile("w+") as errors:
        done = subprocess.run(
            [str(flink_python()), str(script), str(directory), str(keys), str(rounds)],
            env=flink_environ(),
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            timeout=2 * TIMEOUT_S,
            check=False,
        )
        errors.seek(0)
        last = (errors.read().strip() or "no output").splitlines()[-1]
    if done.returncode:
        return dict.fromkeys((MANY, FEW), f"failed: {last[:200]}")
    gaps = json.loads(done.stdout.splitlines()[-1])
    return {parallelism: _text(gaps[str(parallelism)]) for parallelism in (MANY, FEW)}


def _text(gaps_s: Sequence[float]) -> str:
    return f"{jobs.percentile(gaps_s, 50):.1f} s (worst of {len(gaps_s)}: {max(gaps_s):.1f})"


def run(share: float = 1.0) -> list[dict[str, Any]]:
    keys, rounds = jobs.scaled(KEYS, share, least=10_000), jobs.scaled(ROUNDS, share, least=1)
    found, peer = measure(keys, rounds), flink(keys, rounds)
    rows = []
    for parallelism, before in ((MANY, FEW), (FEW, MANY)):
        gaps = found[parallelism]
        longest = [gap.longest_s for gap in gaps]
        every = max(gap.all_s for gap in gaps)
        rows.append(
            jobs.row(
                f"rescale {before} -> {parallelism}, {keys * VALUE_BYTES / 1e9:.2g} GB of state",
                _text(longest),
                f"without output (until all subtasks have output: at most {every:.1f} s)",
                f"<= {GOAL_S:g} s",
                met=max(longest) <= GOAL_S,
                Flink=peer[parallelism],
            )
        )
    return rows


if __name__ == "__main__":
    for parallelism, gaps in measure(int(sys.argv[1]) if sys.argv[1:] else KEYS, 1).items():
        print(parallelism, gaps)
