"""Pods of TaskExecutors under faults of the API server: the driver alone, and with the SlotManager."""

from __future__ import annotations

import pytest

from tests.long import long_after
from tests.simulation import pods, pods_and_slots


@pytest.mark.parametrize("seed", long_after(20, range(500)))
def test_workers_and_pods_agree_after_all_faults(seed: int) -> None:
    pods.simulate(seed)


@pytest.mark.parametrize("seed", long_after(8, range(200)))
def test_slots_workers_and_pods_agree_after_all_faults(seed: int) -> None:
    pods_and_slots.simulate(seed)
