"""`format("kafka")` of Spark as a Python data source, which needs none of Spark's packages.

Spark analyses streams with it; Firesteel's jobs read and write them. Batch queries read and write
with it: those of a program, and those of functions for foreachBatch.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceWriter,
    InputPartition,
    WriterCommitMessage,
)

from firesteel.connectors.kafka import KafkaOffsets, KafkaSink, KafkaSource
from firesteel.connectors.kafka.offsets import EARLIEST, LATEST
from firesteel.errors import FiresteelError

if TYPE_CHECKING:
    from pyspark.sql import Row, SparkSession
    from pyspark.sql.types import StructType

_COLUMNS = (
    "key BINARY, value BINARY, topic STRING, partition INT, offset BIGINT, timestamp TIMESTAMP,"
    " timestampType INT"
)
_HEADERS = "headers ARRAY<STRUCT<key: STRING, value: BINARY>>"
_TIMEOUT_S = 30.0
_POLL_S = 1.0
_AT_ONCE = 10_000
_TIME_TYPE = {1: 0, 2: 1}  # librdkafka's creation and append time as Spark's numbers


# Spark reserves the name "kafka" for its own package.
FORMAT = "firesteel_kafka"


def renamed(message: Any) -> Any:
    """Replaces the format "kafka" in a message of Spark Connect. Returns the message."""
    match message.DESCRIPTOR.name:
        case "DataSource" if message.format.lower() == "kafka":
            message.format = FORMAT
        case "WriteOperation" if message.source.lower() == "kafka":
            message.source = FORMAT
            if message.mode in (message.SAVE_MODE_UNSPECIFIED, message.SAVE_MODE_ERROR_IF_EXISTS):
                message.mode = message.SAVE_MODE_APPEND  # as records are always added
    for field, value in message.ListFields():
        if field.message_type is None or field.message_type.GetOptions().map_entry:
            continue
        for each in value if field.is_repeated else (value,):
            renamed(each)
    return message


def register(session: SparkSession) -> None:
    """Registers the format in a classic session, and makes it the session of the thread: Spark
    looks for data sources in Python there. A format that it finds cannot be registered again, and
    an earlier registration has the environment of an earlier job.
    """
    sessions = session._jvm.org.apache.spark.sql.classic.SparkSession  # type: ignore[union-attr]
    sessions.clearActiveSession()
    session.dataSource.register(KafkaTable)
    sessions.setActiveSession(session._jsparkSession)


def accept_in_functions() -> None:
    """Lets functions of slots, whose sessions are classic, use the format "kafka"."""
    from pyspark.sql.readwriter import DataFrameReader, DataFrameWriter

    for owner in (DataFrameReader, DataFrameWriter):
        original = owner.format
        if not hasattr(original, "accepts_kafka"):
            owner.format = _accepting(original)  # type: ignore[method-assign]


def _accepting(original: Any) -> Any:
    def format(self: Any, source: str) -> Any:
        if source.lower() != "kafka":
            return original(self, source)
        register(self._spark)
        if hasattr(self, "mode"):
            self.mode("append")  # as records are always added
        return original(self, FORMAT)

    format.accepts_kafka = True  # type: ignore[attr-defined]
    return format


class KafkaTable(DataSource):
    @classmethod
    def name(cls) -> str:
        return FORMAT

    def schema(self) -> str:
        headers = str(self.options.get("includeHeaders", "false")).lower() == "true"
        return f"{_COLUMNS}, {_HEADERS}" if headers else _COLUMNS

    def reader(self, schema: StructType) -> DataSourceReader:
        return _Reader(KafkaSource.from_spark_options(dict(self.options), bounded=True), schema)

    def streamReader(self, schema: StructType) -> NoReturn:
        raise FiresteelError("a job of Firesteel reads streams of Kafka; Spark only analyses them")

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        if overwrite:
            raise FiresteelError("mode('overwrite') is not for Kafka, whose records stay: omit it")
        return _Writer(KafkaSink.from_spark_options(dict(self.options)), schema.names)


@dataclass
class _Range(InputPartition):
    topic: str
    partition: int
    start: int
    end: int

    def __post_init__(self) -> None:
        super().__init__(None)


class _Reader(DataSourceReader):
    def __init__(self, source: KafkaSource, schema: StructType) -> None:
        self._source = source
        self._headers = "headers" in schema.names

    def partitions(self) -> Sequence[InputPartition]:
        consumer = self._consumer()
        try:
            return [
                _Range(topic, number, *self._range(consumer, topic, number))
                for topic, number in self._found(consumer)
            ]
        finally:
            consumer.close()

    def read(self, partition: InputPartition) -> Iterator[tuple[Any, ...]]:
        from confluent_kafka import TopicPartition

        assert isinstance(partition, _Range)
        consumer, at = self._consumer(), partition.start
        consumer.assign([TopicPartition(partition.topic, partition.partition, at)])
        try:
            while at < partition.end:
                for message in consumer.consume(_AT_ONCE, _POLL_S):
                    if message.error() is not None:
                        raise FiresteelError(f"{partition.topic}: {message.error()}")
                    if message.offset() < partition.end:
                        yield self._row(message)
                (position,) = consumer.position(
                    [TopicPartition(partition.topic, partition.partition)]
                )
                at = max(at, position.offset)  # beyond markers of transactions, too
        finally:
            consumer.close()

    def _row(self, message: Any) -> tuple[Any, ...]:
        from datetime import UTC, datetime

        kind, time_ms = message.timestamp()
        time = datetime.fromtimestamp(time_ms / 1_000, UTC) if kind else None
        row = (
            *(message.key(), message.value(), message.topic(), message.partition()),
            *(message.offset(), time, _TIME_TYPE.get(kind, -1)),
        )
        return (*row, list(message.headers() or ()) or None) if self._headers else row

    def _consumer(self) -> Any:
        from confluent_kafka import Consumer

        connection = self._source.connection
        return Consumer(
            {
                "isolation.level": "read_committed",
                **connection.properties,
                "bootstrap.servers": connection.bootstrap_servers,
                "group.id": self._source.group_id or "firesteel-batch",
                "enable.auto.commit": False,
                "auto.offset.reset": "error",
            }
        )

    def _found(self, consumer: Any) -> list[tuple[str, int]]:
        import re

        source = self._source
        if source.partitions:
            return [(topic, n) for topic, numbers in source.partitions.items() for n in numbers]
        topics = consumer.list_topics(timeout=_TIMEOUT_S).topics
        pattern = source.topic_pattern
        names = source.topics or [name for name in topics if re.fullmatch(pattern or "", name)]
        for name in names:
            if name not in topics:
                raise FiresteelError(f"there is no topic {name!r}; create it before it is read")
        return [(name, number) for name in names for number in sorted(topics[name].partitions)]

    def _range(self, consumer: Any, topic: str, partition: int) -> tuple[int, int]:
        from confluent_kafka import TopicPartition

        low, high = consumer.get_watermark_offsets(
            TopicPartition(topic, partition), timeout=_TIMEOUT_S
        )
        ends = self._source.end
        start = self._offset(consumer, self._source.start, topic, partition, low, high)
        end = high if ends is None else self._offset(consumer, ends, topic, partition, low, high)
        if start < low and self._source.fail_on_data_loss:
            raise FiresteelError(
                f"{topic}, partition {partition}: the read starts at offset {start}, and the first"
                f" available record has offset {low}; set failOnDataLoss=false to start there"
            )
        return max(start, low), end

    def _offset(
        self, consumer: Any, asked: KafkaOffsets, topic: str, partition: int, low: int, high: int
    ) -> int:
        from confluent_kafka import TopicPartition

        time_ms = asked.timestamps_ms.get(topic, {}).get(partition, asked.timestamp_ms)
        number = asked.offsets.get(topic, {}).get(partition)
        if number is not None:
            return {EARLIEST: low, LATEST: high}.get(number, number)
        if time_ms is not None:
            wanted = [TopicPartition(topic, partition, time_ms)]
            (found,) = consumer.offsets_for_times(wanted, timeout=_TIMEOUT_S)
            return int(found.offset) if found.offset >= 0 else high
        return low if asked.place == "earliest" else high


class _Writer(DataSourceWriter):
    """Writes rows at least once, as Spark's own writer does."""

    def __init__(self, sink: KafkaSink, names: Sequence[str]) -> None:
        self._sink = sink
        self._names = [name.lower() for name in names]
        if "value" not in self._names:
            raise FiresteelError(f"the rows have no column 'value', only: {', '.join(names)}")
        if sink.topic is None and "topic" not in self._names:
            raise FiresteelError("set the option 'topic', or add a column 'topic' to the rows")

    def write(self, iterator: Iterator[Row]) -> WriterCommitMessage:
        from confluent_kafka import KafkaError, Producer

        connection, failures = self._sink.connection, []
        producer = Producer(
            {**connection.properties, "bootstrap.servers": connection.bootstrap_servers}
        )

        def delivered(error: KafkaError | None, _: Any) -> None:
            if error is not None:
                failures.append(error)

        for row in iterator:
            fields = dict(zip(self._names, row, strict=True))
            options: dict[str, Any] = {}
            if (partition := fields.get("partition")) is not None:
                options["partition"] = partition
            if headers := fields.get("headers"):
                options["headers"] = [tuple(header) for header in headers]
            while True:
                try:
                    producer.produce(
                        self._sink.topic or fields["topic"],
                        value=_bytes(fields["value"]),
                        key=_bytes(fields.get("key")),
                        on_delivery=delivered,
                        **options,
                    )
                    break
                except BufferError:
                    producer.poll(_POLL_S)
            producer.poll(0)
        producer.flush()
        if failures:
            raise FiresteelError(f"{len(failures)} records were not written: {failures[0].str()}")
        return WriterCommitMessage()


def _bytes(value: Any) -> bytes | str | None:
    return value if value is None or isinstance(value, str) else bytes(value)
