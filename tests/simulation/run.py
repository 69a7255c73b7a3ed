"""One simulation of a whole session cluster: jobs of random shapes, random faults, then rest, then
the checkers. Everything is drawn from the seed.

    python -m tests.simulation.run --seed 17           one seed
    python -m tests.simulation.run --seed 0 --count 500
"""

from __future__ import annotations

import concurrent.futures
import os
import sys
import time
from collections import Counter
from dataclasses import dataclass
from functools import partial
from random import Random

import click

from tests.simulation.cluster import Cluster
from tests.simulation.faults import draw_faults, follow_progress, schedule
from tests.simulation.loop import START_S
from tests.simulation.world import SimulationFailed

FAULTS_UNTIL_S = 40.0
REST_S = 240.0  # longer than every timeout there is, in a row


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    lasted_s: float  # of virtual time
    steps: int
    jobs: Counter[str]  # by the status they ended with
    happened: Counter[str]  # checked events, by kind


def simulate(seed: int) -> Outcome:
    """Raises SimulationFailed."""
    with Cluster(seed) as cluster:
        random = cluster.world.random
        # Apart from the world's: a seed without them has the same history as if there were none.
        scales = Random(f"scales of seed {seed}")
        for _ in range(random.randint(1, 4)):
            submitted = cluster.draw_job()
            begin_s = random.uniform(0.0, FAULTS_UNTIL_S * 0.6)
            cluster.at(begin_s, lambda submitted=submitted: cluster.submit(submitted))
            if random.random() < 0.25:
                cluster.at(
                    begin_s + random.uniform(0.1, 20.0),
                    lambda submitted=submitted: cluster.cancel(submitted),
                )
            if scales.random() < 0.6:
                for _ in range(scales.randint(1, 6)):
                    at_s, parallelism = begin_s + scales.uniform(1.0, 25.0), scales.randint(1, 4)
                    cluster.at(at_s, partial(cluster.scale, submitted, parallelism))
        schedule(cluster, *draw_faults(cluster, FAULTS_UNTIL_S))
        follow_progress(cluster)
        cluster.run(FAULTS_UNTIL_S)
        cluster.end_faults()
        cluster.rest(REST_S)
        return Outcome(
            lasted_s=cluster.world.now - START_S,
            steps=cluster.world.loop.steps,
            jobs=cluster.checkers.outcomes(),
            happened=cluster.checkers.happened(),
        )


@click.command()
@click.option("--seed", default=0, help="The first one.")
@click.option("--count", default=1, help="How many seeds, from the first one on.")
@click.option("--jobs", default=len(os.sched_getaffinity(0)), help="How many at the same time.")
def main(seed: int, count: int, jobs: int) -> None:
    """Simulates; a failure prints its seed and the last events. Prints the speed at the end."""
    lasted_s, ends, happened, failed = 0.0, Counter[str](), Counter[str](), []
    began = time.perf_counter()
    with concurrent.futures.ProcessPoolExecutor(min(jobs, count)) as pool:
        for number, outcome in enumerate(pool.map(_outcome, range(seed, seed + count)), seed):
            if isinstance(outcome, str):
                failed.append(number)
                click.echo(f"seed {number} failed: {outcome}\n")
            else:
                lasted_s += outcome.lasted_s
                ends += outcome.jobs
                happened.update(outcome.happened)
    real_s = time.perf_counter() - began
    click.echo(
        f"{count} seeds from {seed}: {lasted_s:,.0f} virtual seconds in {real_s:.1f} s,"
        f" {lasted_s / real_s:,.0f} x real time"
    )
    click.echo("jobs: " + ", ".join(f"{n} {status}" for status, n in sorted(ends.items())))
    click.echo("happened: " + ", ".join(f"{n:,} {what}" for what, n in happened.items()))
    if failed:
        raise SystemExit(f"{len(failed)} failed: {' '.join(map(str, failed))}")


def _outcome(seed: int) -> Outcome | str:
    """Runs one seed in a process of the pool. A returned text describes the failure."""
    try:
        return simulate(seed)
    except SimulationFailed as problem:
        return str(problem)


if __name__ == "__main__":
    if os.environ.get("PYTHONHASHSEED") != "0":  # the order of sets belongs to a history, too
        os.execve(
            sys.executable,
            [sys.executable, "-m", "tests.simulation.run", *sys.argv[1:]],
            {**os.environ, "PYTHONHASHSEED": "0"},
        )
    main()
