"""How long a source reads before it gives way."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from taskexecutor.executor.timing.bundle_time import (
    AGGREGATED_BYTES,
    AGGREGATED_S,
    LEAST_BYTES,
    LEAST_CHAINED_BYTES,
    LEAST_CHAINED_S,
    LEAST_S,
    MOST_BYTES,
    MOST_ROWS,
    MOST_S,
    TARGET_S,
    BundleRows,
    BundleSize,
    BundleTime,
)


@given(slowness=st.floats(1.0, 1e6), chained=st.booleans())
def test_a_slow_step_behind_the_source_makes_it_give_way_sooner(
    slowness: float, chained: bool
) -> None:
    time = BundleTime(aggregated=False, chained=chained)
    for _ in range(20):
        time.took(time.read_s * slowness)
    least_s = LEAST_CHAINED_S if chained else LEAST_S
    assert time.read_s * slowness <= max(TARGET_S, least_s * slowness) * 1.001
    for _ in range(20):
        time.took(time.read_s)
    assert time.read_s == TARGET_S, "it is fast again"


def test_aggregates_with_many_keys_are_emitted_less_often() -> None:
    time = BundleTime(aggregated=True, chained=False)
    time.took(AGGREGATED_S + 0.001)
    assert time.read_s == AGGREGATED_S
    for flush_s, expected_s in ((0.03, 0.12), (1.0, MOST_S), (0.0, AGGREGATED_S)):
        time.took(time.read_s + flush_s)
        assert abs(time.read_s - expected_s) < 1e-9


@given(byte_s=st.floats(1e-12, 1e-3), aggregated=st.booleans(), chained=st.booleans())
def test_tables_take_about_the_time_that_they_may(
    byte_s: float, aggregated: bool, chained: bool
) -> None:
    size = BundleSize(aggregated=aggregated, chained=chained)
    for _ in range(20):
        size.took(size.limit_bytes * byte_s, size.limit_bytes)
    target_s = MOST_S if aggregated else TARGET_S
    least = LEAST_CHAINED_BYTES if chained else LEAST_BYTES
    least = AGGREGATED_BYTES if aggregated else least
    assert size.limit_bytes * byte_s <= max(target_s, least * byte_s) * 1.001
    assert size.limit_bytes == MOST_BYTES or size.limit_bytes * byte_s >= target_s / 2


@given(row_s=st.floats(1e-9, 1.0), chained=st.booleans())
def test_rows_take_about_the_time_that_they_may(row_s: float, chained: bool) -> None:
    limit = BundleRows(chained=chained)
    for _ in range(20):
        limit.took(limit.rows * row_s, limit.rows)
    assert limit.rows == 1 or limit.rows * row_s <= TARGET_S * 1.001
    assert limit.rows == MOST_ROWS or (limit.rows + 1) * row_s >= TARGET_S / 1.001
