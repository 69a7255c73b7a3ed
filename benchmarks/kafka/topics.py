"""A broker with the topics of bids, which are written once and kept in build/bench-kafka."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pyarrow as pa
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from benchmarks.kafka.bids import CHECK, PARTITIONS, Topic, as_json, timed
from benchmarks.kafka.connectors import BUILD
from tests.kafka.broker import Kafka
from tests.kafka.records import create_topic

# Unlike that of tests, the broker runs long enough for all compilers.
_JAVA = ("-Xms1g", "-Xmx1g", "-XX:+UseParallelGC", "-XX:-UsePerfData")
_VERSION = 1  # of the records
_PART = 100_000  # a multiple of PARTITIONS
_POLL_S = 1.0
_PATIENCE_S = 120.0


@contextmanager
def broker(bids: int | None = None) -> Iterator[Kafka]:
    """Yields a broker; with the topics CHECK and `timed(bids)`, unless there are no bids."""
    if bids is None:
        with Kafka(java=_JAVA) as kafka:
            yield kafka
        return
    folder = BUILD / f"topics-{_VERSION}-{bids}"
    complete = folder / "complete"
    if not complete.exists():
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
    with Kafka(java=_JAVA, data=folder) as kafka:
        if not complete.exists():
            for topic in (CHECK, timed(bids)):
                write(kafka, topic)
            complete.touch()
        _delete_others(kafka, {CHECK.name, timed(bids).name})
        try:
            yield kafka
        finally:
            kafka.stop()  # in an orderly way: the next one need not repair its files


def write(kafka: Kafka, topic: Topic) -> None:
    """Writes a topic. Returns when the broker has all of it."""
    create_topic(kafka, topic.name, partitions=PARTITIONS)
    settings = {**kafka.settings(), "compression.type": "lz4", "linger.ms": 50}
    settings |= {"batch.size": 262_144, "queue.buffering.max.messages": 2_000_000}
    producer = Producer(settings)
    for start in range(0, topic.bids, _PART):
        _send(producer, topic.name, topic.part(start, min(start + _PART, topic.bids)))
    _send(producer, topic.name, topic.last())
    if producer.flush(_PATIENCE_S):
        raise RuntimeError(f"the broker did not take all records of {topic.name}")
    if (count := sum(ends(kafka, topic.name))) != topic.records:
        raise RuntimeError(f"{topic.name} has {count:,} records instead of {topic.records:,}")


def _send(producer: Producer, topic: str, bids: pa.Table) -> None:
    for number, value in enumerate(as_json(bids).to_pylist()):
        while True:
            try:
                producer.produce(topic, value, partition=number % PARTITIONS)
                break
            except BufferError:
                producer.poll(_POLL_S)
    producer.poll(0)


def ends(kafka: Kafka, topic: str) -> list[int]:
    """Returns the end of each partition."""
    consumer = Consumer({**kafka.settings(), "group.id": "ends"})
    try:
        found = consumer.list_topics(topic, _PATIENCE_S).topics[topic].partitions
        return [
            consumer.get_watermark_offsets(TopicPartition(topic, number), _PATIENCE_S)[1]
            for number in found
        ]
    finally:
        consumer.close()


def read_committed(kafka: Kafka, topic: str) -> list[bytes]:
    """Returns the values of all records up to the last stable offset of each partition."""
    settings: dict[str, Any] = {"group.id": "reader", "isolation.level": "read_committed"}
    settings |= {"enable.partition.eof": True, "enable.auto.commit": False}
    consumer = Consumer({**kafka.settings(), **settings, "auto.offset.reset": "earliest"})
    values: list[bytes] = []
    try:
        left = set(consumer.list_topics(topic, _PATIENCE_S).topics[topic].partitions)
        consumer.assign([TopicPartition(topic, number, 0) for number in left])
        deadline = time.monotonic() + _PATIENCE_S
        while left:
            for message in consumer.consume(10_000, _POLL_S):
                error = message.error()
                if error is None:
                    values.append(message.value() or b"")
                elif error.code() == _EOF:
                    left.discard(message.partition())
                deadline = time.monotonic() + _PATIENCE_S
            if time.monotonic() > deadline:
                raise RuntimeError(f"{topic}: the partitions {sorted(left)} have no end")
    finally:
        consumer.close()
    return values


def _delete_others(kafka: Kafka, kept: set[str]) -> None:
    """Deletes the topics of a run that was interrupted."""
    topics = AdminClient(dict(kafka.settings())).list_topics(timeout=_PATIENCE_S).topics
    if others := [name for name in topics if name not in kept and not name.startswith("__")]:
        delete(kafka, *others)


def delete(kafka: Kafka, *topics: str) -> None:
    client = AdminClient(dict(kafka.settings()))  # it ends, with its requests, when it is not held
    for deleted in client.delete_topics(list(topics)).values():
        deleted.result(_PATIENCE_S)


_EOF = -191  # librdkafka's _PARTITION_EOF
