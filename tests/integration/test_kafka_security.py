"""KafkaSource and KafkaSink at a broker with passwords, TLS on both sides, and access control lists."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)
from kafka.admin import KafkaAdminClient, ScramMechanism, UserScramCredentialUpsertion

from firesteel.common.config.redaction import hidden
from firesteel.connectors import KafkaSink, KafkaSource
from firesteel.errors import FiresteelError
from firesteel.testing import OperatorHarness
from taskexecutor.executor.connectors.runtime import sink_runtime
from tests.integration.test_kafka_source import Reader
from tests.kafka.broker import Kafka
from tests.kafka.records import create_topic, produce

PATIENCE_S = 120.0
PASSWORD = "-".join(["correct", "horse", "battery"])
VARIABLE = "KAFKA_PASSWORD_OF_TEST"
MECHANISMS = ("PLAIN", "SCRAM-SHA-512")
ROWS = pa.record_batch({"value": ["a", "b", "c"]})


@pytest.fixture(scope="module")
def broker() -> Iterator[Kafka]:
    scram = "org.apache.kafka.common.security.scram.ScramLoginModule required;"
    config = {
        "sasl.enabled.mechanisms": ",".join(MECHANISMS),
        "listener.name.secure.scram-sha-512.sasl.jaas.config": scram,
        "listener.name.secure.ssl.client.auth": "required",
    }
    with Kafka(users={"alice": PASSWORD}, config=config) as kafka:
        client = KafkaAdminClient(bootstrap_servers=kafka.bootstrap.split(","))
        try:
            alice = UserScramCredentialUpsertion("alice", ScramMechanism.SCRAM_SHA_512, PASSWORD)
            assert client.alter_user_scram_credentials([alice]) == {"alice": None}
        finally:
            client.close()
        yield kafka


@pytest.fixture(autouse=True)
def password(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, PASSWORD)


def allow(kafka: Kafka, kind: ResourceType, name: str, *operations: AclOperation) -> None:
    bindings = [
        AclBinding(
            kind,
            name,
            ResourcePatternType.PREFIXED,
            "User:alice",
            "*",
            each,
            AclPermissionType.ALLOW,
        )
        for each in operations
    ]
    client = AdminClient(kafka.settings())
    for created in client.create_acls(bindings).values():
        created.result(PATIENCE_S)


def arguments(kafka: Kafka, **changed: str | None) -> dict[str, Any]:
    """Returns the broker and alice's properties. None removes one."""
    settings = kafka.settings("alice") | {"sasl.password": f"env:{VARIABLE}"}
    given = settings | {name.replace("__", "."): value for name, value in changed.items()}
    properties = {name: value for name, value in given.items() if value is not None}
    return {"bootstrap_servers": properties.pop("bootstrap.servers"), "properties": properties}


def source(
    kafka: Kafka, topic: str, group: str | None = None, **changed: str | None
) -> KafkaSource:
    return KafkaSource(topic, group_id=group, end="latest", **arguments(kafka, **changed))


def sink(kafka: Kafka, topic: str, prefix: str | None = None, **changed: str | None) -> KafkaSink:
    exactly_once = {"delivery": "exactly-once", "transactional_id_prefix": prefix} if prefix else {}
    return KafkaSink(topic=topic, **arguments(kafka, **changed), **exactly_once)


def write(described: KafkaSink) -> None:
    sink_runtime(described).analyze(ROWS.schema)
    running = OperatorHarness(sink_runtime(described).operator(), [ROWS.schema])
    try:
        running.open()
        running.process(ROWS)
        running.finish()
    finally:
        running.close()


def refusal(act: Any) -> str:
    with pytest.raises(FiresteelError) as raised:
        act()
    assert PASSWORD not in str(raised.value)
    return str(raised.value)


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_a_user_with_permissions_writes_and_reads(broker: Kafka, mechanism: str) -> None:
    topic = create_topic(broker)
    allow(broker, ResourceType.TOPIC, topic, AclOperation.READ, AclOperation.WRITE)
    allow(broker, ResourceType.GROUP, topic, AclOperation.READ)
    allow(broker, ResourceType.TRANSACTIONAL_ID, topic, AclOperation.WRITE)
    write(sink(broker, topic, topic, sasl__mechanism=mechanism))
    with Reader(source(broker, topic, topic, sasl__mechanism=mechanism)) as reader:
        reader.reads(b"a", b"b", b"c")
    assert hidden(f"with {PASSWORD}.") == "with ******."  # also where it comes from the environment


def test_a_missing_permission_is_named(broker: Kafka) -> None:
    topic = create_topic(broker)
    produce(broker, topic, [b"a"])
    assert topic in refusal(lambda: Reader(source(broker, topic)))
    assert topic in refusal(lambda: write(sink(broker, topic)))
    allow(broker, ResourceType.TOPIC, topic, AclOperation.READ, AclOperation.WRITE)
    group = f"group-{uuid.uuid4().hex[:8]}"
    committed = KafkaSource(
        topic, group_id=group, start="committed", end="latest", **arguments(broker)
    )
    assert f"permission for the group {group}" in refusal(lambda: Reader(committed))
    prefix = f"prefix-{uuid.uuid4().hex[:8]}"
    denied = refusal(lambda: write(sink(broker, topic, prefix)))
    assert f"permission for the transactional id {prefix}" in denied


def test_a_password_in_the_program_is_not_shown(broker: Kafka) -> None:
    literal = {"sasl__password": PASSWORD}
    for described in (source(broker, "t", **literal), sink(broker, "t", "p", **literal)):
        assert described.connection.properties["sasl.password"] == PASSWORD
        assert PASSWORD not in f"{described!r} {described.connection!r} {described.display_name}"
        assert described.connection.shown["sasl.password"] == "******"
