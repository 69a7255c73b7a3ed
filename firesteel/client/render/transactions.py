"""Renders the transactions of Kafka's producers."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from firesteel.client.render.tables import new_table
from firesteel.common.units import duration

if TYPE_CHECKING:
    from taskexecutor.executor.connectors.kafka.verdicts import Description

_NUMBERS = ("Producer", "Epoch", "Began", "Timeout")
_COLUMNS = ("Transactional id", "State", *_NUMBERS, "Partitions", "Readers")


def transactions(found: Mapping[str, Description]) -> Table:
    """Renders transactions by transactional id, the oldest first."""
    table = new_table(*_COLUMNS, right=_NUMBERS, gives_way=("Transactional id", "Partitions"))
    now_ms = time.time() * 1000
    for name, description in sorted(found.items(), key=lambda item: item[1].began_ms):
        table.add_row(
            Text(name),
            Text(description.state.value, style="yellow" if description.state.open else ""),
            str(description.producer_id),
            str(description.epoch),
            f"{duration((now_ms - description.began_ms) / 1000)} ago"
            if description.began_ms > 0
            else "-",
            duration(description.timeout_ms / 1000),
            partitions(description),
            Text("blocked", style="yellow") if description.blocks_readers else "",
        )
    return table


def partitions(description: Description) -> str:
    """Formats as `orders/0,1,4 payments/2`."""
    numbers: dict[str, list[int]] = defaultdict(list)
    for topic, partition in description.partitions:
        numbers[topic].append(partition)
    return " ".join(f"{topic}/{','.join(map(str, of))}" for topic, of in numbers.items()) or "-"


def transaction(name: str, description: Description) -> RenderableType:
    """Renders one transaction, for a decision about it."""
    return Group(*(Text(line) for line in _facts(name, description)))


def _facts(name: str, description: Description) -> Iterator[str]:
    age_s = time.time() - description.began_ms / 1000
    yield f"Transactional id {name}: {description.state.value}"
    yield f"  producer {description.producer_id}, epoch {description.epoch}"
    yield (
        f"  began {duration(max(0.0, age_s))} ago; the broker aborts it after"
        f" {duration(description.timeout_ms / 1000)}"
    )
    yield f"  wrote to {partitions(description)}"
