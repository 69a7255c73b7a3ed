"""Where the partitions of a topic start and stop."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Literal, Self, TypeAlias, get_args

from firesteel.errors import InvalidProgram

Place = Literal["earliest", "latest", "committed"]
# The offset of a partition that has none at that place.
Otherwise = Literal["earliest", "latest", "fail"]
ByPartition: TypeAlias = Mapping[str, Mapping[int, int]]

EARLIEST, LATEST = -2, -1  # in the place of an offset, as in Kafka's protocol and in Spark


@dataclass(frozen=True, slots=True, kw_only=True)
class KafkaOffsets:
    """An offset for each partition of the topics. Make one with the methods below, or pass what
    they take: "earliest", "latest", "committed", a datetime, or {topic: {partition: offset}}.

    `place` and `timestamp_ms` apply to all partitions that `offsets` and `timestamps` do not list;
    without either, a source fails for such a partition. `otherwise` applies where the group has
    committed no offset, or no record is as late as the timestamp.
    """

    place: Place | None = None
    timestamp_ms: int | None = None
    offsets: ByPartition = field(default_factory=dict)
    timestamps_ms: ByPartition = field(default_factory=dict)
    otherwise: Otherwise = "fail"

    @classmethod
    def earliest(cls) -> Self:
        """The first available record of each partition."""
        return cls(place="earliest")

    @classmethod
    def latest(cls) -> Self:
        """The end of each partition. With `read_committed`, that is the end of the last
        transaction that is complete.
        """
        return cls(place="latest")

    @classmethod
    def committed(cls, otherwise: Otherwise = "fail") -> Self:
        """The offsets that the group has committed."""
        return cls(place="committed", otherwise=otherwise)

    @classmethod
    def at(cls, time: datetime | int, otherwise: Otherwise = "latest") -> Self:
        """The first record of each partition whose timestamp is at or after `time`, a datetime or
        milliseconds since the epoch.
        """
        return cls(timestamp_ms=timestamp_ms("at", time), otherwise=otherwise)

    @classmethod
    def of(cls, offsets: ByPartition, others: Place | None = None) -> Self:
        """The offset of each listed partition, -2 for the earliest and -1 for the latest one.
        `others` applies to partitions that are not listed.
        """
        return cls(offsets=offsets, place=others)

    @property
    def explicit(self) -> bool:
        """Whether only the listed partitions have an offset."""
        return self.place is None and self.timestamp_ms is None


Offsets: TypeAlias = Place | datetime | ByPartition | KafkaOffsets


def offsets(what: str, value: Offsets) -> KafkaOffsets:
    """Returns the checked offsets. Raises InvalidProgram, naming `what`."""
    match value:
        case KafkaOffsets():
            found = value
        case str() if value in get_args(Place):
            found = KafkaOffsets(place=value)
        case datetime():
            found = KafkaOffsets(timestamp_ms=timestamp_ms(what, value), otherwise="latest")
        case Mapping():
            found = KafkaOffsets(offsets=value)
        case _:
            raise InvalidProgram(
                f"{what} is {value!r}; allowed: {', '.join(get_args(Place))}, a datetime,"
                " {topic: {partition: offset}}, or KafkaOffsets"
            )
    return _checked(what, found)


def timestamp_ms(what: str, time: datetime | int) -> int:
    """Returns the time in milliseconds since the epoch. Raises InvalidProgram for a datetime
    without a time zone.
    """
    if isinstance(time, datetime):
        if time.tzinfo is None:
            raise InvalidProgram(
                f"{what} is {time!r}, which has no time zone; use for example"
                " datetime(2026, 1, 31, tzinfo=timezone.utc)"
            )
        since = time - datetime(1970, 1, 1, tzinfo=UTC)
        return round(since.total_seconds() * 1_000)
    if isinstance(time, bool) or not isinstance(time, int) or time < 0:
        raise InvalidProgram(f"{what} is {time!r}; use a datetime, or milliseconds since the epoch")
    return time


def _checked(what: str, found: KafkaOffsets) -> KafkaOffsets:
    if found.place is not None and found.place not in get_args(Place):
        raise InvalidProgram(
            f"{what}: place is {found.place!r}; allowed: {', '.join(get_args(Place))}"
        )
    if found.otherwise not in get_args(Otherwise):
        raise InvalidProgram(
            f"{what}: otherwise is {found.otherwise!r}; allowed: {', '.join(get_args(Otherwise))}"
        )
    _check_partitions(what, found.offsets, LATEST - 1)
    _check_partitions(what, found.timestamps_ms, 0)
    return found


def _check_partitions(what: str, by_topic: ByPartition, least: int) -> None:
    for topic, by_partition in by_topic.items():
        if not isinstance(topic, str) or not isinstance(by_partition, Mapping):
            raise InvalidProgram(
                f"{what} has {topic!r}: {by_partition!r}; use {{topic: {{partition: number}}}}"
            )
        for partition, number in by_partition.items():
            for value, lowest in ((partition, 0), (number, least)):
                if isinstance(value, bool) or not isinstance(value, int) or value < lowest:
                    raise InvalidProgram(
                        f"{what} has {{{topic!r}: {{{partition!r}: {number!r}}}}}; {value!r} must"
                        f" be an integer that is at least {lowest}"
                    )
