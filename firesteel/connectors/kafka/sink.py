"""KafkaSink: writes records to topics of Apache Kafka."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, Self, get_args

from firesteel.connectors.checks import check_choice, duration_s
from firesteel.connectors.kafka.connection import KafkaConnection, connection
from firesteel.connectors.kafka.formats import Format, check_format
from firesteel.connectors.kafka.java_properties import librdkafka_properties
from firesteel.connectors.sink import Sink
from firesteel.durations import Duration
from firesteel.errors import InvalidProgram

Delivery = Literal["at-least-once", "exactly-once"]
OnAborted = Literal["fail", "ignore"]
BY_KEY, BY_KEY_GROUP, ROUND_ROBIN = "key", "key_group", "round_robin"

_TOPIC = re.compile(r"[A-Za-z0-9._-]{1,249}")
_PREFIX_LENGTH = 200
# Properties that the sink's own options set.
_OPTIONS = {
    "transactional.id": "transactional_id_prefix",
    "transaction.timeout.ms": "transaction_timeout",
    "delivery.report.only.error": None,
    "enable.gapless.guarantee": None,
}
_SPARK_IGNORED = frozenset({"includeheaders", "path", "checkpointlocation"})


@dataclass(frozen=True, slots=True)
class KafkaSink(Sink):
    """Writes each row as a record: `KafkaSink("daily", bootstrap_servers="kafka:9092")`.

    Without a `value` format, the rows have the columns of Spark's Kafka sink: `value` and, if you
    like, `key` (string or binary), `topic`, `partition` (int; null: as `partition_by` says) and
    `headers` (array of structs of `key`, a string, and `value`, binary). With a format, the value
    holds all columns of the row but those of `topic`, `headers` and, in an upsert, `row_kind`, and
    `Raw()` one column besides those of `key` and the partition; `key` names the
    columns of the key, which `key_format` encodes: by default, one string or binary column as it
    is, and others as `value` does. Without `topic`, the column `topic` names it for each row.

    `delivery`: with "at-least-once", records are visible when they are written, and those since the
    latest checkpoint are written again after a failure. With "exactly-once", records are written in
    transactions that are committed when their checkpoint is complete; consumers with
    `isolation.level=read_committed` see each record once. That needs a `transactional_id_prefix`
    that no other job uses, checkpoints (without them, the only transaction ends with the input) and
    brokers of Kafka 3.0 or later. `transaction_timeout` is the time after which brokers abort a
    transaction, and its records are lost: it must exceed the checkpoint interval plus the longest
    outage. By default it is 15 minutes, or the brokers' transaction.max.timeout.ms if that is less.
    `on_aborted`: what happens on recovery if brokers have aborted a transaction of the checkpoint:
    "fail", or "ignore" to continue without its records.

    `partition_by`: "key" (as Kafka's Java producer: murmur2 of the key, and at random without a
    key), "key_group" (the row's key group among those of the job, so that a partition has the keys
    of one range; `key` names the columns), "round_robin", or the name of an integer column with the
    partition's number. `headers` names a column of headers. With `upsert`, a key's latest record
    replaces earlier ones: a row whose column `row_kind` is "delete" becomes a record without value.

    `properties` are librdkafka's, such as compression.type, linger.ms, security.protocol and
    sasl.password; a value `env:NAME` or `file:PATH` is read by the TaskExecutor. Topics are not
    created.

    Raises InvalidProgram for invalid options.
    """

    topic: str | None = None
    bootstrap_servers: str | Sequence[str] = field(kw_only=True)
    value: Format | None = field(default=None, kw_only=True)
    key: str | Sequence[str] = field(default=(), kw_only=True)
    key_format: Format | None = field(default=None, kw_only=True)
    headers: str | None = field(default=None, kw_only=True)
    partition_by: str = field(default=BY_KEY, kw_only=True)
    upsert: bool = field(default=False, kw_only=True)
    delivery: Delivery = field(default="at-least-once", kw_only=True)
    transactional_id_prefix: str | None = field(default=None, kw_only=True)
    transaction_timeout: Duration | None = field(default=None, kw_only=True)
    on_aborted: OnAborted = field(default="fail", kw_only=True)
    properties: Mapping[str, object] = field(default_factory=dict, kw_only=True, repr=False)

    def __post_init__(self) -> None:
        keys = (self.key,) if isinstance(self.key, str) else tuple(self.key)
        object.__setattr__(self, "key", keys)
        check_choice("KafkaSink: delivery", self.delivery, get_args(Delivery))
        check_choice("KafkaSink: on_aborted", self.on_aborted, get_args(OnAborted))
        if self.topic is not None and not _TOPIC.fullmatch(self.topic):
            raise InvalidProgram(
                f"KafkaSink: topic is {self.topic!r}; the name of a topic has up to 249 letters,"
                " digits, dots, underscores and hyphens"
            )
        _ = self.connection, self.transaction_timeout_ms  # checks them now
        self._check_properties()
        self._check_columns()
        self._check_delivery()

    @property
    def exactly_once(self) -> bool:
        """Whether records are written in transactions."""
        return self.delivery == "exactly-once"

    @property
    def commits_with_checkpoints(self) -> bool:
        return self.exactly_once

    @property
    def connection(self) -> KafkaConnection:
        """The brokers and the properties of the clients."""
        return connection("KafkaSink", self.bootstrap_servers, self.properties)

    @property
    def key_columns(self) -> tuple[str, ...]:
        """The columns that identify what a record is about; empty if it has no key."""
        return tuple(self.key)

    @property
    def transaction_timeout_ms(self) -> int | None:
        """`transaction_timeout` in milliseconds; None: the default."""
        if self.transaction_timeout is None:
            return None
        return round(duration_s("KafkaSink: transaction_timeout", self.transaction_timeout) * 1_000)

    @classmethod
    def from_spark_options(cls, options: Mapping[str, object]) -> Self:
        """Returns the sink that `df.writeStream.format("kafka").options(...)` describes: its topic,
        and `kafka.` in front of the producer's properties. At least once, as in Spark.
        """
        topic, servers = None, None
        properties: dict[str, str] = {}
        for name, value in options.items():
            folded = name.lower()
            if folded == "topic":
                topic = str(value)
            elif folded == "kafka.bootstrap.servers":
                servers = str(value)
            elif folded.startswith("kafka."):
                properties[name[len("kafka.") :]] = str(value)
            elif folded not in _SPARK_IGNORED:
                raise InvalidProgram(
                    f"KafkaSink: Spark's Kafka sink has no option {name!r}; it has: topic,"
                    " includeHeaders, kafka.bootstrap.servers, and kafka.PROPERTY for the producer"
                )
        if servers is None:
            raise InvalidProgram(
                "KafkaSink: the option kafka.bootstrap.servers is missing; set it to the brokers,"
                " for example 'localhost:9092'"
            )
        return cls(
            topic,
            bootstrap_servers=servers,
            properties=librdkafka_properties("KafkaSink", properties),
        )

    def _check_properties(self) -> None:
        for name, option in _OPTIONS.items():
            if name in self.properties:
                instead = f"pass {option} instead" if option else "leave it to the sink"
                raise InvalidProgram(f"KafkaSink: properties contains {name!r}; {instead}")

    def _check_columns(self) -> None:
        for option, format in (("value", self.value), ("key_format", self.key_format)):
            if format is not None:
                check_format(f"KafkaSink: {option}", format)
        if self.value is None and (self.key or self.key_format or self.headers):
            raise InvalidProgram(
                "KafkaSink: key, key_format and headers need a value format, such as value=Json();"
                " without one, the columns key, value and headers are written as they are"
            )
        if self.key_format is not None and not self.key:
            raise InvalidProgram("KafkaSink: key_format needs key=['column', ...]")
        if self.upsert and self.value is not None and not self.key:
            raise InvalidProgram(
                "KafkaSink: upsert needs key=['column', ...], which identifies the row to replace"
            )
        if self.partition_by == BY_KEY_GROUP and self.value is not None and not self.key:
            raise InvalidProgram(
                "KafkaSink: partition_by='key_group' needs key=['column', ...], the columns of"
                " key_by"
            )

    def _check_delivery(self) -> None:
        if not self.exactly_once:
            for name, value in (
                ("transactional_id_prefix", self.transactional_id_prefix),
                ("transaction_timeout", self.transaction_timeout),
            ):
                if value is not None:
                    raise InvalidProgram(
                        f"KafkaSink: {name} has no effect with delivery='at-least-once'; remove it,"
                        " or set delivery='exactly-once'"
                    )
        elif not self.transactional_id_prefix:
            raise InvalidProgram(
                "KafkaSink: delivery='exactly-once' needs transactional_id_prefix='...', a name"
                " that no other job uses and that stays the same when this one is restarted"
            )
        elif len(self.transactional_id_prefix) > _PREFIX_LENGTH:
            raise InvalidProgram(
                f"KafkaSink: transactional_id_prefix has {len(self.transactional_id_prefix)}"
                f" characters; it may have {_PREFIX_LENGTH}"
            )
