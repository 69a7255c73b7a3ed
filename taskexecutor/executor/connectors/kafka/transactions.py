"""Transactions of any producer, by Kafka's protocol: describe, list, commit and abort them.

librdkafka cannot end the transaction of another process. Kafka-python's protocol layer can:
the EndTxn request names transactional id, producer id and epoch, and the coordinator does not ask
who sends it. Its version is at most 4. From version 5 on (transaction protocol V2, KIP-890) the
broker raises the epoch at the end of each transaction, which a producer of
librdkafka, speaking V1, does not learn.

A request is repeated while brokers are away or load their logs.
"""

from __future__ import annotations

import logging
import math
import re
import time
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from firesteel.connectors.kafka.connection import KafkaConnection
from firesteel.errors import FiresteelError
from taskexecutor.executor.connectors.kafka.clients import (
    KafkaUnavailable,
    Subject,
    Waiting,
    explained,
    library,
    resolved,
    retried,
)
from taskexecutor.executor.connectors.kafka.tokens import MECHANISM, Tokens, provider
from taskexecutor.executor.connectors.kafka.verdicts import (
    UNKNOWN_OFFSET,
    Description,
    First,
    State,
)

END_TXN_VERSION = 4
_TRY_S = 10.0  # for one request
_FIRST_PAUSE_S = 0.02
_OPEN = tuple(state for state in State if state.open)

_T = TypeVar("_T")


