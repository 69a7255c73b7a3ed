"""Streams enriched by other streams, in both modes."""

from __future__ import annotations

from typing import Any

import pytest

from firesteel import Environment, Watermarks
from firesteel.datastream import DataStream

from .conftest import Session
from .test_streams import collected

MODES = pytest.mark.parametrize("mode", ["streaming", "batch"])


@MODES
def test_each_row_is_joined_with_the_version_of_its_time(session: Session, mode: Any) -> None:
    env = Environment(mode=mode, parallelism=2)

    def timed(count: int, every_s: int, name: str, *more: str) -> DataStream:
        rows = env.from_sequence(0, count, column="n").select_expr(
            "n % 7 AS k", f"timestamp_seconds(n * {every_s}) AS {name}_at", f"n AS {name}", *more
        )
        return rows.assign_timestamps_and_watermarks(
            Watermarks.bounded(f"{name}_at", max_out_of_orderness="1 day")
        )

    sales = timed(5_000, 1, "sale")
    prices = timed(50, 100, "price", "CASE WHEN n % 5 = 3 THEN 'delete' ELSE 'insert' END row_kind")
    table = collected(session, sales.as_of_join(prices, on="k", how="left"))
    assert table.column_names == ["k", "sale_at", "sale", "price_at", "price"]
    expected = []
    for sale in range(5_000):
        version = max((n for n in range(50) if n % 7 == sale % 7 and n * 100 <= sale), default=None)
        deleted = version is not None and version % 5 == 3
        expected.append((sale, None if deleted else version))
    found = zip(table["sale"].to_pylist(), table["price"].to_pylist(), strict=True)
    assert sorted(found) == expected
