"""`format("kafka")` of Spark as a Python data source, which needs none of Spark's packages.

Spark analyses streams with it; Firesteel's jobs read and write them. Batch queries read and write
with it: those of a program, and those of functions for foreachBatch.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, NoReturn

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceWriter,
    InputPartition,
    WriterCommitMessage,
)

from firesteel.connectors.kafka import KafkaSink, KafkaSource
from firesteel.connectors.kafka.spark_options import check_columns, max_block_s, poll_timeout_s
from firesteel.errors import FiresteelError, InvalidProgram
from firesteel.spark_connect.refusals import Refused, SparkError

if TYPE_CHECKING:  # the workers of Spark import the connectors, so that the front starts sooner
    from pyspark.sql import Row, SparkSession
    from pyspark.sql.types import StructType

    from taskexecutor.executor.connectors.kafka.clients import Reports
    from taskexecutor.executor.connectors.kafka.ranges import Range

_COLUMNS = (
    "key BINARY, value BINARY, topic STRING, partition INT, offset BIGINT, timestamp TIMESTAMP,"
    " timestampType INT"
)
_HEADERS = "headers ARRAY<STRUCT<key: STRING, value: BINARY>>"
_POLL_S = 1.0
_AT_ONCE = 10_000
_DELIVERY_TIMEOUT_MS = 120_000  # the default of Kafka's Java producer
_TIME_TYPE = {1: 0, 2: 1}  # librdkafka's creation and append time as Spark's numbers


# Spark reserves the name "kafka" for its own package.
FORMAT = "firesteel_kafka"


def renamed(message: Any) -> Any:
    """Replaces the format "kafka" in a message of Spark Connect. Returns the message. Raises
    Refused for options that a batch cannot have.
    """
    match message.DESCRIPTOR.name:
        case "Read" if message.data_source.format.lower() == "kafka" and not message.is_streaming:
            _check(_Reader, message.data_source.options)
        case "DataSource" if message.format.lower() == "kafka":
            message.format = FORMAT
        case "WriteOperation" if message.source.lower() == "kafka":
            _check(_Writer, message.options)
            message.source = FORMAT
            if message.mode in (message.SAVE_MODE_UNSPECIFIED, message.SAVE_MODE_ERROR_IF_EXISTS):
                message.mode = message.SAVE_MODE_APPEND  # as records are always added
    for field, value in message.ListFields():
        if field.message_type is None or field.message_type.GetOptions().map_entry:
            continue
        for each in value if field.is_repeated else (value,):
            renamed(each)
    return message


def _check(read: Callable[[Mapping[str, str]], object], options: Mapping[str, str]) -> None:
    try:
        read(dict(options))
    except InvalidProgram as error:
        raise Refused(str(error), error=SparkError.ILLEGAL_ARGUMENT) from error


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
        with _only_the_message():
            return _Reader(self.options)

    def streamReader(self, schema: StructType) -> NoReturn:
        raise FiresteelError("a job of Firesteel reads streams of Kafka; Spark only analyses them")

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        with _only_the_message():
            if overwrite:
                raise FiresteelError(
                    "mode('overwrite') is not for Kafka, whose records stay: omit it"
                )
            writer = _Writer(self.options, schema.names)
            check_columns(schema, writer.sink.topic)
            return writer


@contextmanager
def _only_the_message() -> Iterator[None]:
    """Lets Spark report errors without the traceback of the worker, which ends with an error."""
    try:
        yield
    except FiresteelError:
        os.environ["SPARK_HIDE_TRACEBACK"] = "1"
        raise


class _Reader(DataSourceReader):
    """Raises InvalidProgram for invalid options."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self._source = KafkaSource.from_spark_options(options, bounded=True)
        self._timeout_s = poll_timeout_s(options)

    def partitions(self) -> Sequence[InputPartition]:
        with _only_the_message():
            from taskexecutor.executor.connectors.kafka.starting_offsets import existing_records

            return [InputPartition(each) for each in existing_records(self._source)]

    def read(self, partition: InputPartition) -> Iterator[tuple[Any, ...]]:
        if partition.value is None:  # in the place of no partitions
            return
        from taskexecutor.executor.connectors.kafka.clients import Reports

        with _only_the_message():
            reports = Reports()
            consumer = self._consumer(reports)
            try:
                yield from self._rows(consumer, reports, partition.value)
            finally:
                consumer.close()

    def _rows(self, consumer: Any, reports: Reports, of: Range) -> Iterator[tuple[Any, ...]]:
        """Reads up to the end of the range: compaction, transactions and retention leave gaps."""
        from confluent_kafka import KafkaError, TopicPartition

        from taskexecutor.executor.connectors.kafka import clients

        subject = clients.Subject(
            connection=self._source.connection, topic=of.topic, partition=of.partition
        )
        at = of.start
        consumer.assign([TopicPartition(of.topic, of.partition, at)])
        deadline = time.monotonic() + self._timeout_s
        while at < of.end:
            before = at
            # The client waits for as many records as requested.
            for message in consumer.consume(1, _POLL_S) + consumer.consume(_AT_ONCE, 0):
                error, offset = message.error(), message.offset()
                if error is None:
                    if at <= offset < of.end:
                        yield self._row(message)
                    at = max(at, offset + 1)
                elif error.code() == KafkaError._PARTITION_EOF:
                    at = max(at, offset)
                else:
                    found = clients.explained(error, subject, "read it", reports)
                    if not isinstance(found, clients.KafkaUnavailable):
                        raise found
            if at > before:
                deadline = time.monotonic() + self._timeout_s
            elif time.monotonic() > deadline:
                raise FiresteelError(
                    f"{subject.place}: no record has arrived for {self._timeout_s:g} s"
                    f"{reports.cause}; the read is at offset {at} and ends at offset {of.end}."
                    " Check the brokers and open transactions; kafkaConsumer.pollTimeoutMs sets"
                    " this time"
                )

    def _row(self, message: Any) -> tuple[Any, ...]:
        kind, time_ms = message.timestamp()
        timestamp = datetime.fromtimestamp(time_ms / 1_000, UTC) if kind else None
        row = (
            *(message.key(), message.value(), message.topic(), message.partition()),
            *(message.offset(), timestamp, _TIME_TYPE.get(kind, -1)),
        )
        return (*row, list(message.headers() or ()) or None) if self._source.metadata else row

    def _consumer(self, reports: Reports) -> Any:
        from taskexecutor.executor.connectors.kafka import clients

        source = self._source
        configured = clients.configuration(
            source.connection,
            reports,
            isolation_level="read_committed" if source.read_committed else "read_uncommitted",
            group_id=source.group_id or "firesteel-batch",
            enable_auto_commit=False,
            enable_partition_eof=True,
            auto_offset_reset="error" if source.fail_on_data_loss else "earliest",
        )
        return clients.consumer(source.connection, configured)