class Transactions:
    """Connects on first use. Used by one thread."""

    def __init__(
        self,
        connection: KafkaConnection,
        *,
        patience_s: float = math.inf,
        cancelled: Callable[[], bool] = lambda: False,
    ) -> None:
        self._connection = connection
        self._patience_s = patience_s
        self._waiting = Waiting(cancelled)
        self._client: Any = None
        self._tokens: Tokens | None = None  # with OAUTHBEARER

    def describe(self, transactional_id: str) -> Description | None:
        """Returns the coordinator's description; None if it does not know the id."""

        def request(client: Any) -> Description | None:
            try:
                found = client.describe_transactions([transactional_id])[transactional_id]
            except library("kafka.errors").TransactionalIdNotFoundError:
                return None
            return Description(
                state=State(found.state.value),
                producer_id=found.producer_id,
                epoch=found.producer_epoch,
                began_ms=found.transaction_start_time_ms,
                timeout_ms=found.transaction_timeout_ms,
                partitions=tuple(sorted((p.topic, p.partition) for p in found.topic_partitions)),
            )

        subject = Subject(connection=self._connection, transactional_id=transactional_id)
        return self._patiently(request, f"describe transactional id {transactional_id}", subject)

    def open_ids(self, prefix: str) -> list[str]:
        """Returns the transactional ids that start with `prefix` and have an open transaction."""
        return self._names(prefix, _OPEN)

    def find(self, prefix: str, *, open_only: bool) -> dict[str, Description]:
        """Returns the descriptions of the transactional ids that start with `prefix`."""
        names = self._names(prefix, _OPEN if open_only else ())
        found = {name: self.describe(name) for name in names}
        return {
            name: description
            for name, description in found.items()
            if description is not None and (description.state.open or not open_only)
        }

    def _names(self, prefix: str, of: Sequence[State]) -> list[str]:
        """Returns the transactional ids in these states; (): in any."""

        def request(client: Any) -> list[str]:
            states = [state.value for state in of]
            try:
                found = client.list_transactions(
                    state_filters=states, transactional_id_pattern=f"{re.escape(prefix)}.*"
                )
            except library("kafka.errors").UnsupportedVersionError:  # before Kafka 4.1
                found = client.list_transactions(state_filters=states[:1])
            names = {
                listed.transactional_id for of_broker in found.values() for listed in of_broker
            }
            return sorted(name for name in names if name.startswith(prefix))

        return self._patiently(request, f"list transactions{f' of {prefix}' if prefix else ''}")

    def end(self, transactional_id: str, producer_id: int, epoch: int, *, commit: bool) -> None:
        """Commits or aborts the open transaction of this producer and epoch. Returns when the
        coordinator has decided; the partitions learn of it soon.
        """
        message = library("kafka.protocol.producer.transaction").EndTxnRequest(
            transactional_id=transactional_id,
            producer_id=producer_id,
            producer_epoch=epoch,
            committed=commit,
            max_version=END_TXN_VERSION,
        )
        doing = f"{'commit' if commit else 'abort'} the transaction of {transactional_id}"
        self._coordinated(transactional_id, message, doing)

    def fence(self, transactional_id: str, timeout_ms: int) -> None:
        """Aborts the open transaction of the id, and makes brokers refuse its producer."""
        message = library("kafka.protocol.producer.transaction").InitProducerIdRequest(
            transactional_id=transactional_id, transaction_timeout_ms=timeout_ms
        )
        self._coordinated(transactional_id, message, f"fence transactional id {transactional_id}")

    def first_records(
        self, producer_id: int, partitions: Sequence[tuple[str, int]]
    ) -> tuple[First, ...]:
        """Returns the first record of the producer's open transaction in each partition."""
        structs, errors = library("kafka.structs"), library("kafka.errors")
        wanted = [structs.TopicPartition(topic, partition) for topic, partition in partitions]

        def request(client: Any) -> dict[tuple[str, int], int]:
            try:
                found = client.describe_producers(wanted)
            except errors.TopicAuthorizationFailedError:  # needs Read, which a sink may not have
                return {}
            return {
                (place.topic, place.partition): producer.current_transaction_start_offset
                for place, state in found.items()
                for producer in state.active_producers
                if producer.producer_id == producer_id
            }

        offsets = self._patiently(request, "describe producers")
        return tuple(
            First(
                topic=topic,
                partition=partition,
                offset=offsets.get((topic, partition), UNKNOWN_OFFSET),
            )
            for topic, partition in partitions
        )

    def close(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            client.close()

    def _coordinated(self, transactional_id: str, message: Any, doing: str) -> None:
        """Sends a request to the coordinator of the id. Raises FiresteelError."""
        errors = library("kafka.errors")
        kind = library("kafka.protocol.metadata").CoordinatorType.TRANSACTION

        def request(client: Any) -> None:
            manager = client._manager  # the public methods send only requests of administration

            async def send() -> Any:
                coordinator = await client._find_coordinator_id(transactional_id, key_type=kind)
                return await manager.send(message, node_id=coordinator)

            error = errors.for_code(manager.run(send).error_code)
            if error is not errors.NoError:
                raise error

        subject = Subject(connection=self._connection, transactional_id=transactional_id)
        self._patiently(request, doing, subject)

    def _patiently(
        self, request: Callable[[Any], _T], doing: str, subject: Subject | None = None
    ) -> _T:
        """Repeats the request until the brokers are there. Raises KafkaUnavailable after some time,
        and FiresteelError for a refusal.
        """
        found_at = subject or Subject(connection=self._connection)
        deadline = time.monotonic() + self._patience_s

        def attempt() -> _T:
            try:
                return request(self._connected(deadline))
            except library("kafka.errors").KafkaError as error:
                if not _same_coordinator(error):
                    self.close()  # its knowledge of coordinators and brokers is old
                raise _in_words(error, found_at, doing) from error

        return retried(
            attempt, self._patience_s, waiting=self._waiting, first_pause_s=_FIRST_PAUSE_S
        )

    def _connected(self, deadline: float) -> Any:
        if self._tokens is not None:
            self._tokens.refresh()
        if self._client is None:
            settings, self._tokens = _client_settings(self._connection, self._tokens)
            left_s = min(_TRY_S, max(1.0, deadline - time.monotonic()))
            logging.getLogger("kafka").setLevel(logging.CRITICAL)  # errors reach the caller
            self._client = _opened(
                client_id="firesteel",
                request_timeout_ms=round(_TRY_S * 1000),
                bootstrap_timeout_ms=round(left_s * 1000),
                **settings,
            )
        return self._client


def _opened(**settings: Any) -> Any:
    """Opens a client. Its constructor would leave a thread and sockets if no broker answers."""
    kind = library("kafka.admin").KafkaAdminClient
    client = kind.__new__(kind)
    try:
        client.__init__(**settings)
    except BaseException:
        if hasattr(client, "_net"):
            client._client.close()
            client._net.stop()
        raise
    return client


def _same_coordinator(error: Any) -> bool:
    return type(error).__name__ == "ConcurrentTransactionsError"


def _in_words(error: Any, subject: Subject, doing: str) -> FiresteelError:
    """Kafka-python's errors have the brokers' numbers; librdkafka's names have the words."""
    number = getattr(error, "errno", 0)
    if type(error).__name__ == "UnsupportedVersionError":
        return FiresteelError(
            f"{subject.place}: cannot {doing}: the broker is too old; exactly-once delivery needs"
            " Apache Kafka 3.0 or later"
        )
    if _same_coordinator(error) or number <= 0:
        text = str(error) or type(error).__name__
        if _same_coordinator(error) or getattr(error, "retriable", False):
            return KafkaUnavailable(f"{subject.place}: cannot {doing}: {text}")
        return FiresteelError(f"{subject.place}: cannot {doing}: {text}")
    return explained(library().KafkaError(number), subject, doing)


_SETTINGS = {
    "security.protocol": "security_protocol",
    "sasl.mechanism": "sasl_mechanism",
    "sasl.mechanisms": "sasl_mechanism",
    "sasl.username": "sasl_plain_username",
    "sasl.password": "sasl_plain_password",
    "sasl.kerberos.service.name": "sasl_kerberos_service_name",
    "ssl.ca.location": "ssl_cafile",
    "ssl.certificate.location": "ssl_certfile",
    "ssl.key.location": "ssl_keyfile",
    "ssl.key.password": "ssl_password",
    "ssl.crl.location": "ssl_crlfile",
}


def _client_settings(
    connection: KafkaConnection, tokens: Tokens | None
) -> tuple[dict[str, Any], Tokens | None]:
    """Returns librdkafka's properties under kafka-python's names, as far as they concern the
    connection, and the tokens of earlier clients, or the first ones.
    """
    properties = resolved(connection.properties)
    settings: dict[str, Any] = {
        _SETTINGS[name]: text for name, text in properties.items() if name in _SETTINGS
    }
    for name in ("security_protocol", "sasl_mechanism"):
        if name in settings:
            settings[name] = settings[name].upper()
    if properties.get("ssl.endpoint.identification.algorithm") == "none":
        settings["ssl_check_hostname"] = False
    if settings.get("sasl_mechanism") == MECHANISM:
        if tokens is None:
            tokens = Tokens(properties)
            tokens.refresh()
        settings["sasl_oauth_token_provider"] = provider(tokens)
    return {"bootstrap_servers": connection.bootstrap_servers.split(","), **settings}, tokens
