"""The whole cluster on virtual time: the services' real shells, under random faults, for a fixed
number of seeds. `make sim` runs others (SEED=, COUNT=).
"""

from __future__ import annotations

from collections import Counter

import pytest

from tests.simulation.run import simulate

SEEDS = 40
GROUPS = 2
WANTED = (
    "leaders followed",
    "job restarts",
    "region restarts",
    "starts from a checkpoint",
    "partitions read",
    "splits reassigned",
    "splits committed",
)


@pytest.mark.parametrize("group", range(GROUPS))
def test_the_cluster_comes_to_rest(group: int) -> None:
    happened = Counter[str]()
    for seed in range(group, SEEDS, GROUPS):
        happened.update(simulate(seed).happened)
    assert all(happened[what] for what in WANTED), f"not seen: {happened}"


def test_a_seed_is_one_history() -> None:
    assert simulate(7) == simulate(7)
