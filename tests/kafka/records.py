"""Creates topics of brokers in tests, writes records to them, and reads them with a client that
Firesteel does not use for data.
"""

from __future__ import annotations

import gc
import uuid
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from kafka import KafkaConsumer, TopicPartition
from tests.kafka.broker import Kafka
from tests.waiting import eventually

_PATIENCE_S = 120.0
_POLL_MS = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """A record to write, or as it was read. Without a `partition`, the key decides, or chance."""

    value: bytes | None = None
    key: bytes | None = None
    partition: int | None = None
    offset: int | None = None
    timestamp_ms: int | None = None
    headers: tuple[tuple[str, bytes | None], ...] = ()


def create_topic(
    kafka: Kafka,
    name: str = "",
    *,
    partitions: int = 1,
    config: Mapping[str, str] | None = None,
) -> str:
    """Returns the name of the new topic: `name`, or a unique one."""
    name = name or f"topic-{uuid.uuid4().hex[:12]}"
    topic = NewTopic(name, num_partitions=partitions, config=dict(config or {}))
    client = AdminClient(kafka.settings())
    for created in client.create_topics([topic], operation_timeout=_PATIENCE_S).values():
        created.result(_PATIENCE_S)
    return name


def produce(
    kafka: Kafka,
    topic: str,
    records: Iterable[Record | bytes],
    *,
    settings: Mapping[str, Any] | None = None,
) -> None:
    """Writes the records. Returns when the brokers have them. `settings` are of librdkafka's
    producer.
    """
    producer = Producer({**kafka.settings(), "linger.ms": 5, **(settings or {})})
    failures: list[object] = []
    for record in records:
        if isinstance(record, bytes):
            record = Record(value=record)
        _send(producer, topic, record, failures)
    assert producer.flush(_PATIENCE_S) == 0, "the brokers did not take all records"
    assert not failures, failures[0]


def _send(producer: Producer, topic: str, record: Record, failures: list[object]) -> None:
    optional: dict[str, Any] = {}
    if record.partition is not None:
        optional["partition"] = record.partition
    if record.timestamp_ms is not None:
        optional["timestamp"] = record.timestamp_ms

    def delivered(error: object, _: object) -> None:
        if error is not None:
            failures.append(error)

    while True:
        try:
            producer.produce(
                topic,
                record.value,
                record.key,
                headers=list(record.headers),
                on_delivery=delivered,
                **optional,
            )
        except BufferError:  # the queue is full
            producer.poll(_PATIENCE_S)
        else:
            producer.poll(0)
            return


def read(kafka: Kafka, topic: str, *, isolation: str = "read_committed") -> list[Record]:
    """Returns all records up to the present end of each partition, which for `read_committed` is
    the first record of the oldest open transaction. In the order of offsets in a partition.
    """
    with warnings.catch_warnings():
        # After a refused connection, kafka-python leaves a socket to the collector of garbage.
        warnings.simplefilter("ignore", ResourceWarning)
        try:
            return _read(kafka, topic, isolation)
        finally:
            gc.collect()


def _read(kafka: Kafka, topic: str, isolation: str) -> list[Record]:
    consumer = KafkaConsumer(
        bootstrap_servers=kafka.bootstrap.split(","),
        isolation_level=isolation,
        enable_auto_commit=False,
        auto_offset_reset="earliest",
    )
    try:
        # A client may hear of a new topic a moment later than the one that created it.
        partitions = eventually(
            lambda: sorted(consumer.partitions_for_topic(topic) or ()), f"partitions of {topic}"
        )
        assigned = [TopicPartition(topic, partition) for partition in partitions]
        consumer.assign(assigned)
        consumer.seek_to_beginning(*assigned)
        ends = consumer.end_offsets(assigned)
        found: list[Record] = []
        while any(consumer.position(each) < end for each, end in ends.items()):
            for batch in consumer.poll(_POLL_MS).values():
                found += [_record(message) for message in batch]
    finally:
        consumer.close()
    return [each for each in found if _is_before(each, topic, ends)]


def _record(message: Any) -> Record:
    return Record(
        value=message.value,
        key=message.key,
        partition=message.partition,
        offset=message.offset,
        timestamp_ms=message.timestamp,
        headers=tuple(message.headers),
    )


def _is_before(record: Record, topic: str, ends: Mapping[TopicPartition, int]) -> bool:
    assert record.partition is not None and record.offset is not None
    return record.offset < ends[TopicPartition(topic, record.partition)]
