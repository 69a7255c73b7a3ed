"""The format "kafka" of batch queries with a broker, as a worker of Spark calls it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from pyspark.sql import Row
from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    StringType,
    StructType,
)

from firesteel.errors import FiresteelError
from firesteel.spark_connect.kafka_table import KafkaTable
from taskexecutor.executor.connectors.kafka.ranges import Range
from tests.kafka.broker import Kafka
from tests.kafka.records import Record, create_topic, produce, read

PATIENCE_S = 120.0
START_MS = 1_700_000_000_000
TEXT, BYTES, NUMBER = StringType(), BinaryType(), IntegerType()
HEADERS = ArrayType(StructType().add("key", TEXT).add("value", BYTES))


@pytest.fixture(autouse=True)
def with_tracebacks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Restores the variable that an error sets in a worker."""
    monkeypatch.setenv("SPARK_HIDE_TRACEBACK", "")


@pytest.fixture(scope="module")
def topic(kafka: Kafka) -> str:
    """Returns a topic with five records in each of two partitions, one second apart."""
    name = create_topic(kafka, partitions=2)
    produce(
        kafka,
        name,
        [
            Record(value=str(n).encode(), partition=n % 2, timestamp_ms=START_MS + n * 1_000)
            for n in range(10)
        ],
    )
    return name


class Reader:
    def __init__(self, kafka: Kafka, topic: str, **options: Any) -> None:
        texts = {name: _text(value) for name, value in options.items()}
        if "subscribePattern" not in options:
            texts["subscribe"] = topic
        table = KafkaTable({"kafka.bootstrap.servers": kafka.bootstrap, **texts})
        self.reader = table.reader(StructType())

    def places(self) -> list[tuple[int, int]]:
        """Returns the partitions and offsets of the records."""
        rows = [row for part in self.reader.partitions() for row in self.reader.read(part)]
        return sorted((row[3], row[4]) for row in rows)

    def values(self, topic: str, start: int, end: int) -> list[bytes]:
        """Returns the values of records of partition 0."""
        part = InputPartition(Range(topic, 0, "", start, end))
        return [row[1] for row in self.reader.read(part)]


def _text(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def places(zero: range, one: range) -> list[tuple[int, int]]:
    return [*((0, n) for n in zero), *((1, n) for n in one)]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, places(range(5), range(5))),
        ({"minPartitions": "5"}, places(range(5), range(5))),
        (
            {"startingOffsets": {"0": 3, "1": -2}, "endingOffsets": {"0": -1, "1": 1}},
            places(range(3, 5), range(1)),
        ),
        ({"startingOffsets": {"0": 5, "1": 5}}, []),
        ({"startingTimestamp": START_MS + 7_000}, places(range(4, 5), range(3, 5))),
        (
            {
                "startingTimestamp": START_MS + 99_000,
                "startingOffsetsByTimestampStrategy": "latest",
            },
            [],
        ),
        ({"endingTimestamp": START_MS + 99_000}, places(range(5), range(5))),
        (
            {"endingOffsetsByTimestamp": {"0": START_MS + 4_000, "1": START_MS + 99_000}},
            places(range(2), range(5)),
        ),
        (
            {"endingOffsets": {"0": 300, "1": 2}, "failOnDataLoss": "false"},
            places(range(5), range(2)),
        ),
    ],
)
def test_offsets_mean_what_they_mean_in_spark(
    kafka: Kafka, topic: str, options: dict[str, Any], expected: list[tuple[int, int]]
) -> None:
    assert Reader(kafka, topic, **_of(topic, options)).places() == expected


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"startingOffsets": {"0": 3}}, "start has no offset for topic {}, partition 1"),
        ({"endingOffsets": {"1": 3}}, "end has no offset for topic {}, partition 0"),
        (
            {"startingOffsetsByTimestamp": {"0": START_MS}},
            "start has no offset for topic {}, partition 1",
        ),
        (
            {"startingOffsets": {"0": 0, "1": 0, "2": 0}},
            "start has an offset for topic {}, partition 2, which is not read or does not exist",
        ),
        (
            {"startingTimestamp": START_MS + 99_000},
            "partition 0: it has no record with a timestamp of 1700000099000 ms or later",
        ),
        (
            {"startingOffsets": {"0": 300, "1": 0}},
            "topic {}, partition 0: the read starts at offset 300, after its end at offset 5",
        ),
        (
            {"endingOffsets": {"0": 300, "1": 2}},
            "topic {}, partition 0: the read ends at offset 300, and the partition at offset 5",
        ),
    ],
)
def test_offsets_that_do_not_fit_the_partitions_are_errors(
    kafka: Kafka, topic: str, options: dict[str, Any], problem: str
) -> None:
    reader = Reader(kafka, topic, **_of(topic, options))
    with pytest.raises(FiresteelError) as raised:
        reader.places()
    assert problem.format(topic) in str(raised.value)


def _of(topic: str, options: dict[str, Any]) -> dict[str, Any]:
    return {
        name: {topic: value} if isinstance(value, dict) else value
        for name, value in options.items()
    }


def test_a_pattern_matches_no_topic_of_kafka_itself(kafka: Kafka, topic: str) -> None:
    for pattern, topics in ((f".*offsets|{topic}", {topic}), ("__consumer_offsets", set())):
        reader = Reader(kafka, topic, subscribePattern=pattern).reader
        assert {part.value.topic for part in reader.partitions()} == topics
        assert list(reader.read(InputPartition(None))) == []  # as Spark calls it without partitions


