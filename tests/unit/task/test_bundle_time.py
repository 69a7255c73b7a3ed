"""How long a source reads before it gives way."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from taskexecutor.executor.timing.bundle_time import (
    AGGREGATED_BYTES,
    AGGREGATED_S,
    FIRST_ROWS,
    LEAST_BYTES,
    LEAST_S,
    MOST_BYTES,
    MOST_ROWS,
    MOST_S,
    TARGET_S,
    BundleLimit,
    BundleSize,
    BundleTime,
    row_limit,
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


@given(byte_s=st.floats(1e-12, 1e-3), aggregated=st.booleans())
def test_tables_take_about_the_time_that_they_may(byte_s: float, aggregated: bool) -> None:
    size = BundleSize(aggregated=aggregated)
    for _ in range(20):
        size.took(size.limit_bytes * byte_s, size.limit_bytes)
    target_s = MOST_S if aggregated else TARGET_S
    least = AGGREGATED_BYTES if aggregated else LEAST_BYTES
    assert size.limit_bytes * byte_s <= max(target_s, least * byte_s) * 1.001
    assert size.limit_bytes == MOST_BYTES or size.limit_bytes * byte_s >= target_s / 2


def test_slow_functions_after_a_source_get_less() -> None:
    time, size = (kind(aggregated=False, chained=True) for kind in (BundleTime, BundleSize))
    for _ in range(20):
        time.took(time.read_s * 5_000)
        size.took(size.limit_bytes * 1e-4, size.limit_bytes)
    assert time.read_s * 5_000 == pytest.approx(TARGET_S, rel=0.1)
    assert size.limit_bytes * 1e-4 == pytest.approx(TARGET_S, rel=0.1)
    for _ in range(30):
        time.took(time.read_s)
        size.took(size.limit_bytes * 1e-12, size.limit_bytes)
    assert (time.read_s, size.limit_bytes) == (TARGET_S, MOST_BYTES), "they are fast again"


def taken(fixed_s: float, row_s: float, noise: float) -> tuple[list[float], list[int]]:
    """The times and rows of 300 bundles, whose times vary by a fraction."""
    limit, draw = row_limit(chained=True), random.Random(7)
    assert limit is not None
    times, rows = [], []
    for _ in range(300):
        rows.append(int(limit.size))
        took_s = (fixed_s + row_s * rows[-1]) * draw.uniform(1 - noise, 1 + noise)
        times.append(took_s)
        limit.took(took_s, rows[-1])
    return times, rows


@pytest.mark.parametrize("noise", [0.0, 0.3])
@pytest.mark.parametrize("row_s", [5e-5, 2e-3, 2e-2])
def test_bundles_of_slow_rows_are_short(row_s: float, noise: float) -> None:
    times, _ = taken(1e-3, row_s, noise)
    assert times[0] <= 2 * FIRST_ROWS * row_s + 1e-2
    assert sorted(times[20:])[140] <= 2 * TARGET_S


@pytest.mark.parametrize("noise", [0.0, 0.3, 0.6])
@pytest.mark.parametrize("fixed_s", [0.0, 1e-3, 0.04, 0.06, 0.3, 2.0])
def test_a_long_call_per_bundle_does_not_make_bundles_small(fixed_s: float, noise: float) -> None:
    _, rows = taken(fixed_s, 1e-7, noise)
    assert sorted(rows[50:])[125] == MOST_ROWS


def test_a_bundle_without_rows_says_nothing() -> None:
    limit = BundleLimit(first=16, least=1, most=100)
    limit.took(1.0, 0)
    assert limit.size == 16
