"""The metrics of observations: which batch has which, and how they are written."""

from __future__ import annotations

import datetime
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any, cast

import pytest

from firesteel.spark_connect.observations import Observation, in_json, metrics_of

MOMENT = datetime.datetime(2024, 7, 1, 10, 30, 15, 999_999, datetime.UTC)
BERLIN = "2024-07-01 12:30:15"


@dataclass
class Taken:
    """Stands for an observation with these metrics."""

    name: str
    metrics: dict[int | None, dict[str, Any]]
    without_rows: dict[str, Any] = field(default_factory=lambda: {"n": 0})

    def take(self, until: int | None) -> dict[int | None, dict[str, Any]]:
        return self.metrics


def metrics(*taken: Taken, until: int | None) -> list[Any]:
    return metrics_of(cast(list[Observation], taken), until)


def test_each_batch_has_the_metrics_of_all_observations() -> None:
    first, second = Taken("a", {3: {"n": 1}}), Taken("b", {3: {"n": 2}})
    assert metrics(first, second, until=3) == [{"a": {"n": 1}, "b": {"n": 2}}]
    assert metrics(until=3) == []


def test_an_observation_without_rows_has_its_empty_metrics() -> None:
    first, second = Taken("a", {3: {"n": 1}}), Taken("b", {})
    assert metrics(first, second, until=3) == [{"a": {"n": 1}, "b": {"n": 0}}]
    assert metrics(second, until=3) == [{"b": {"n": 0}}]


def test_checkpoints_are_in_their_order_and_the_end_is_last() -> None:
    first, second = Taken("a", {None: {"n": 3}, 2: {"n": 1}}), Taken("b", {4: {"n": 2}})
    assert metrics(first, second, until=None) == [
        {"a": {"n": 1}, "b": {"n": 0}},
        {"a": {"n": 0}, "b": {"n": 2}},
        {"a": {"n": 3}, "b": {"n": 0}},
    ]


@pytest.mark.parametrize(
    ("value", "written"),
    [
        (Decimal("1.50"), 1.5),
        (b"\x00\x01", "AAE="),
        (datetime.date(2024, 2, 29), "2024-02-29"),
        (MOMENT, BERLIN),
        (MOMENT.replace(tzinfo=None), "2024-07-01 10:30:15"),
        ({"at": MOMENT, "all": [MOMENT, None]}, {"at": BERLIN, "all": [BERLIN, None]}),
        ("text", "text"),
        (None, None),
    ],
)
def test_values_are_written_as_by_spark(value: Any, written: Any) -> None:
    assert in_json(value, "Europe/Berlin") == written


def test_times_in_an_unknown_zone_are_in_utc() -> None:
    assert in_json(MOMENT, "GMT+2") == "2024-07-01 10:30:15Z"