class _Writer(DataSourceWriter):
    """Writes rows at least once, as Spark's own writer does. Raises InvalidProgram for invalid
    options.
    """

    def __init__(self, options: Mapping[str, str], names: Sequence[str] = ()) -> None:
        self.sink = KafkaSink.from_spark_options(options)
        self._patience_s = max_block_s(options)
        self._names = [name.lower() for name in names]

    def write(self, iterator: Iterator[Row]) -> WriterCommitMessage:
        with _only_the_message():
            self._write(iterator)
        return WriterCommitMessage()

    def _write(self, rows: Iterator[Row]) -> None:
        from taskexecutor.executor.connectors.kafka import clients
        from taskexecutor.executor.connectors.kafka.producers import with_defaults
        from taskexecutor.executor.connectors.kafka.topics import Topics

        kafka, connection, reports = clients.library(), self.sink.connection, clients.Reports()
        topics = Topics(connection, patience_s=self._patience_s)
        failures: list[FiresteelError] = []

        def failed(error: Any, topic: str) -> None:
            subject = clients.Subject(connection=connection, topic=topic)
            failures.append(clients.explained(error, subject, "write a record", reports))

        configured = with_defaults(
            {
                "delivery.timeout.ms": _DELIVERY_TIMEOUT_MS,
                **clients.configuration(connection, reports, delivery_report_only_error=True),
                "on_delivery": lambda error, message: failed(error, message.topic()),
            }
        )
        producer = clients.producer(connection, configured)
        for row in rows:
            topic, record = self._record(row)
            topics.partitions(topic)  # raises if it does not exist
            try:
                _send(producer, topic, record)
            except kafka.KafkaException as error:
                failed(error, topic)
            if failures:
                producer.purge()
                break
        producer.flush()
        if failures:
            raise failures[0]

    def _record(self, row: Row) -> tuple[str, dict[str, Any]]:
        """Returns the topic, and the other arguments of a producer."""
        fields = dict(zip(self._names, row, strict=True))
        topic = self.sink.topic or fields["topic"]
        if topic is None:
            raise FiresteelError(
                "the column 'topic' of a row is null; give it a value, or set the option 'topic'"
            )
        record = {"value": _immutable(fields["value"]), "key": _immutable(fields.get("key"))}
        if (partition := fields.get("partition")) is not None:
            if partition < 0:
                raise FiresteelError(
                    f"the column 'partition' of a row is {partition}; it must be at least 0, or"
                    " null for the one of the key"
                )
            record["partition"] = partition
        if headers := fields.get("headers"):
            if any(name is None for name, _ in headers):
                raise FiresteelError("a header of a row has a null key; give it a name")
            record["headers"] = [(name, _immutable(value)) for name, value in headers]
        return topic, record


def _send(producer: Any, topic: str, record: dict[str, Any]) -> None:
    """Queues the record. Waits while the queue is full, until records are sent or time out."""
    while True:
        try:
            producer.produce(topic, **record)
        except BufferError:
            producer.poll(_POLL_S)
        else:
            producer.poll(0)
            return


def _immutable(value: Any) -> Any:
    """Returns bytes for a bytearray, which Spark's binaryAsBytes=false has in rows."""
    return bytes(value) if isinstance(value, bytearray) else value
