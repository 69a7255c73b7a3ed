"""Streams enriched by other streams, in both modes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from firesteel import (
    BroadcastProcessFunction,
    Environment,
    KeyedBroadcastProcessFunction,
    Watermarks,
)
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


class Rules(BroadcastProcessFunction):
    def process_element(self, value: Any, ctx: Any) -> Iterator[Any]:
        rules = ctx.get_broadcast_state("rules")
        if (what := rules.get(value.n % 10)) is not None:
            yield value.n, what

    def process_broadcast_element(self, value: Any, ctx: Any) -> None:
        ctx.get_broadcast_state("rules").put(value.rule, f"rule {value.rule}")


class Counted(Rules, KeyedBroadcastProcessFunction):
    """The same, of every second row of a key."""

    def open(self, context: Any) -> None:
        self.count = context.get_state("count", "BIGINT")

    def process_element(self, value: Any, ctx: Any) -> Iterator[Any]:
        self.count.update((self.count.value() or 0) + 1)
        if self.count.value() % 2 == 0:
            yield from super().process_element(value, ctx)


def test_a_batch_has_all_broadcast_rows_first(session: Session) -> None:
    env = Environment(mode="batch", parallelism=2)
    numbers = env.from_sequence(0, 2_000, column="n")
    rules = env.from_sequence(0, 3, column="rule").broadcast("rules")
    schema = "n LONG, what STRING"
    plain = numbers.connect(rules).process(Rules(), schema)
    keyed = numbers.select_expr("n", "n % 100 AS k").key_by("k").connect(rules)
    table = collected(session, plain.union(keyed.process(Counted(), schema)))
    found = Counter(zip(table["n"].to_pylist(), table["what"].to_pylist(), strict=True))
    wanted = [(n, f"rule {n % 10}") for n in range(2_000) if n % 10 < 3]
    assert sorted(found) == wanted
    assert found.total() == len(wanted) * 3 // 2


def test_all_subtasks_get_the_broadcast_rows_of_a_stream(session: Session) -> None:
    env = Environment(parallelism=2)
    rules = env.from_sequence(0, 10, column="rule")

    class Told(Rules):
        def process_element(self, value: Any, ctx: Any) -> None:
            """Rows may come before the rules."""

        def process_broadcast_element(self, value: Any, ctx: Any) -> Iterator[Any]:
            rules = ctx.get_broadcast_state("rules")
            rules.put(value.rule, "")
            yield value.rule, str(len(list(rules.keys())))

    told = env.from_sequence(0, 100, column="n").connect(rules.broadcast("rules"))
    table = collected(session, told.process(Told(), "n LONG, what STRING"))
    assert sorted(table["n"].to_pylist()) == sorted([*range(10), *range(10)])
    assert sorted(map(int, table["what"].to_pylist())) == sorted([*range(1, 11), *range(1, 11)])
