from __future__ import annotations

import pytest

from firesteel.common.units import (
    parse_duration_s,
    parse_size_bytes,
    shortest_duration,
    shortest_size,
)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0"), (0.5, "500 ms"), (1.5, "1500 ms"), (10, "10 s"), (90, "90 s"), (180, "3 min")],
)
def test_a_duration_is_written_as_it_is_read(seconds: float, text: str) -> None:
    assert shortest_duration(seconds) == text
    assert parse_duration_s(text) == seconds


@pytest.mark.parametrize(
    ("size", "text"), [(0, "0"), (100, "100 b"), (2**12, "4 kb"), (3 * 2**20, "3 mb")]
)
def test_a_size_is_written_as_it_is_read(size: int, text: str) -> None:
    assert shortest_size(size) == text
    assert parse_size_bytes(text) == size
