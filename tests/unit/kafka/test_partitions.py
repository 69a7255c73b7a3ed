"""Partitions have owners and offsets, and missing records are detected."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from firesteel.connectors import KafkaOffsets
from firesteel.errors import FiresteelError
from taskexecutor.executor.connectors.kafka.partitions import (
    Available,
    Listing,
    Lookup,
    Partition,
    Progress,
    Topic,
    decoded,
    encoded,
    fallback,
    lookups,
    missing,
    owned,
    unknown_partitions,
)

PARTITIONS = st.lists(
    st.builds(Partition, st.text("abc.-_1", min_size=1, max_size=8), st.integers(0, 999)),
    unique=True,
)
PROGRESS = st.builds(
    Progress,
    topic=st.text("abc", min_size=1),
    partition=st.integers(0, 999),
    topic_id=st.sampled_from(["", "zKA4wHDdTCyOmiamBiPXHA"]),
    next=st.integers(0, 2**63 - 1),
    end=st.none() | st.integers(0, 2**63 - 1),
    time_us=st.none() | st.integers(-(2**62), 2**62),
)


def _at(offset: int, topic_id: str = "one") -> Progress:
    return Progress(topic="t", partition=0, topic_id=topic_id, next=offset)


@given(PARTITIONS, st.integers(1, 12))
def test_each_partition_has_one_owner_at_any_parallelism(
    partitions: list[Partition], parallelism: int
) -> None:
    shares = [owned(partitions, subtask, parallelism) for subtask in range(parallelism)]
    assert sorted(each for share in shares for each in share) == sorted(partitions)


@given(st.text("abc", min_size=1), st.integers(1, 100), st.integers(1, 12))
def test_the_partitions_of_a_topic_are_distributed_evenly(
    topic: str, count: int, parallelism: int
) -> None:
    partitions = [Partition(topic, number) for number in range(count)]
    sizes = [len(owned(partitions, subtask, parallelism)) for subtask in range(parallelism)]
    assert max(sizes) - min(sizes) <= 1


@given(st.lists(st.lists(PROGRESS)))
def test_the_state_of_several_subtasks_is_read_back(parts: list[list[Progress]]) -> None:
    assert decoded(map(encoded, parts)) == [each for part in parts for each in part]


def test_offsets_of_single_partitions_precede_those_of_all() -> None:
    offsets = KafkaOffsets.of({"t": {0: 5, 1: -1, 2: -2}}, others="committed")
    partitions = [Partition("t", number) for number in range(4)]
    assert list(lookups("start", offsets, partitions).values()) == [
        Lookup("offset", 5),
        Lookup("latest"),
        Lookup("earliest"),
        Lookup("committed"),
    ]


def test_partitions_without_an_offset_are_named() -> None:
    offsets = KafkaOffsets.of({"t": {0: 5}})
    with pytest.raises(FiresteelError, match="start has no offset for topic t, partition 1;"):
        lookups("start", offsets, [Partition("t", 0), Partition("t", 1)])
    assert unknown_partitions(offsets, [Partition("t", 1)]) == [Partition("t", 0)]


@pytest.mark.parametrize(
    ("lookup", "reason"),
    [
        (Lookup("committed"), "the group has committed no offset for it; where it has none,"),
        (Lookup("timestamp", 7), "it has no record with a timestamp of 7 ms or later; set "),
    ],
)
def test_an_offset_that_does_not_exist_has_a_replacement_or_fails(
    lookup: Lookup, reason: str
) -> None:
    assert fallback("start", Partition("t", 0), lookup, "latest") == Lookup("latest")
    with pytest.raises(FiresteelError, match=f"topic t, partition 0: {reason}.*otherwise="):
        fallback("start", Partition("t", 0), lookup, "fail")


@pytest.mark.parametrize(
    ("progress", "topic_id", "available", "why", "resume"),
    [
        (_at(5), None, None, "the topic was deleted; offset 5 is requested", None),
        (_at(5), "one", None, "the topic no longer has this partition", None),
        (_at(5), "two", Available(0, 9), "the topic was deleted and created again", 0),
        (_at(5), "one", Available(6, 9), "deleted records that were not read; offset 5", 6),
        (_at(5), "one", Available(0, 4), "offsets 0 to 4 are available", 4),
    ],
)
def test_missing_records_are_found(
    progress: Progress,
    topic_id: str | None,
    available: Available | None,
    why: str,
    resume: int | None,
) -> None:
    found = missing(progress, topic_id, available)
    assert found is not None and why in str(found) and found.resume == resume
    assert str(found).startswith("topic t, partition 0: ")


@pytest.mark.parametrize("offset", [3, 5, 9])
@pytest.mark.parametrize(("before", "now"), [("one", "one"), ("", "one"), ("one", "")])
def test_nothing_is_missing_within_the_log(offset: int, before: str, now: str) -> None:
    assert missing(_at(offset, before), now, Available(3, 9)) is None


def test_only_the_partitions_of_the_program_are_listed() -> None:
    listing = Listing(topics={"b": Topic("2", (0, 1)), "a": Topic("1", (0, 1))})
    assert listing.partitions({"a": (1, 7)}) == [Partition("a", 1)]
    assert [str(each) for each in listing.partitions()] == [
        "topic a, partition 0",
        "topic a, partition 1",
        "topic b, partition 0",
        "topic b, partition 1",
    ]
    assert listing.topic_id("a") == "1" and listing.topic_id("c") is None
