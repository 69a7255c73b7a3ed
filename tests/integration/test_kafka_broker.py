"""The brokers that tests use do what they rely on."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from confluent_kafka import KafkaError, KafkaException, Producer
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)
from kafka.admin import KafkaAdminClient

from tests.kafka.broker import Kafka
from tests.kafka.records import Record, create_topic, produce, read
from tests.waiting import eventually

PATIENCE_S = 120.0


@contextmanager
def _admin(kafka: Kafka) -> Iterator[KafkaAdminClient]:
    client = KafkaAdminClient(bootstrap_servers=kafka.bootstrap.split(","))
    try:
        yield client
    finally:
        client.close()


@pytest.mark.parametrize("codec", ["none", "gzip", "lz4", "zstd"])
def test_records_are_read_as_they_were_written(kafka: Kafka, codec: str) -> None:
    topic = create_topic(kafka, partitions=2)
    written = [
        Record(
            value=b"1", key=b"a", partition=0, timestamp_ms=5, headers=(("h", b"x"), ("h", None))
        ),
        Record(value=None, key=b"b", partition=1, timestamp_ms=6),
        Record(value=b"", partition=1, timestamp_ms=7),
    ]
    produce(kafka, topic, written, settings={"compression.type": codec})
    found = [
        Record(
            value=each.value,
            key=each.key,
            partition=each.partition,
            timestamp_ms=each.timestamp_ms,
            headers=each.headers,
        )
        for each in read(kafka, topic)
    ]
    assert sorted(found, key=str) == sorted(written, key=str)


def test_committed_readers_see_only_committed_transactions(kafka: Kafka) -> None:
    topic = create_topic(kafka)
    name = f"transaction-of-{topic}"
    producer = Producer({**kafka.settings(), "transactional.id": name})
    producer.init_transactions(PATIENCE_S)
    for value, outcome in ((b"aborted", "abort"), (b"committed", "commit")):
        producer.begin_transaction()
        producer.produce(topic, value)
        producer.flush(PATIENCE_S)
        with _admin(kafka) as admin:
            described = admin.describe_transactions([name])[name]
            listed = [
                each.transactional_id
                for of_a_broker in admin.list_transactions().values()
                for each in of_a_broker
            ]
        assert described.state == "Ongoing" and name in listed
        assert read(kafka, topic) == []
        assert value in [each.value for each in read(kafka, topic, isolation="read_uncommitted")]
        if outcome == "abort":
            producer.abort_transaction(PATIENCE_S)
        else:
            producer.commit_transaction(PATIENCE_S)
    eventually(lambda: [each.value for each in read(kafka, topic)] == [b"committed"])
    with _admin(kafka) as admin:
        eventually(lambda: admin.describe_transactions([name])[name].state == "CompleteCommit")


def test_a_topic_that_does_not_exist_is_not_created(kafka: Kafka) -> None:
    client = AdminClient(kafka.settings())
    for _ in range(2):
        described = client.list_topics("no-such-topic", timeout=PATIENCE_S).topics["no-such-topic"]
        assert described.error is not None
        assert described.error.code() == KafkaError.UNKNOWN_TOPIC_OR_PART


@pytest.mark.long  # test_kafka_source.py restarts them
def test_killed_and_paused_brokers_return_with_their_records() -> None:
    with Kafka() as kafka:
        topic = create_topic(kafka)
        produce(kafka, topic, [b"before"])
        kafka.kill()
        kafka.restart()
        kafka.pause()
        with pytest.raises(KafkaException):
            AdminClient(kafka.settings()).list_topics(timeout=0.5)
        kafka.resume()
        produce(kafka, topic, [b"after"])
        assert [each.value for each in read(kafka, topic)] == [b"before", b"after"]


@pytest.mark.long  # only chaos has three brokers
def test_two_of_three_brokers_go_on_without_the_third() -> None:
    with Kafka(3) as kafka:
        topic = create_topic(kafka, partitions=3)
        produce(kafka, topic, [b"before"], settings={"acks": "all"})
        kafka.kill(0)
        produce(kafka, topic, [b"after"] * 30, settings={"acks": "all"})
        assert len(read(kafka, topic)) == 31


def test_users_may_do_what_the_access_control_lists_allow() -> None:
    with Kafka(users={"alice": "secret"}) as kafka:
        topic = create_topic(kafka)
        denied = Producer(kafka.settings("alice"))
        failures: list[KafkaError | None] = []
        denied.produce(topic, b"1", on_delivery=lambda error, _: failures.append(error))
        denied.flush(PATIENCE_S)
        assert failures[0] is not None and failures[0].name() == "TOPIC_AUTHORIZATION_FAILED"
        _allow_writing(kafka, "alice", topic)
        produce(kafka, topic, [b"2"], settings=kafka.settings("alice"))
        assert [each.value for each in read(kafka, topic)] == [b"2"]


def _allow_writing(kafka: Kafka, user: str, topic: str) -> None:
    binding = AclBinding(
        ResourceType.TOPIC,
        topic,
        ResourcePatternType.LITERAL,
        f"User:{user}",
        "*",
        AclOperation.WRITE,
        AclPermissionType.ALLOW,
    )
    client = AdminClient(kafka.settings())
    for created in client.create_acls([binding]).values():
        created.result(PATIENCE_S)
