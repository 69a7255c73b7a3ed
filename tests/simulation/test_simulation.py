"""The whole cluster on virtual time: the services' real shells, under random faults, for a fixed
number of seeds. `make sim` runs others (SEED=, COUNT=).
"""

from __future__ import annotations

import pytest

from tests.simulation.run import simulate

SEEDS = 40
GROUPS = 4


@pytest.mark.parametrize("group", range(GROUPS))
def test_the_cluster_comes_to_rest(group: int) -> None:
    for seed in range(group, SEEDS, GROUPS):
        simulate(seed)


def test_a_seed_is_one_history() -> None:
    assert simulate(7) == simulate(7)
