"""The whole cluster on virtual time: the services' real shells, under random faults, for a fixed
number of seeds. `make sim` runs others (SEED=, COUNT=).
"""

from __future__ import annotations

from collections import Counter

import pytest

from tests.long import long_after
from tests.simulation.run import simulate

SEEDS = [range(66, 76), range(50, 90)]
WANTED = (
    "leaders followed",
    "job restarts",
    "region restarts",
    "starts from a checkpoint",
    "starts of joins from one",
    "partitions read",
    "splits reassigned",
    "splits committed",
    "rescales to more slots",
    "rescales to fewer slots",
)


@pytest.mark.parametrize("seeds", long_after(1, SEEDS), ids=len)
def test_the_cluster_comes_to_rest(seeds: range) -> None:
    happened = Counter[str]()
    for seed in seeds:
        happened.update(simulate(seed).happened)
    assert all(happened[what] for what in WANTED), f"not seen: {happened}"


def test_a_seed_is_one_history() -> None:
    assert simulate(7) == simulate(7)
