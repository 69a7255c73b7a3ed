"""The options of a KafkaSource."""

from __future__ import annotations

import warnings
from datetime import datetime
from typing import Any

import pytest

from firesteel import Environment
from firesteel.connectors import KafkaOffsets, KafkaSource
from firesteel.errors import InvalidProgram

AT = "localhost:9092"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"topics": None}, "pass one of topics, topic_pattern and partitions"),
        ({"topic_pattern": "f.*"}, "pass one of topics, topic_pattern and partitions"),
        ({"topics": []}, "topics is empty"),
        ({"topics": "flights,airports"}, "pass several topics as a list"),
        ({"format": "json"}, r"format is .json.; pass a format, such as Json"),
        ({"start": "first"}, "start is 'first'; allowed: earliest, latest, committed"),
        ({"start": "committed"}, "pass group_id="),
        ({"start": datetime(2013, 1, 1)}, "which has no time zone"),
        ({"start": {"flight": {0: 7}}}, "start has .* 'flight', .* did you mean flights?"),
        ({"end": KafkaOffsets.of({"trains": {0: 7}})}, "end has .* 'trains', .* topics: flights"),
        ({"start": {"flights": {0: -3}}}, "-3 must be an integer that is at least -2"),
        ({"max_records_per_checkpoint": 0}, "max_records_per_checkpoint"),
        ({"min_partitions": 0}, "min_partitions"),
        ({"metadata": ["offsets"]}, "metadata"),
        ({"on_unreadable": "skip"}, "on_unreadable"),
        ({"properties": {"group.id": "g"}}, "pass group_id="),
        ({"bootstrap_servers": "localhost"}, "host:port"),
    ],
)
def test_wrong_options_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidProgram, match=message):
        KafkaSource(**{"topics": "flights", "bootstrap_servers": AT, **options})


def test_offsets_of_topics_that_match_a_pattern_are_checked_later() -> None:
    source = KafkaSource(
        topic_pattern="fl.*", bootstrap_servers=AT, start={"flights": {0: 7}, "others": {0: 1}}
    )
    assert source.start.offsets == {"flights": {0: 7}, "others": {0: 1}}


def test_ranges_are_for_sources_with_an_end() -> None:
    bounded = KafkaSource("t", bootstrap_servers=AT, end="latest", min_partitions=8)
    assert bounded.min_partitions == 8
    env = Environment()
    env.from_source(bounded).print()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        env.job_graph("ranges")
    env = Environment()
    env.from_source(KafkaSource("t", bootstrap_servers=AT, min_partitions=8)).print()
    with pytest.warns(UserWarning, match="min_partitions has no effect on a source without an end"):
        env.job_graph("ranges")
