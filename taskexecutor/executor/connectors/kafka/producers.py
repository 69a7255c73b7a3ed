"""A producer of librdkafka: sends records, and explains the refusals of brokers.

Only failed records are reported, because a callback for each record would cost more than sending
it. Sending waits while the client's queue is full, and flushing while no broker answers: at least
once, for as long as it takes; in a transaction, until the transaction would have timed out.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from firesteel.connectors.kafka.connection import KafkaConnection
from firesteel.errors import FiresteelError
from firesteel.operator import RuntimeContext, TaskCancelled
from taskexecutor.executor.connectors.kafka.clients import (
    Reports,
    Subject,
    configuration,
    error_of,
    explained,
    library,
    producer,
)
from taskexecutor.executor.connectors.kafka.outgoing import Outgoing
from taskexecutor.executor.connectors.kafka.topics import Topics

if TYPE_CHECKING:
    from confluent_kafka import KafkaError, Message

_STEP_S = 0.2  # after which a waiting task notices that it is cancelled
_KEPT_FAILURES = 20
_SHOWN_KEY = 60
_STATISTICS_MS = 5_000
# A program's properties override these.
_DEFAULTS = {
    "acks": "all",
    "enable.idempotence": True,
    "linger.ms": 1,  # rows come in batches
    # librdkafka's queue may take 1 GiB.
    "queue.buffering.max.kbytes": 64 * 1024,
    "queue.buffering.max.messages": 500_000,
    # Only the topic limits the size of a record; batches are limited by batch.size.
    "message.max.bytes": 100_000_000,
    "partitioner": "murmur2_random",  # as the Java producer
}
_ALL = ("all", "-1")  # acknowledgements
_FEW_IN_FLIGHT = ("1", "2", "3", "4", "5")  # requests of an idempotent producer
_TRANSACTIONS = "transactional.id"
_CONSEQUENCES = frozenset({"_FATAL", "_STATE", "_PURGE_QUEUE", "_PURGE_INFLIGHT"})


def with_defaults(given: Mapping[str, object]) -> dict[str, object]:
    """Returns the configuration of a producer. As with the Java producer, it is not idempotent if
    `given` has properties that exclude it, such as acks=1.
    """
    excluded = (
        str(given.get("acks", "all")) not in _ALL
        or str(given.get("retries", 1)) == "0"
        or str(given.get("max.in.flight.requests.per.connection", 1)) not in _FEW_IN_FLIGHT
    )
    plain = {"enable.idempotence": False} if excluded and _TRANSACTIONS not in given else {}
    return {**_DEFAULTS, **plain, **given}


class Sender:
    """Opens a producer, without a connection. Used by one thread."""

    def __init__(
        self,
        connection: KafkaConnection,
        topics: Topics,
        context: RuntimeContext,
        *,
        transactional_id: str | None = None,
        **settings: object,
    ) -> None:
        """`settings`: with underscores in the place of dots; properties override them."""
        self._connection = connection
        self._topics = topics
        self._context = context
        self._transactional_id = transactional_id
        self._failures: list[tuple[KafkaError, Message]] = []
        self._failed = context.counter("numRecordsOutErrors")
        self._send_failed = context.counter("numRecordsSendErrors")
        self.round_trip_ms = 0.0  # of requests, on average
        self.reports = Reports()
        own = {name.replace("_", "."): value for name, value in settings.items()}
        forced: dict[str, object] = {"delivery_report_only_error": True}
        if transactional_id is not None:
            forced["transactional_id"] = transactional_id
        configured = with_defaults(
            {
                "statistics.interval.ms": _STATISTICS_MS,
                **own,
                **configuration(connection, self.reports, **forced),
                "on_delivery": self._delivered,
                "stats_cb": self._measured,
            }
        )
        self._limit = str(configured["message.max.bytes"])
        self.client = producer(connection, configured)

    def send(self, records: Iterable[Outgoing]) -> None:
        """Queues the records. Raises FiresteelError for a record that is refused, perhaps of an
        earlier call.
        """
        produce, kafka = self.client.produce, library()
        for record in records:
            try:
                produce(*record)
            except BufferError:
                self._send_when_there_is_room(record)
            except kafka.KafkaException as error:
                self._failed.inc()
                raise self._refused(error, record) from error
        self._serve(self.client.poll, 0)

    def flush(self) -> None:
        """Returns when the brokers have all records. Raises FiresteelError."""
        while self._serve(self.client.flush, _STEP_S):
            self._check_cancelled()

    def call(self, action: Callable[[float], None]) -> None:
        """Calls an operation of the client, which takes a timeout, until it succeeds. Raises
        KafkaException for an error that remains.
        """
        kafka = library()
        while True:
            try:
                return action(_STEP_S)
            except kafka.KafkaException as error:
                if not error.args[0].retriable():
                    raise
            self._check_cancelled()

    def _serve(self, call: Callable[[float], int], timeout_s: float) -> int:
        """Calls an operation that reports failed records."""
        try:
            left = call(timeout_s)
        except library().KafkaException as error:
            self._raise_failure()
            raise self.in_words(error) from error
        self._raise_failure()
        return left

    def _raise_failure(self) -> None:
        """Raises FiresteelError if brokers have refused a record."""
        if self._failures:
            error, record = self._failures[0]
            count = f" ({len(self._failures)} records failed)" if len(self._failures) > 1 else ""
            found = self.in_words(
                error, record.topic(), record.partition(), record.value(), record.key()
            )
            raise type(found)(f"{found}{count}")

    def in_words(
        self,
        error: KafkaError | Exception,
        topic: str | None = None,
        partition: int | None = None,
        value: Any = None,
        key: Any = None,
    ) -> FiresteelError:
        found = error_of(error)
        if found is not None and found.name() in _CONSEQUENCES:
            found = self._cause() or found
        subject = Subject(
            connection=self._connection,
            topic=topic,
            partition=partition if partition is not None and partition >= 0 else None,
            transactional_id=self._transactional_id,
        )
        size = _size(value) + _size(key)
        if found is not None and found.name() == "MSG_SIZE_TOO_LARGE":
            return self._too_large(subject, size, key)
        if found is not None and found.name() == "_UNKNOWN_PARTITION" and topic is not None:
            return FiresteelError(
                f"topic {topic} at {subject.brokers} has no partition {partition}; it has"
                f" {self._topics.partitions(topic)}, numbered from 0"
            )
        if found is not None and found.name() in _TAKEN_OVER:
            return FiresteelError(
                f"{subject.place}: transactional id {self._transactional_id}: its transaction was"
                " ended by another producer with this id, or timed out. If another job has the"
                " same transactional_id_prefix, give each job its own; after a timeout, raise"
                f" transaction_timeout ({found.str()})"
            )
        what = f"write a record of {size} bytes" if size else "write records"
        return explained(found or error, subject, what, self.reports)

    def _cause(self) -> KafkaError | None:
        """Returns the cause of an error that follows from another, which the client may not have
        reported yet.
        """
        try:
            self.client.poll(0)
        except library().KafkaException as error:
            if (found := error_of(error)) is not None and found.name() not in _CONSEQUENCES:
                return found
        return self.reports.latest

    def close(self) -> None:
        """Discards unsent records. Leaves an open transaction as it is."""
        self.client.purge()

    def _too_large(self, subject: Subject, size: int, key: Any) -> FiresteelError:
        limit = self._topics.limit_bytes(subject.topic) if subject.topic is not None else ""
        allowed = f"max.message.bytes of the topic is {limit or 'smaller'}"
        if size > int(self._limit):
            allowed = f"message.max.bytes in properties is {self._limit}"
        return FiresteelError(
            f"{subject.place}: a record of {size} bytes is too large{_of_key(key)}: {allowed};"
            " raise it, or write smaller records"
        )

    def _refused(self, error: Exception, record: Outgoing) -> FiresteelError:
        topic, value, key, partition = record[:4]
        return self.in_words(error, topic, partition, value, key)

    def _send_when_there_is_room(self, record: Outgoing) -> None:
        while True:
            self._serve(self.client.poll, _STEP_S)
            self._check_cancelled()
            try:
                return self.client.produce(*record)
            except BufferError:
                continue

    def _delivered(self, error: KafkaError | None, record: Message) -> None:
        if error is None:
            return
        self._failed.inc()
        self._send_failed.inc()
        if len(self._failures) < _KEPT_FAILURES:
            self._failures.append((error, record))

    def _measured(self, statistics: str) -> None:
        brokers = json.loads(statistics).get("brokers", {}).values()
        measured = [
            broker["rtt"]["avg"] / 1_000 for broker in brokers if broker["rtt"].get("cnt", 0)
        ]
        if measured:
            self.round_trip_ms = max(measured)

    def _check_cancelled(self) -> None:
        if self._context.cancelled:
            raise TaskCancelled


_TAKEN_OVER = frozenset(
    {"_FENCED", "PRODUCER_FENCED", "INVALID_PRODUCER_EPOCH", "INVALID_TXN_STATE"}
)


def _size(value: Any) -> int:
    return 0 if value is None else len(value)


def _of_key(key: Any) -> str:
    if key is None:
        return ""
    shown = bytes(key[:_SHOWN_KEY])
    return f" (its key is {shown!r}{'...' if len(key) > _SHOWN_KEY else ''})"