def test_a_read_passes_the_markers_of_transactions(kafka: Kafka) -> None:
    name = create_topic(kafka)
    producer = Producer({**kafka.settings(), "transactional.id": name})
    producer.init_transactions(PATIENCE_S)
    for value, ends in (("a", "commit"), ("b", "abort"), ("c", "commit"), ("d", "abort")):
        producer.begin_transaction()
        producer.produce(name, value)
        producer.flush(PATIENCE_S)
        getattr(producer, f"{ends}_transaction")(PATIENCE_S)
    reader = Reader(kafka, name)
    assert reader.values(name, 0, 8) == [b"a", b"c"]
    assert reader.values(name, 1, 4) == []
    assert reader.places() == [(0, 0), (0, 4)]


def test_a_read_does_not_wait_for_missing_records_for_ever(kafka: Kafka) -> None:
    name = create_topic(kafka)
    produce(kafka, name, [str(n).encode() for n in range(10)])
    options: dict[str, Any] = {"kafkaConsumer.pollTimeoutMs": "1000"}
    reader = Reader(kafka, name, **options)
    with pytest.raises(FiresteelError, match="no record has arrived for 1 s; the read is at offs"):
        reader.values(name, 8, 300)

    client = AdminClient(kafka.settings())
    gone = TopicPartition(name, 0, 4)
    client.delete_records([gone])[gone].result(PATIENCE_S)
    with pytest.raises(FiresteelError, match="starts at offset 2, and the first available record"):
        Reader(kafka, name, startingOffsets={name: {"0": 2}}).places()
    with pytest.raises(FiresteelError, match="OFFSET"):
        reader.values(name, 2, 6)
    lossy = Reader(kafka, name, failOnDataLoss="false", **options)
    assert lossy.values(name, 2, 6) == [b"4", b"5"]
    assert lossy.values(name, 0, 3) == []
    assert lossy.places() == [(0, n) for n in range(4, 10)]


class Writer:
    def __init__(
        self,
        kafka: Kafka,
        to: str | None = None,
        properties: Mapping[str, str] | None = None,
        **columns: DataType,
    ) -> None:
        schema, options = StructType(), {**(properties or {})}
        if to is not None:
            options["topic"] = to
        for name, kind in columns.items():
            schema.add(name, kind)
        table = KafkaTable({"kafka.bootstrap.servers": kafka.bootstrap, **options})
        self._writer = table.writer(schema, False)

    def write(self, *rows: tuple[Any, ...]) -> None:
        self._writer.write(iter([Row(*row) for row in rows]))


def test_rows_become_records(kafka: Kafka) -> None:
    name = create_topic(kafka, partitions=3)
    writer = Writer(kafka, name, VALUE=BYTES, key=TEXT, partition=NUMBER, headers=HEADERS)
    writer.write(
        (b"\x00\xff", "k", 2, [Row("a", b"1"), Row("b", None)]),
        (b"", None, 1, None),
        (bytearray(b"b"), None, 1, [Row("c", bytearray(b"2"))]),
        (None, "", 0, []),
    )
    assert sorted(read(kafka, name), key=lambda each: each.partition or 0) == [
        Record(value=None, key=b"", partition=0, offset=0, timestamp_ms=_ANY),
        Record(value=b"", key=None, partition=1, offset=0, timestamp_ms=_ANY),
        Record(
            value=b"b",
            key=None,
            partition=1,
            offset=1,
            timestamp_ms=_ANY,
            headers=(("c", b"2"),),
        ),
        Record(
            value=b"\x00\xff",
            key=b"k",
            partition=2,
            offset=0,
            timestamp_ms=_ANY,
            headers=(("a", b"1"), ("b", None)),
        ),
    ]


class _Any(int):
    def __eq__(self, other: object) -> bool:
        return isinstance(other, int)

    __hash__ = int.__hash__


_ANY = _Any()


def test_keys_choose_the_partitions_of_javas_producer(kafka: Kafka) -> None:
    name = create_topic(kafka, partitions=3)
    expected = create_topic(kafka, partitions=3)
    keys = [f"key-{n}" for n in range(30)]
    Writer(kafka, name, value=TEXT, key=TEXT).write(*((key, key) for key in keys))
    produce(
        kafka,
        expected,
        [Record(value=key.encode(), key=key.encode()) for key in keys],
        settings={"partitioner": "murmur2_random"},
    )
    chosen, same = ({(r.key, r.partition) for r in read(kafka, of)} for of in (name, expected))
    assert chosen == same


def test_rows_that_cannot_be_written_are_errors(kafka: Kafka) -> None:
    name = create_topic(kafka, partitions=2)
    with pytest.raises(FiresteelError, match="value attribute type must be string or binary, not"):
        Writer(kafka, name, value=LongType())
    with pytest.raises(FiresteelError, match=f"topic missing-{name} .* does not exist.* {name}"):
        Writer(kafka, f"missing-{name}", value=TEXT).write(("v",))
    by_column = Writer(kafka, value=TEXT, topic=TEXT)
    with pytest.raises(FiresteelError, match="the column 'topic' of a row is null; give it a val"):
        by_column.write(("v", None))
    with pytest.raises(FiresteelError, match="the topic has no such partition"):
        Writer(kafka, name, value=TEXT, partition=NUMBER).write(("v", 7))
    small = {"kafka.message.max.bytes": "2000"}
    with pytest.raises(FiresteelError, match="a record is larger than the broker accepts"):
        Writer(kafka, name, small, value=TEXT).write(("v" * 4_000,))
    assert read(kafka, name) == []
    by_column.write(("v", name))
    assert [record.value for record in read(kafka, name)] == [b"v"]
