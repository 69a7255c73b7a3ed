"""How long a source waits for more records."""

from __future__ import annotations

import pytest

from taskexecutor.executor.connectors.kafka.fetcher import rest_s


@pytest.mark.parametrize(
    ("spent_s", "expected_s"),
    [(0.0, 0.003), (0.001, 0.003), (0.002, 0.004), (0.005, 0.01), (0.2, 0.05)],
)
def test_a_source_rests_for_longer_than_its_slot_works(spent_s: float, expected_s: float) -> None:
    assert rest_s(spent_s) == pytest.approx(expected_s)
