"""The whole cluster on virtual time, from one seed: jobs of random shapes, random faults, then
rest, then the checkers.

FIRESTEEL_SEED=17 pytest tests/simulation          replays exactly that one
FIRESTEEL_SEEDS=1000-1999 pytest tests/simulation  runs that many others
"""

from __future__ import annotations

import os
import time

import pytest

from tests.simulation.cluster import Cluster
from tests.simulation.faults import draw_faults, schedule

FAULTS_UNTIL_S = 40.0
REST_S = 110.0  # longer than every timeout there is, in a row
GROUPS = 4
BUDGET_S = 2.5  # real seconds for one group


def simulate(seed: int) -> Cluster:
    cluster = Cluster(seed)
    random = cluster.world.random
    for _ in range(random.randint(1, 6)):
        submitted = cluster.draw_job()
        begin_s = random.uniform(0.0, FAULTS_UNTIL_S * 0.6)
        cluster.at(begin_s, lambda submitted=submitted: cluster.submit(submitted))
        if random.random() < 0.35:
            cluster.at(
                begin_s + random.uniform(0.1, 20.0),
                lambda submitted=submitted: cluster.cancel(submitted),
            )
    schedule(cluster, *draw_faults(cluster, FAULTS_UNTIL_S))
    cluster.run(FAULTS_UNTIL_S)
    cluster.end_faults()
    cluster.rest(REST_S)
    return cluster


def _groups() -> list[range]:
    if one := os.environ.get("FIRESTEEL_SEED"):
        return [range(int(one), int(one) + 1)]
    if many := os.environ.get("FIRESTEEL_SEEDS"):
        first, _, last = many.partition("-")
        return [range(int(first), int(last) + 1)]
    return [range(group * 1000, group * 1000 + 1000) for group in range(GROUPS)]


@pytest.mark.parametrize("seeds", _groups(), ids=lambda seeds: f"seeds from {seeds[0]}")
def test_the_cluster_comes_to_rest(seeds: range) -> None:
    limited = "FIRESTEEL_SEED" not in os.environ and "FIRESTEEL_SEEDS" not in os.environ
    end = time.monotonic() + BUDGET_S
    for done, seed in enumerate(seeds):
        if limited and done >= 5 and time.monotonic() > end:
            return
        simulate(seed)
