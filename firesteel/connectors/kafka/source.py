"""KafkaSource: the records of topics."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Literal, Self, get_args

from firesteel.connectors.checks import check_at_least_one, check_choice, duration_s
from firesteel.connectors.kafka.connection import KafkaConnection, connection
from firesteel.connectors.kafka.formats import Format, Raw, check_format
from firesteel.connectors.kafka.offsets import KafkaOffsets, Offsets, offsets
from firesteel.connectors.kafka.spark_options import source_arguments
from firesteel.connectors.source import Source
from firesteel.durations import Duration
from firesteel.errors import InvalidProgram

UNREADABLE_TAG = "unreadable"  # the side output of a KafkaSource with on_unreadable="side_output"
OnUnreadable = Literal["fail", "drop", "side_output"]
# Columns of a record besides its key and value.
METADATA = ("key", "topic", "partition", "offset", "timestamp", "timestampType", "headers")
# Properties that the source sets itself, and what to use instead.
_RESERVED = {
    "group.id": "pass group_id=",
    "auto.offset.reset": "pass start=, and fail_on_data_loss= for missing records",
    "enable.auto.commit": "offsets are committed when a checkpoint completes",
    "enable.auto.offset.store": "offsets are committed when a checkpoint completes",
    "enable.partition.eof": "pass end=",
    "key.deserializer": "pass format=",
    "value.deserializer": "pass format=",
    "interceptor.classes": "interceptors of Java cannot run here",
}


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """Where unreadable records go: the topic `topic` of the same brokers, with their keys, values
    and headers. Headers with the names `firesteel.error`, `firesteel.topic`, `firesteel.partition`
    and `firesteel.offset` are added.

    They are written at least once: a job that restarts may write them again.
    """

    topic: str


@dataclass(frozen=True, slots=True, init=False)
class KafkaSource(Source):
    """Reads the records of Kafka topics: `KafkaSource("orders", bootstrap_servers="kafka:9092")`.

    `topics` is a name or several. Instead, `topic_pattern` is a regular expression that the whole
    name matches, or `partitions` is {topic: [partition, ...]}. Each partition is read by one
    subtask, in order. New partitions, and new topics that match, are found at
    `partition_discovery_interval` ("5 min"; None: never) and read from their first record on.

    `start` and `end` are "earliest", "latest", "committed" (by the group), a datetime, {topic:
    {partition: offset}}, or KafkaOffsets. Restored jobs continue where they were. Without `end`,
    the source is unbounded. With it, partitions and ends are determined once, when the job starts.

    `format` decodes values; its columns are those of the rows, followed by the columns of the
    record that `metadata` names: key, topic, partition, offset, timestamp, timestampType, headers.
    Raw() leaves keys and values as they are, in Spark's columns. `on_unreadable` decides about
    records that the format cannot decode: "fail" the job; "drop" them, counted as
    numUnreadableRecordsDropped; "side_output": send them to the side output UNREADABLE_TAG; or
    DeadLetter("topic").

    With checkpoints, offsets are part of them. If there is a `group_id`, they are also committed to
    this group when a checkpoint completes, for monitoring. A job fails if records were deleted
    before it could read them; with `fail_on_data_loss=False` it logs and counts this, and continues
    with the next available record.

    With `min_partitions` and an `end`, large partitions are divided until there are at least this
    many ranges of offsets; several subtasks then read a partition at the same time, and only the
    records of a range stay in order. Without an `end`, it has no effect.

    `max_records_per_checkpoint` limits how many records all subtasks read from one checkpoint to
    the next. `properties` are librdkafka's, such as {"security.protocol": "SASL_SSL"}; a value
    "env:NAME" or "file:PATH" is read where the TaskExecutors run. `isolation.level` is
    read_committed unless set.

    Raises InvalidProgram for invalid options.
    """

    finds_event_time: ClassVar[bool] = True
    has_partitions: ClassVar[bool] = True

    topics: tuple[str, ...]
    topic_pattern: str | None
    partitions: Mapping[str, tuple[int, ...]] | None
    connection: KafkaConnection
    group_id: str | None
    start: KafkaOffsets
    end: KafkaOffsets | None
    format: Format
    metadata: tuple[str, ...]
    on_unreadable: OnUnreadable | DeadLetter
    discovery_interval_s: float | None
    fail_on_data_loss: bool
    max_records_per_checkpoint: int | None
    min_partitions: int | None
    read_committed: bool = field(repr=False)

    def __init__(
        self,
        topics: str | Sequence[str] | None = None,
        *,
        bootstrap_servers: str | Sequence[str],
        topic_pattern: str | None = None,
        partitions: Mapping[str, Sequence[int]] | None = None,
        group_id: str | None = None,
        start: Offsets = "earliest",
        end: Offsets | None = None,
        format: Format | None = None,
        metadata: Sequence[str] = (),
        on_unreadable: OnUnreadable | DeadLetter = "fail",
        partition_discovery_interval: Duration | None = "5 min",
        fail_on_data_loss: bool = True,
        max_records_per_checkpoint: int | None = None,
        min_partitions: int | None = None,
        properties: Mapping[str, object] | None = None,
    ) -> None:
        what = "KafkaSource"
        given = [value for value in (topics, topic_pattern, partitions) if value is not None]
        if len(given) != 1:
            raise InvalidProgram(f"{what}: pass one of topics, topic_pattern and partitions")
        names = (topics,) if isinstance(topics, str) else tuple(topics or ())
        starts, ends = offsets(f"{what}: start", start), None
        if end is not None:
            ends = offsets(f"{what}: end", end)
        if group_id is None and "committed" in (starts.place, ends and ends.place):
            raise InvalidProgram(
                f'{what}: "committed" offsets are those of a group; pass group_id='
            )
        if topic_pattern is None:
            read = names or tuple(partitions or ())
            _check_topics(f"{what}: start", starts, read)
            if ends is not None:
                _check_topics(f"{what}: end", ends, read)
        if max_records_per_checkpoint is not None:
            check_at_least_one(f"{what}: max_records_per_checkpoint", max_records_per_checkpoint)
        if min_partitions is not None:
            check_at_least_one(f"{what}: min_partitions", min_partitions)
        reached = connection(what, bootstrap_servers, properties or {})
        _check_properties(what, reached.properties)
        if format is not None:
            check_format(f"{what}: format", format)
        values: dict[str, object] = {
            "topics": _topics(what, names) if topics is not None else (),
            "topic_pattern": _pattern(what, topic_pattern),
            "partitions": None if partitions is None else _partitions(what, partitions),
            "connection": reached,
            "group_id": group_id,
            "start": starts,
            "end": ends,
            "format": Raw() if format is None else format,
            "metadata": _metadata(what, metadata),
            "on_unreadable": _on_unreadable(what, on_unreadable),
            "discovery_interval_s": (
                None
                if partition_discovery_interval is None
                else duration_s(
                    f"{what}: partition_discovery_interval", partition_discovery_interval
                )
            ),
            "fail_on_data_loss": fail_on_data_loss,
            "max_records_per_checkpoint": max_records_per_checkpoint,
            "min_partitions": min_partitions,
            "read_committed": reached.properties.get("isolation.level") != "read_uncommitted",
        }
        for name, value in values.items():
            object.__setattr__(self, name, value)

    @classmethod
    def from_spark_options(cls, options: Mapping[str, object], *, bounded: bool = False) -> Self:
        """Returns the source for the options of Spark's Kafka source, which mean the same:
        `KafkaSource.from_spark_options({"kafka.bootstrap.servers": "kafka:9092", "subscribe":
        "orders"})`. `bounded=True` reads as `spark.read` does, instead of `spark.readStream`.

        Raises InvalidProgram for unknown options, with a similar name, and for invalid values.
        """
        return cls(**source_arguments(options, bounded=bounded))

    @property
    def display_name(self) -> str:
        return f"Kafka {self.subject}"

    @property
    def subject(self) -> str:
        """Returns the names of the topics, or the pattern, for messages."""
        if self.topic_pattern is not None:
            return f"topics that match {self.topic_pattern!r}"
        names = self.topics or tuple(self.partitions or ())
        return ", ".join(names)

    @property
    def ignored_options(self) -> str:
        if self.min_partitions is None or self.end is not None:
            return ""
        return (
            "min_partitions has no effect on a source without an end: the records of a partition"
            " stay in order, so one subtask reads them"
        )

    @property
    def side_output_tags(self) -> frozenset[str]:
        """The side outputs of the source."""
        return frozenset({UNREADABLE_TAG} if self.on_unreadable == "side_output" else ())

    def coordinator(self, parallelism: int, *, read_by_spark: bool) -> None:
        """Returns None: the subtasks assign the partitions themselves."""


def _check_topics(what: str, given: KafkaOffsets, read: Sequence[str]) -> None:
    for topic in (*given.offsets, *given.timestamps_ms):
        if topic not in read:
            close = difflib.get_close_matches(topic, read, n=1)
            hint = f"did you mean {close[0]}?" if close else f"topics: {', '.join(read)}"
            raise InvalidProgram(f"{what} has offsets of {topic!r}, which is not read; {hint}")


def _topics(what: str, names: Sequence[object]) -> tuple[str, ...]:
    found: list[str] = []
    for name in names:
        if not isinstance(name, str) or not re.fullmatch(r"[A-Za-z0-9._-]{1,249}", name):
            raise InvalidProgram(
                f"{what}: {name!r} is not the name of a topic, which has letters, digits, '.', '_'"
                " and '-'; pass several topics as a list"
            )
        found.append(name)
    if not found:
        raise InvalidProgram(f"{what}: topics is empty; name at least one")
    return tuple(dict.fromkeys(found))


def _pattern(what: str, pattern: str | None) -> str | None:
    if pattern is not None:
        try:
            re.compile(pattern)
        except (re.error, TypeError) as error:
            raise InvalidProgram(
                f"{what}: topic_pattern {pattern!r} is not a regular expression: {error}"
            ) from error
    return pattern


def _partitions(
    what: str, partitions: Mapping[str, Sequence[int]]
) -> Mapping[str, tuple[int, ...]]:
    _topics(what, tuple(partitions))
    for topic, numbers in partitions.items():
        for number in numbers:
            if isinstance(number, bool) or not isinstance(number, int) or number < 0:
                raise InvalidProgram(
                    f"{what}: partitions has {{{topic!r}: {list(numbers)!r}}}; partitions are"
                    " integers from 0 on"
                )
    return {topic: tuple(sorted(set(numbers))) for topic, numbers in partitions.items()}


def _metadata(what: str, names: Sequence[str]) -> tuple[str, ...]:
    listed = (names,) if isinstance(names, str) else tuple(names)
    for name in listed:
        check_choice(f"{what}: metadata", name, METADATA)
    return listed


def _on_unreadable(what: str, value: object) -> object:
    if isinstance(value, DeadLetter):
        _topics(f"{what}: DeadLetter", (value.topic,))
    elif value not in get_args(OnUnreadable):
        raise InvalidProgram(
            f"{what}: on_unreadable is {value!r}; allowed:"
            f" {', '.join(get_args(OnUnreadable))}, DeadLetter('topic')"
        )
    return value


def _check_properties(what: str, properties: Mapping[str, str]) -> None:
    for name in properties:
        if name in _RESERVED:
            raise InvalidProgram(
                f"{what}: the property {name!r} is set by the source; {_RESERVED[name]}"
            )
    level = properties.get("isolation.level", "read_committed")
    check_choice(
        f"{what}: the property isolation.level", level, ("read_committed", "read_uncommitted")
    )
