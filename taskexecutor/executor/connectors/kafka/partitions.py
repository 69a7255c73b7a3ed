"""Assigns partitions to subtasks, finds their starts and ends, and detects missing records (pure).

Subtasks need no coordinator: each lists all partitions, and takes those that `owner` gives it. A
partition that is in no restored state is new, and is read from its first record on.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, TypeAlias

import mmh3

from firesteel.connectors.kafka.offsets import EARLIEST, LATEST, KafkaOffsets, Otherwise
from firesteel.errors import FiresteelError

VERSION = 1  # of the state


class Partition(NamedTuple):
    topic: str
    partition: int

    def __str__(self) -> str:
        return f"topic {self.topic}, partition {self.partition}"


def owner(of: Partition, parallelism: int) -> int:
    """Returns the subtask that reads the partition. The partitions of a topic are distributed
    evenly, and the first ones of many topics as well.
    """
    return int((mmh3.hash(of.topic, signed=False) + of.partition) % parallelism)


def owned(found: Iterable[Partition], subtask: int, parallelism: int) -> list[Partition]:
    return [each for each in found if owner(each, parallelism) == subtask]


# -- progress


@dataclass(slots=True, kw_only=True)
class Progress:
    """How far a partition has been read. The operator that reads it moves `next` forward."""

    topic: str
    partition: int
    topic_id: str  # empty: the broker has none
    next: int  # the offset of the next record
    end: int | None = None  # the offset before which to stop
    time_us: int | None = None  # the latest event time

    @property
    def key(self) -> Partition:
        return Partition(self.topic, self.partition)

    @property
    def ended(self) -> bool:
        return self.end is not None and self.next >= self.end


def encoded(progress: Iterable[Progress]) -> str:
    """Returns a list state's item with the partitions."""
    return json.dumps(
        [[p.topic, p.partition, p.topic_id, p.next, p.end, p.time_us] for p in progress]
    )


def decoded(items: Iterable[str]) -> list[Progress]:
    return [
        Progress(
            topic=topic, partition=partition, topic_id=topic_id, next=at, end=end, time_us=time_us
        )
        for item in items
        for topic, partition, topic_id, at, end, time_us in json.loads(item)
    ]


# -- starts and ends


class Lookup(NamedTuple):
    """How a partition's offset is found: it is given, or the broker knows it."""

    kind: Literal["offset", "earliest", "latest", "committed", "timestamp"]
    number: int = 0  # the offset, or milliseconds since the epoch


Found: TypeAlias = Mapping[Partition, int | None]  # None: there is no such offset


def lookups(
    what: str, offsets: KafkaOffsets, partitions: Sequence[Partition]
) -> dict[Partition, Lookup]:
    """Returns how to find the offset of each partition. Raises FiresteelError for partitions for
    which `offsets` has none.
    """
    found = {each: _lookup(offsets, each) for each in partitions}
    without = [each for each, lookup in found.items() if lookup is None]
    if without:
        raise FiresteelError(
            f"{what} has no offset for {_listed(without)}; list all partitions (earliest: -2,"
            " latest: -1), or set others= of KafkaOffsets.of(...)"
        )
    return {each: lookup for each, lookup in found.items() if lookup is not None}


def unknown_partitions(offsets: KafkaOffsets, partitions: Iterable[Partition]) -> list[Partition]:
    """Returns the partitions that `offsets` lists and that do not exist."""
    existing = set(partitions)
    listed = {
        Partition(topic, partition)
        for by_topic in (offsets.offsets, offsets.timestamps_ms)
        for topic, by_partition in by_topic.items()
        for partition in by_partition
    }
    return sorted(listed - existing)


def fallback(what: str, of: Partition, lookup: Lookup, otherwise: Otherwise) -> Lookup:
    """Returns where to start if the broker has no such offset. Raises FiresteelError."""
    if otherwise != "fail":
        return Lookup(otherwise)
    if lookup.kind == "committed":
        raise FiresteelError(
            f"{what}: {of}: the group has committed no offset for it; where it has none, start"
            ' elsewhere: KafkaOffsets.committed(otherwise="earliest"), or "latest"'
        )
    raise FiresteelError(
        f"{what}: {of}: it has no record with a timestamp of {lookup.number} ms or later; set"
        ' otherwise="earliest" or "latest" of KafkaOffsets, or the option'
        ' startingOffsetsByTimestampStrategy="latest" of Spark'
    )


def _lookup(offsets: KafkaOffsets, of: Partition) -> Lookup | None:
    number = offsets.offsets.get(of.topic, {}).get(of.partition)
    if number is not None:
        names: dict[int, Lookup] = {EARLIEST: Lookup("earliest"), LATEST: Lookup("latest")}
        return names.get(number, Lookup("offset", number))
    time_ms = offsets.timestamps_ms.get(of.topic, {}).get(of.partition, offsets.timestamp_ms)
    if time_ms is not None:
        return Lookup("timestamp", time_ms)
    return None if offsets.place is None else Lookup(offsets.place)


# -- missing data


class Available(NamedTuple):
    """The offsets of a partition's log."""

    first: int
    end: int  # after the last record


@dataclass(frozen=True, slots=True, kw_only=True)
class Missing:
    """Records of a partition that can no longer be read."""

    partition: Partition
    why: str  # a clause, with the requested and the available offsets
    resume: int | None  # where reading may continue; None: there is nothing to read

    def __str__(self) -> str:
        return f"{self.partition}: {self.why}"


def missing(
    progress: Progress, topic_id: str | None, available: Available | None
) -> Missing | None:
    """Returns what is missing of a partition. `topic_id` is None if the topic does not exist, and
    `available` if the partition does not. An empty id is unknown.
    """
    at = f"offset {progress.next} is requested"
    why, resume = "", None
    if topic_id is None:
        why = f"the topic was deleted; {at}, and none is available"
    elif available is None:
        why = f"the topic no longer has this partition; {at}, and none is available"
    else:
        offsets = f"{at}, and offsets {available.first} to {available.end} are available"
        if topic_id and progress.topic_id and topic_id != progress.topic_id:
            why = f"the topic was deleted and created again; {offsets}"
            resume = available.first
        elif progress.next < available.first:
            why = f"the broker has deleted records that were not read; {offsets}"
            resume = available.first
        elif progress.next > available.end:
            why = (
                "the broker has lost records, for example because it was restored from a backup;"
                f" {offsets}"
            )
            resume = available.end
    return Missing(partition=progress.key, why=why, resume=resume) if why else None


# -- what the program reads, and what exists


class Topic(NamedTuple):
    topic_id: str
    partitions: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Listing:
    """The topics that match the program's at one time."""

    topics: Mapping[str, Topic] = field(default_factory=dict)

    def partitions(self, wanted: Mapping[str, Sequence[int]] | None = None) -> list[Partition]:
        """Returns the partitions; only those of `wanted`, unless it is None."""
        return [
            Partition(name, partition)
            for name, topic in sorted(self.topics.items())
            for partition in topic.partitions
            if wanted is None or partition in wanted.get(name, ())
        ]

    def topic_id(self, name: str) -> str | None:
        """Returns None if the topic does not exist."""
        topic = self.topics.get(name)
        return None if topic is None else topic.topic_id


def _listed(partitions: Sequence[Partition], most: int = 5) -> str:
    shown = "; ".join(map(str, partitions[:most]))
    return shown if len(partitions) <= most else f"{shown} and {len(partitions) - most} more"
