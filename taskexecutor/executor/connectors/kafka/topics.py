"""The topics that a sink writes to: whether they exist, and how many partitions they have.

Producers ask for the metadata of a topic in a way that makes a broker create it if its
configuration permits that. Therefore a topic is looked up here first, by a request that creates
nothing.
"""

from __future__ import annotations

import difflib
import time
from collections.abc import Callable
from typing import Any, TypeVar

from firesteel.connectors.kafka.connection import KafkaConnection
from firesteel.errors import FiresteelError
from taskexecutor.executor.connectors.kafka.clients import (
    REQUEST_TIMEOUT_S,
    Reports,
    Subject,
    Waiting,
    admin,
    explained,
    library,
    retried,
)

_FRESH_S = 60.0  # for which the number of a topic's partitions is not requested again
_NEAR = 3

_T = TypeVar("_T")


class Topics:
    """Connects on first use. Used by one thread."""

    def __init__(
        self,
        connection: KafkaConnection,
        *,
        patience_s: float = 0.0,
        cancelled: Callable[[], bool] = lambda: False,
    ) -> None:
        """`patience_s`: for how long requests are repeated while no broker answers."""
        self._connection = connection
        self._patience_s = patience_s
        self._waiting = Waiting(cancelled)
        self._reports = Reports()
        self._client: Any = None
        self._known: dict[str, tuple[int, float]] = {}  # partitions, and when to look again

    def partitions(self, topic: str) -> int:
        """Returns the number of the topic's partitions. Raises FiresteelError if it does not exist,
        with similar names, and KafkaUnavailable if no broker answers.
        """
        count, fresh_until = self._known.get(topic, (0, 0.0))
        if time.monotonic() < fresh_until:
            return count
        count = self._patiently(lambda: self._described(topic))
        self._known[topic] = (count, time.monotonic() + _FRESH_S)
        return count

    def limit_bytes(self, topic: str) -> str:
        """Returns the topic's max.message.bytes; empty if this client may not read it."""
        kinds = library("confluent_kafka.admin")
        return self._setting(kinds.ConfigResource(kinds.RESOURCE_TOPIC, topic), "max.message.bytes")

    def broker_setting(self, name: str) -> str:
        """Returns a setting of a broker; empty if this client may not read it. Raises
        KafkaUnavailable.
        """
        return self._patiently(lambda: self._broker_setting(name))

    def _broker_setting(self, name: str) -> str:
        kinds = library("confluent_kafka.admin")
        subject = Subject(connection=self._connection)
        try:
            brokers = self._admin().list_topics(timeout=REQUEST_TIMEOUT_S).brokers
        except library().KafkaException as error:
            raise self._in_words(error, subject, "list brokers") from error
        broker = min(brokers) if brokers else 0
        return self._setting(kinds.ConfigResource(kinds.RESOURCE_BROKER, str(broker)), name)

    def _patiently(self, request: Callable[[], _T]) -> _T:
        return retried(request, self._patience_s, waiting=self._waiting)

    def _setting(self, resource: Any, name: str) -> str:
        (answer,) = self._admin().describe_configs([resource]).values()
        try:
            found = answer.result(REQUEST_TIMEOUT_S)
        except (library().KafkaException, TimeoutError):  # it is for messages and defaults
            return ""
        entry = found.get(name)
        return str(entry.value) if entry is not None and entry.value is not None else ""

    def _described(self, topic: str) -> int:
        kafka = library()
        subject = Subject(connection=self._connection, topic=topic)
        request = self._admin().describe_topics(
            kafka.TopicCollection([topic]), request_timeout=REQUEST_TIMEOUT_S
        )
        try:
            return len(request[topic].result(2 * REQUEST_TIMEOUT_S).partitions)
        except kafka.KafkaException as error:
            if error.args[0].name() in ("UNKNOWN_TOPIC_OR_PART", "_UNKNOWN_TOPIC"):
                raise FiresteelError(
                    f"{subject.place} does not exist, and Firesteel does not create topics;"
                    f" {self._near(topic)}"
                ) from error
            raise self._in_words(error, subject, "describe it") from error

    def _near(self, topic: str) -> str:
        names = [name for name in self._names() if not name.startswith("__")]
        near = difflib.get_close_matches(topic, names, _NEAR, 0.5)
        if near:
            return f"similar names: {', '.join(near)}"
        return "create it first, for example with kafka-topics.sh --create"

    def _names(self) -> list[str]:
        try:
            return sorted(self._admin().list_topics(timeout=REQUEST_TIMEOUT_S).topics)
        except library().KafkaException:
            return []  # the message is about something else

    def _in_words(self, error: Exception, subject: Subject, doing: str) -> FiresteelError:
        self._admin().poll(0)  # delivers reports
        return explained(error, subject, doing, self._reports)

    def _admin(self) -> Any:
        if self._client is None:
            self._client = admin(self._connection, self._reports)
        return self._client
