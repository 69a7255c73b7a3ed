"""Records that the format cannot decode: they fail the job, or are dropped, sent to a side output
or written to a dead-letter topic.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa

from firesteel.connectors.kafka.source import UNREADABLE_TAG, DeadLetter, KafkaSource
from firesteel.errors import FiresteelError
from firesteel.operator import Output, RuntimeContext
from taskexecutor.executor.connectors.kafka import clients
from taskexecutor.executor.connectors.kafka.clients import REQUEST_TIMEOUT_S, Subject
from taskexecutor.executor.connectors.kafka.decoders import Bad
from taskexecutor.executor.connectors.kafka.records import HEADERS, RECORDS_WITH_HEADERS

COUNTER = "numUnreadableRecordsDropped"
UNREADABLE = RECORDS_WITH_HEADERS.append(pa.field("error", pa.string()))


def needs_headers(source: KafkaSource) -> bool:
    """Whether unreadable records are passed on with their headers."""
    return source.on_unreadable not in ("fail", "drop")


class Unreadable:
    """Handles the unreadable records of one subtask."""

    def __init__(self, source: KafkaSource, context: RuntimeContext, output: Output) -> None:
        self._source = source
        self._context = context
        self._output = output
        self._letters: _DeadLetters | None = None
        if isinstance(source.on_unreadable, DeadLetter):
            self._letters = _DeadLetters(source, source.on_unreadable.topic)

    def handle(self, batch: pa.RecordBatch, bad: Bad) -> None:
        """Handles records of `batch`. Raises FiresteelError if they fail the job."""
        records = batch.take(bad.indices)
        if self._source.on_unreadable == "fail":
            topic, partition, offset = (
                records.column(name)[0].as_py() for name in ("topic", "partition", "offset")
            )
            raise FiresteelError(
                f"topic {topic}, partition {partition}, offset {offset}: {bad.errors[0]}. Correct"
                " the format, or set on_unreadable of KafkaSource to drop or keep such records"
            )
        if self._source.on_unreadable == "drop":
            self._context.counter(COUNTER).inc(records.num_rows)
        elif self._letters is not None:
            self._context.counter("numDeadLetters").inc(records.num_rows)
            self._letters.send(records, bad)
        else:
            columns = [*records.columns, pa.array(bad.errors, pa.string())]
            self._output.emit_side(
                UNREADABLE_TAG, pa.RecordBatch.from_arrays(columns, schema=UNREADABLE)
            )

    def flush(self) -> None:
        """Returns when the brokers have all dead letters. Raises FiresteelError."""
        if self._letters is not None:
            self._letters.flush(lambda: self._context.cancelled)

    def close(self) -> None:
        if self._letters is not None:
            self._letters.close()


class _DeadLetters:
    def __init__(self, source: KafkaSource, topic: str) -> None:
        self._subject = Subject(connection=source.connection, topic=topic)
        self._reports = clients.Reports()
        self._failure: Any = None
        configured = clients.configuration(
            source.connection, self._reports, enable_idempotence=True, linger_ms=5
        )
        for name in ("isolation.level", "group.id"):
            configured.pop(name, None)
        self._producer = clients.producer(source.connection, configured)
        self._topic = topic

    def send(self, records: pa.RecordBatch, bad: Bad) -> None:
        for row, error in zip(records.to_pylist(), bad.errors, strict=True):
            headers = [(each["key"], each["value"]) for each in row[HEADERS] or ()]
            headers += [
                ("firesteel.error", error.encode()),
                ("firesteel.topic", row["topic"].encode()),
                ("firesteel.partition", str(row["partition"]).encode()),
                ("firesteel.offset", str(row["offset"]).encode()),
            ]
            while True:
                try:
                    self._producer.produce(
                        self._topic,
                        row["value"],
                        row["key"],
                        headers=headers,
                        on_delivery=self._delivered,
                    )
                    break
                except BufferError:
                    self._producer.poll(1.0)
            self._producer.poll(0)
        self._check()

    def flush(self, cancelled: Callable[[], bool]) -> None:
        while self._producer.flush(1.0) and not cancelled():
            self._check()
        self._check()

    def close(self) -> None:
        self._producer.purge()
        self._producer.flush(REQUEST_TIMEOUT_S)

    def _delivered(self, error: Any, _: object) -> None:
        if error is not None:
            self._failure = error

    def _check(self) -> None:
        if self._failure is not None:
            raise clients.explained(
                self._failure, self._subject, "write unreadable records", self._reports
            )
