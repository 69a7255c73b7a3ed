"""Clients of Kafka, and the errors of its brokers in words.

Only this module imports the client libraries. librdkafka logs nothing: its errors reach
`Reports`, and are part of the FiresteelError that follows.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from firesteel.common.backoff import Backoff
from firesteel.common.config.redaction import is_sensitive, remember
from firesteel.common.logs import get_logger
from firesteel.connectors.kafka.connection import KafkaConnection
from firesteel.errors import FiresteelError
from firesteel.operator import TaskCancelled

if TYPE_CHECKING:
    from confluent_kafka import Consumer, KafkaError, Producer
    from confluent_kafka.admin import AdminClient

REQUEST_TIMEOUT_S = 10.0  # of a request
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.1, 2.0
_LOGGED_PAUSE_S = 0.8  # Kafka was unavailable for about as long; new topics have no leader at first
_CANCELLED_S = 0.05  # the interval of noticing that the task is cancelled

_log = get_logger("task")
T = TypeVar("T")
# Of every client. A program's properties override them.
_DEFAULTS = {
    "client.id": "firesteel",
    "log_level": "0",
    "reconnect.backoff.ms": "100",
    "reconnect.backoff.max.ms": "5000",
    "socket.connection.setup.timeout.ms": "10000",
    "socket.keepalive.enable": "true",
    "allow.auto.create.topics": "false",
}


class KafkaUnavailable(FiresteelError):
    """No broker answers, or it is not ready. A later attempt may succeed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """What a request is about, for messages."""

    connection: KafkaConnection
    topic: str | None = None
    partition: int | None = None
    group: str | None = None
    transactional_id: str | None = None

    @property
    def brokers(self) -> str:
        return self.connection.bootstrap_servers

    @property
    def place(self) -> str:
        """The topic or partition, with the cluster."""
        if self.topic is None:
            return f"Kafka at {self.brokers}"
        partition = "" if self.partition is None else f", partition {self.partition}"
        return f"topic {self.topic}{partition} at {self.brokers}"


class Reports:
    """The latest error that a client has reported besides those of its calls: why a broker cannot
    be reached. Used by the threads of one client.
    """

    def __init__(self) -> None:
        self.latest: KafkaError | None = None
        self.all_down = False  # no broker can be reached

    def __call__(self, error: KafkaError) -> None:
        if error.name() == "_ALL_BROKERS_DOWN":
            self.all_down = True
            self.latest = self.latest or error
        else:  # says more
            self.latest = error

    def clear(self) -> None:
        """Forgets the errors: a broker answers."""
        self.latest, self.all_down = None, False

    @property
    def cause(self) -> str:
        """The text of the latest error, in parentheses; empty if there was none."""
        return "" if self.latest is None else f" ({self.latest.str()})"


def library(name: str = "confluent_kafka") -> Any:
    """Imports a client library. Raises FiresteelError if the extra is not installed."""
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        raise FiresteelError(
            f"Kafka needs the package {error.name}; install it on the machines of the"
            " TaskExecutors: pip install firesteel[kafka]"
        ) from error


def configuration(
    connection: KafkaConnection, reports: Reports | None = None, **settings: object
) -> dict[str, Any]:
    """Returns librdkafka's configuration: defaults, the program's properties, and then `settings`,
    with underscores in the place of dots.
    """
    properties = resolved(connection.properties)
    return {
        **_DEFAULTS,
        **properties,
        **{name.replace("_", "."): value for name, value in settings.items()},
        "bootstrap.servers": connection.bootstrap_servers,
        "error_cb": reports if reports is not None else Reports(),
    }


def consumer(connection: KafkaConnection, configured: Mapping[str, Any]) -> Consumer:
    """Opens a consumer; `configured` is a `configuration`. Raises FiresteelError for properties
    that librdkafka refuses. No connection is made yet.
    """
    opened: Consumer = _opened(library().Consumer, connection, configured)
    return opened


def producer(connection: KafkaConnection, configured: Mapping[str, Any]) -> Producer:
    """Opens a producer, as `consumer` does."""
    opened: Producer = _opened(library().Producer, connection, configured)
    return opened


def admin(connection: KafkaConnection, reports: Reports | None = None) -> AdminClient:
    """Opens a client for administration, as `consumer` does."""
    configured = configuration(connection, reports)
    client = library("confluent_kafka.admin").AdminClient
    opened: AdminClient = _opened(client, connection, configured)
    return opened


