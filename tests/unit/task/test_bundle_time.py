"""How long a source reads before it gives way."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from taskexecutor.executor.timing.bundle_time import (
    AGGREGATED_S,
    LEAST_S,
    MOST_S,
    TARGET_S,
    BundleTime,
)


@given(slowness=st.floats(1.0, 1000.0))
def test_a_slow_step_behind_the_source_makes_it_give_way_sooner(slowness: float) -> None:
    time = BundleTime(aggregated=False)
    for _ in range(20):
        time.took(time.read_s * slowness)
    assert time.read_s * slowness <= max(TARGET_S, LEAST_S * slowness) * 1.001
    for _ in range(20):
        time.took(time.read_s)
    assert time.read_s == TARGET_S, "it is fast again"


def test_aggregates_with_many_keys_are_emitted_less_often() -> None:
    time = BundleTime(aggregated=True)
    time.took(AGGREGATED_S + 0.001)
    assert time.read_s == AGGREGATED_S
    for flush_s, expected_s in ((0.03, 0.12), (1.0, MOST_S), (0.0, AGGREGATED_S)):
        time.took(time.read_s + flush_s)
        assert abs(time.read_s - expected_s) < 1e-9
