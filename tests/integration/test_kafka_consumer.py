"""The consumer that reads librdkafka's memory returns what an independent client reads."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition
from hypothesis import given, settings
from hypothesis import strategies as st

from taskexecutor.executor.connectors.kafka.consumer import ArrowConsumer
from taskexecutor.executor.connectors.kafka.memory import strings
from taskexecutor.executor.connectors.kafka.records import RECORDS, RECORDS_WITH_HEADERS
from tests.kafka.broker import Kafka
from tests.kafka.records import Record, create_topic, produce, read

PATIENCE_S = 120.0


@contextmanager
def _consuming(
    kafka: Kafka, *topics: str, headers: bool = False, partitions: int = 2, start: int = 0
) -> Iterator[tuple[Consumer, ArrowConsumer]]:
    configured: dict[str, Any] = {
        "group.id": "unused",
        "enable.auto.commit": False,
        "auto.offset.reset": "error",
        "enable.partition.eof": True,
        "isolation.level": "read_committed",
    }
    consumer = Consumer({**kafka.settings(), **configured})
    arrow = ArrowConsumer(consumer, headers=headers)
    assigned = [(topic, number) for topic in topics for number in range(partitions)]
    arrow.forward(assigned)
    consumer.assign([TopicPartition(*each, start) for each in assigned])
    try:
        yield consumer, arrow
    finally:
        arrow.close()
        consumer.close()


def _rows(arrow: ArrowConsumer, ends: int, max_rows: int = 1_000) -> pa.Table:
    """Reads until `ends` partitions have ended."""
    schema = RECORDS_WITH_HEADERS if arrow._headers else RECORDS
    batches: list[pa.RecordBatch] = []
    ended: set[tuple[str, int]] = set()
    deadline = time.monotonic() + PATIENCE_S
    while len(ended) < ends:
        assert time.monotonic() < deadline
        batch = arrow.poll(max_rows, 0.5)
        if batch is not None:
            assert 0 < batch.num_rows <= max_rows
            batch.validate(full=True)
            batches.append(batch)
        for each in arrow.errors:
            assert each.error.name() == "_PARTITION_EOF"
            ended.add((each.topic, each.partition))
        arrow.errors.clear()
    return pa.Table.from_batches(batches, schema)


def _records(table: pa.Table) -> list[Record]:
    return [
        Record(
            value=row["value"],
            key=row["key"],
            partition=row["partition"],
            offset=row["offset"],
            timestamp_ms=round(row["timestamp"].timestamp() * 1_000),
            headers=tuple((each["key"], each["value"]) for each in row.get("headers") or ()),
        )
        for row in table.to_pylist()
    ]


BYTES = st.none() | st.binary(max_size=40)
RECORDS_TO_WRITE = st.lists(
    st.builds(
        Record,
        value=BYTES,
        key=BYTES,
        partition=st.integers(0, 1),
        timestamp_ms=st.integers(1, 1_700_000_000_000),
        headers=st.lists(st.tuples(st.text("ab", min_size=1), BYTES), max_size=2).map(tuple),
    ),
    max_size=30,
)


@settings(max_examples=10)
@given(
    written=RECORDS_TO_WRITE,
    codec=st.sampled_from(["none", "gzip", "lz4", "zstd"]),
    max_rows=st.sampled_from([1, 2, 7, 1_000]),
)
def test_records_are_those_that_an_independent_client_reads(
    kafka: Kafka, written: list[Record], codec: str, max_rows: int
) -> None:
    topic = create_topic(kafka, partitions=2)
    produce(kafka, topic, written, settings={"compression.type": codec})
    with _consuming(kafka, topic, headers=True) as (_, arrow):
        found = _records(_rows(arrow, 2, max_rows))
    assert sorted(found, key=str) == sorted(read(kafka, topic), key=str)
    assert len(found) == len(written)


def test_records_of_several_topics_know_their_topics(kafka: Kafka) -> None:
    topics = [create_topic(kafka, partitions=2) for _ in range(3)]
    for topic in topics:
        produce(kafka, topic, [f"{topic} {number}".encode() for number in range(2_000)])
    with _consuming(kafka, *topics) as (_, arrow):
        table = _rows(arrow, 6)
    values = sorted(table["value"].to_pylist())
    assert values == sorted(f"{t} {number}".encode() for t in topics for number in range(2_000))
    assert all(row["value"].startswith(row["topic"].encode()) for row in table.to_pylist())
    assert set(table["timestampType"].to_pylist()) == {0}


def test_the_broker_sets_timestamps_if_the_topic_says_so(kafka: Kafka) -> None:
    topic = create_topic(kafka, config={"message.timestamp.type": "LogAppendTime"})
    before_ms = time.time() * 1_000 - 1
    produce(kafka, topic, [Record(value=b"1", timestamp_ms=5)])
    with _consuming(kafka, topic, partitions=1) as (_, arrow):
        table = _rows(arrow, 1)
    assert table["timestampType"].to_pylist() == [1]
    assert before_ms <= table["timestamp"][0].as_py().timestamp() * 1_000 <= time.time() * 1_000


def test_records_of_open_and_aborted_transactions_are_not_returned(kafka: Kafka) -> None:
    topic = create_topic(kafka)
    producer = Producer({**kafka.settings(), "transactional.id": f"of-{topic}"})
    producer.init_transactions(PATIENCE_S)
    for finish in (producer.abort_transaction, producer.commit_transaction):
        producer.begin_transaction()
        producer.produce(topic, finish.__name__)
        producer.flush(PATIENCE_S)
        with _consuming(kafka, topic, partitions=1) as (_, arrow):
            assert _rows(arrow, 1).num_rows == 0
        finish(PATIENCE_S)
    with _consuming(kafka, topic, partitions=1) as (_, arrow):
        assert _rows(arrow, 1)["value"].to_pylist() == [b"commit_transaction"]


def test_a_paused_partition_resumes_and_seeks_where_it_is_told(kafka: Kafka) -> None:
    topic = create_topic(kafka)
    produce(kafka, topic, [b"%d" % number for number in range(100)])
    place = TopicPartition(topic, 0)
    with _consuming(kafka, topic, partitions=1, start=10) as (consumer, arrow):
        first = arrow.poll(5, PATIENCE_S)
        assert first is not None and first["value"].to_pylist()[0] == b"10"
        consumer.pause([place])
        assert arrow.poll(1_000, 0.5) is None
        consumer.seek(TopicPartition(topic, 0, 90))
        consumer.resume([place])
        assert _rows(arrow, 1)["value"].to_pylist() == [b"%d" % n for n in range(90, 100)]


def test_errors_of_partitions_name_the_partition_and_the_offset(kafka: Kafka) -> None:
    topic = create_topic(kafka)
    produce(kafka, topic, [b"1"])
    with _consuming(kafka, topic, partitions=1, start=7) as (_, arrow):
        deadline = time.monotonic() + PATIENCE_S
        while not arrow.errors and time.monotonic() < deadline:
            assert arrow.poll(10, 0.5) is None
        (found,) = arrow.errors
    assert (found.topic, found.partition) == (topic, 0)
    assert found.error.name() == "_AUTO_OFFSET_RESET" and "range" in found.error.str().lower()


def test_an_unknown_topic_is_an_error_and_does_not_end_the_process(kafka: Kafka) -> None:
    consumer = Consumer({**kafka.settings(), "group.id": "unused"})
    errors: list[KafkaError] = []
    arrow = ArrowConsumer(consumer, on_error=errors.append)
    arrow.forward([("no-such-topic", 0)])
    consumer.assign([TopicPartition("no-such-topic", 0, 0)])
    deadline = time.monotonic() + PATIENCE_S
    while not errors and not arrow.errors and time.monotonic() < deadline:
        assert arrow.poll(10, 0.2) is None
        consumer.poll(0)
    found = {error.name() for error in [*errors, *(each.error for each in arrow.errors)]}
    arrow.close()
    consumer.close()
    assert found & {"_UNKNOWN_PARTITION", "_UNKNOWN_TOPIC", "UNKNOWN_TOPIC_OR_PART"}


@pytest.mark.parametrize("count", [1, 1_000])
def test_strings_are_copied_from_any_order_of_addresses(count: int) -> None:
    content = np.frombuffer(np.random.default_rng(count).bytes(100_000), np.uint8)
    address = content.__array_interface__["data"][0]
    random = np.random.default_rng(7)
    places, sizes = random.integers(0, 90_000, count), random.integers(0, 300, count)
    null = random.random(count) < 0.3
    found = strings(np.where(null, 0, address + places), sizes)
    found.validate(full=True)
    assert found.to_pylist() == [
        None if missing else content[place : place + size].tobytes()
        for place, size, missing in zip(places, sizes, null, strict=True)
    ]