def check_connection(connection: KafkaConnection, timeout_s: float) -> None:
    """Raises FiresteelError, with the reason, if no broker answers within this time."""
    reports = Reports()
    client = admin(connection, reports)
    try:
        client.list_topics(timeout=timeout_s)
    except library().KafkaException as error:
        client.poll(0)  # calls `reports`
        raise explained(error, Subject(connection=connection), "connect", reports) from error


def explained(
    error: KafkaError | Exception, subject: Subject, doing: str = "", reports: Reports | None = None
) -> FiresteelError:
    """Returns the error in words, with the remedy. `doing` is an infinitive, such as "commit
    offsets". KafkaUnavailable if trying again may succeed.
    """
    found = error_of(error)
    if found is None:
        return FiresteelError(f"{subject.place}: {error}")
    to_do = f"cannot {doing}: " if doing else ""
    cause = reports.cause if reports is not None else ""
    name = found.name()
    if name == "_AUTHENTICATION" or (reports is not None and _refused(reports)):
        latest = reports.latest if reports is not None and reports.latest is not None else found
        return FiresteelError(
            f"{subject.place}: {to_do}the broker and this client do not agree on security"
            f" ({latest.str()}). Check security.protocol and the properties that start with"
            " sasl. and ssl."
        )
    if (denied := _denied(name, subject)) is not None:
        return FiresteelError(f"{subject.place}: {to_do}{denied}")
    if name in _UNAVAILABLE or found.retriable():
        if name not in _UNREACHABLE:
            return KafkaUnavailable(f"{subject.place}: {to_do}{found.str()}")
        return KafkaUnavailable(
            f"{subject.place}: {to_do}no broker answers{cause}. Check the address and that the"
            " broker is running"
        )
    if name in _MEANINGS:
        return FiresteelError(f"{subject.place}: {to_do}{_MEANINGS[name]} ({found.str()})")
    return FiresteelError(f"{subject.place}: {to_do}{found.str()} ({name})")


class Waiting:
    """Waits while Kafka is unavailable, until the task is cancelled, and logs it once."""

    def __init__(self, cancelled: Callable[[], bool]) -> None:
        self._cancelled = cancelled
        self._logged = False

    def __call__(self, error: KafkaUnavailable, pause_s: float) -> None:
        """Waits for the next attempt. Raises TaskCancelled."""
        if not self._logged and pause_s >= _LOGGED_PAUSE_S:
            self._logged = True
            _log.warning("Kafka is unavailable; waiting", cause=str(error))
        deadline = time.monotonic() + pause_s
        while not self._cancelled():
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                return
            time.sleep(min(left_s, _CANCELLED_S))
        raise TaskCancelled


def retried(
    work: Callable[[], T],
    patience_s: float = math.inf,
    *,
    waiting: Callable[[KafkaUnavailable, float], None],
    first_pause_s: float = _FIRST_PAUSE_S,
) -> T:
    """Returns what `work` returns, calling it again while Kafka is unavailable, for at most
    `patience_s`. `waiting` is called before each pause, with the error and the pause in seconds; it
    waits, and may raise.
    """
    backoff, deadline = Backoff(first_pause_s, _LONGEST_PAUSE_S), time.monotonic() + patience_s
    while True:
        try:
            return work()
        except KafkaUnavailable as error:
            if time.monotonic() >= deadline:
                raise
            waiting(error, backoff.next())


def error_of(error: KafkaError | Exception) -> KafkaError | None:
    """Returns the KafkaError of an exception; None if it has none."""
    kafka_error: type[KafkaError] = library().KafkaError
    candidates = (error, *getattr(error, "args", ()))
    return next((found for found in candidates if isinstance(found, kafka_error)), None)


