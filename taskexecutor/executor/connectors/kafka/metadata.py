"""Asks a cluster for the partitions, ids and offsets of topics.

Every method raises FiresteelError with the topic or group, and KafkaUnavailable if trying again
may succeed.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from firesteel.common.logs import get_logger
from firesteel.connectors.kafka.connection import KafkaConnection
from firesteel.connectors.kafka.offsets import Otherwise
from firesteel.errors import FiresteelError
from taskexecutor.executor.connectors.kafka import clients
from taskexecutor.executor.connectors.kafka.clients import REQUEST_TIMEOUT_S, Subject
from taskexecutor.executor.connectors.kafka.partitions import (
    Available,
    Listing,
    Lookup,
    Partition,
    Topic,
    fallback,
)

_UNKNOWN = ("UNKNOWN_TOPIC_OR_PART", "_UNKNOWN_TOPIC", "_UNKNOWN_PARTITION", "UNKNOWN_TOPIC_ID")
_NAMED = 10  # topics, at most
_T = TypeVar("_T")
_log = get_logger("task")


class Metadata:
    """Asks the brokers of one connection. Used by one thread at a time."""

    def __init__(self, connection: KafkaConnection, *, read_committed: bool = True) -> None:
        self._connection = connection
        self._read_committed = read_committed
        self._reports = clients.Reports()
        self._client = clients.admin(connection, self._reports)

    # -- topics

    def listed(self, names: Sequence[str]) -> Listing:
        """Returns those of the topics that exist."""
        if not names:
            return Listing()
        collection = clients.library().TopicCollection(list(names))
        futures = self._asked(
            lambda: self._client.describe_topics(collection, request_timeout=REQUEST_TIMEOUT_S)
        )
        found: dict[str, Topic] = {}
        for name, future in futures.items():
            described = self._answer(future, "describe the topic", _UNKNOWN, topic=name)
            if described is not None:
                numbers = tuple(sorted(each.id for each in described.partitions))
                found[name] = Topic(_text(described.topic_id), numbers)
        return Listing(topics=found)

    def matching(self, pattern: str) -> Listing:
        """Returns the topics whose whole names match, except those of Kafka itself."""
        matches = re.compile(pattern).fullmatch
        return self.listed([name for name in self.names() if matches(name)])

    def names(self) -> list[str]:
        """Returns the names of all topics that the user may see, except those of Kafka itself."""
        found = self._asked(lambda: self._client.list_topics(timeout=REQUEST_TIMEOUT_S))
        return sorted(name for name in found.topics if not name.startswith("__"))

    def unknown(self, name: str) -> FiresteelError:
        """Returns the error for a topic that does not exist, with similar names."""
        near = difflib.get_close_matches(name, self.names(), n=3, cutoff=0.6)
        hint = f"did you mean {', '.join(near)}?" if near else "create it first"
        return FiresteelError(
            f"Kafka at {self._connection.bootstrap_servers}: there is no topic {name}; {hint}"
        )

    def warn_of_unmatched(self, pattern: str) -> None:
        """Logs that a pattern matches no topic, with some topics that exist."""
        brokers, names = self._connection.bootstrap_servers, self.names()
        _log.warning(
            "no topic matches, so nothing is read",
            topic_pattern=pattern,
            bootstrap_servers=brokers,
            topics=names[:_NAMED],
        )

    # -- offsets

    def available(self, partitions: Sequence[Partition]) -> dict[Partition, Available]:
        """Returns the offsets of each partition's log, with records of open transactions. The
        partitions exist.
        """
        first = self._offsets({each: Lookup("earliest") for each in partitions}, committed=False)
        end = self._offsets({each: Lookup("latest") for each in partitions}, committed=False)
        found: dict[Partition, Available] = {}
        for each in partitions:
            low, high = first[each], end[each]
            if low is not None and high is not None:
                found[each] = Available(low, high)
        return found

    def resolved(
        self,
        what: str,
        lookups: Mapping[Partition, Lookup],
        otherwise: Otherwise,
        group: str | None,
    ) -> dict[Partition, int]:
        """Returns the offset that each lookup stands for. Raises FiresteelError if there is none
        and `otherwise` is "fail".
        """
        found: dict[Partition, int | None] = {
            each: lookup.number for each, lookup in lookups.items() if lookup.kind == "offset"
        }
        by_group = [each for each, lookup in lookups.items() if lookup.kind == "committed"]
        if by_group:
            assert group is not None
            committed = self.committed(group, by_group)
            found |= {each: committed.get(each) for each in by_group}
        listed = {each: lookup for each, lookup in lookups.items() if each not in found}
        found |= self._offsets(listed, committed=self._read_committed)
        again = {
            each: fallback(what, each, lookups[each], otherwise)
            for each, offset in found.items()
            if offset is None and lookups[each].kind in ("committed", "timestamp")
        }
        if again:
            found |= self.resolved(what, again, "fail", None)
        for each, offset in found.items():
            if offset is None:
                raise FiresteelError(f"{what}: {each}: there is no such partition")
        return {each: offset for each, offset in found.items() if offset is not None}

    def committed(self, group: str, partitions: Sequence[Partition]) -> dict[Partition, int]:
        """Returns the offsets that the group has committed."""
        return {each: at.offset for each, at in self._committed(group, partitions).items()}

    def committed_by(self, group: str, partitions: Sequence[Partition]) -> set[str]:
        """Returns the metadata of the group's commits."""
        found = self._committed(group, partitions).values()
        return {at.metadata for at in found if at.metadata}

    def _committed(self, group: str, partitions: Iterable[Partition]) -> dict[Partition, Any]:
        """Asks as a consumer. The same request of librdkafka's AdminClient ends the process if the
        coordinator of the group has moved: it looks for a group that only a consumer has.
        """
        asked = [clients.library().TopicPartition(*each) for each in partitions]
        if not asked:
            return {}
        configured = clients.configuration(
            self._connection, self._reports, group_id=group, enable_auto_commit=False
        )
        client = clients.consumer(self._connection, configured)
        try:
            answer = client.committed(asked, REQUEST_TIMEOUT_S)
        except clients.library().KafkaException as error:
            # Without permission, there is no coordinator; a poll returns the reason.
            message = client.poll(0)
            cause = error if message is None else message.error()
            raise self._explained(cause, "read committed offsets", group=group) from error
        finally:
            client.close()
        found: dict[Partition, Any] = {}
        for at in answer:
            if at.error is not None:
                raise self._explained(at.error, "read committed offsets", group=group)
            if at.offset >= 0:
                found[Partition(at.topic, at.partition)] = at
        return found

    def _offsets(
        self, lookups: Mapping[Partition, Lookup], *, committed: bool
    ) -> dict[Partition, int | None]:
        """Returns None for a partition that does not exist, and without a record for the time."""
        if not lookups:
            return {}
        library, admin = clients.library(), clients.library("confluent_kafka.admin")
        specs = {
            library.TopicPartition(*each): _spec(admin.OffsetSpec, lookup)
            for each, lookup in lookups.items()
        }
        level = library.IsolationLevel
        futures = self._asked(
            lambda: self._client.list_offsets(
                specs,
                isolation_level=level.READ_COMMITTED if committed else level.READ_UNCOMMITTED,
                request_timeout=REQUEST_TIMEOUT_S,
            )
        )
        found: dict[Partition, int | None] = {}
        for of, future in futures.items():
            answer = self._answer(
                future, "list offsets", _UNKNOWN, topic=of.topic, partition=of.partition
            )
            offset = None if answer is None or answer.offset < 0 else answer.offset
            found[Partition(of.topic, of.partition)] = offset
        return found

    # -- answers

    def _asked(self, request: Callable[[], _T]) -> _T:
        try:
            return request()
        except Exception as error:
            raise self._explained(error) from error

    def _answer(self, future: Any, doing: str, ignored: Sequence[str] = (), **subject: Any) -> Any:
        """Returns the result; None for an error whose name is `ignored`."""
        try:
            return future.result(REQUEST_TIMEOUT_S + 5)
        except Exception as error:
            found = clients.error_of(error)
            if found is not None and found.name() in ignored:
                return None
            raise self._explained(error, doing, **subject) from error

    def _explained(self, error: Any, doing: str = "", **subject: Any) -> FiresteelError:
        if clients.error_of(error) is None and not isinstance(error, TimeoutError):
            raise error
        self._client.poll(0)  # delivers reports
        about = Subject(connection=self._connection, **subject)
        return clients.explained(error, about, doing, self._reports)


def _spec(specs: Any, lookup: Lookup) -> Any:
    match lookup.kind:
        case "earliest":
            return specs.earliest()
        case "latest":
            return specs.latest()
        case _:
            return specs.for_timestamp(lookup.number)


def _text(topic_id: object) -> str:
    text = "" if topic_id is None else str(topic_id)
    return "" if set(text) <= {"A", "="} else text