_UNREACHABLE = frozenset({"_TRANSPORT", "_ALL_BROKERS_DOWN", "_RESOLVE", "_TIMED_OUT"})
_UNAVAILABLE = _UNREACHABLE | {
    "_NOENT",  # a partition has no leader
    *("_WAIT_COORD", "_WAIT_CACHE", "_RETRY", "_TIMED_OUT_QUEUE", "_MSG_TIMED_OUT"),
    *("BROKER_NOT_AVAILABLE", "LEADER_NOT_AVAILABLE", "NOT_LEADER_FOR_PARTITION"),
    *("COORDINATOR_LOAD_IN_PROGRESS", "COORDINATOR_NOT_AVAILABLE", "NOT_COORDINATOR"),
    *("NETWORK_EXCEPTION", "REQUEST_TIMED_OUT", "REPLICA_NOT_AVAILABLE", "NOT_CONTROLLER"),
    *("NOT_ENOUGH_REPLICAS", "NOT_ENOUGH_REPLICAS_AFTER_APPEND", "KAFKA_STORAGE_ERROR"),
    *("FENCED_LEADER_EPOCH", "UNKNOWN_LEADER_EPOCH", "OFFSET_NOT_AVAILABLE"),
}
_MEANINGS = {
    "UNKNOWN_TOPIC_OR_PART": "the topic does not exist; Firesteel does not create topics",
    "_UNKNOWN_TOPIC": "the topic does not exist; Firesteel does not create topics",
    "_UNKNOWN_PARTITION": "the topic has no such partition",
    "MSG_SIZE_TOO_LARGE": "a record is larger than the broker accepts; raise max.message.bytes of"
    " the topic, and message.max.bytes in properties",
    "RECORD_LIST_TOO_LARGE": "a batch of records is larger than the topic's segments; lower"
    " batch.size in properties",
    "INVALID_TRANSACTION_TIMEOUT": "transaction.timeout.ms is above the broker's"
    " transaction.max.timeout.ms; lower it",
    "_FENCED": "a newer producer has taken over the transactional id; another job or attempt uses"
    " the same prefix",
    "PRODUCER_FENCED": "a newer producer has taken over the transactional id; another job or"
    " attempt uses the same prefix",
    "INVALID_PRODUCER_EPOCH": "a newer producer has taken over the transactional id, or its"
    " transaction timed out",
    "UNSUPPORTED_VERSION": "the broker is too old for this request",
    "POLICY_VIOLATION": "a policy of the broker refuses this",
}


def _denied(name: str, subject: Subject) -> str | None:
    user = "the user of this client"
    match name:
        case "TOPIC_AUTHORIZATION_FAILED":
            of = f"topic {subject.topic}" if subject.topic is not None else "the topic"
            return (
                f"{user} has no permission for {of}; grant Read and Describe to a source, and"
                " Write and Describe to a sink"
            )
        case "GROUP_AUTHORIZATION_FAILED":
            return f"{user} has no permission for the group {subject.group}; grant Read"
        case "TRANSACTIONAL_ID_AUTHORIZATION_FAILED":
            of = f"transactional id {subject.transactional_id}"
            return f"{user} has no permission for the {of}; grant Write and Describe"
        case "CLUSTER_AUTHORIZATION_FAILED":
            return f"{user} has no permission for the cluster; grant IdempotentWrite or Describe"
        case _:
            return None


def _refused(reports: Reports) -> bool:
    return reports.latest is not None and reports.latest.name() in ("_AUTHENTICATION", "_SSL")


def _opened(client: Any, connection: KafkaConnection, configured: Mapping[str, Any]) -> Any:
    try:
        return client(dict(configured))
    except Exception as error:
        found = error_of(error)
        if found is None:
            raise
        raise FiresteelError(
            f"Kafka at {connection.bootstrap_servers}: {found.str()}. Properties are those of"
            " librdkafka: https://github.com/confluentinc/librdkafka/blob/master/CONFIGURATION.md"
        ) from error


def resolved(properties: Mapping[str, str]) -> dict[str, str]:
    """Returns the properties with the values that `env:` and `file:` refer to."""
    values = {name: _value(name, text) for name, text in properties.items()}
    remember({name: text for name, text in values.items() if is_sensitive(name)})
    return values


def _value(name: str, text: str) -> str:
    scheme, _, rest = text.partition(":")
    if scheme == "env":
        if rest not in os.environ:
            raise FiresteelError(
                f"the Kafka property {name} refers to the environment variable {rest}, which this"
                " process does not have; set it where the TaskExecutors are started"
            )
        return os.environ[rest]
    if scheme == "file":
        try:
            return Path(rest.removeprefix("//")).read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise FiresteelError(
                f"the Kafka property {name} refers to a file that this process cannot read: {error}"
            ) from error
    return text
