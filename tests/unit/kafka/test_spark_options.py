"""The options of Spark's Kafka source."""

from __future__ import annotations

from typing import Any

import pytest

from firesteel.connectors import KafkaOffsets, KafkaSource
from firesteel.errors import InvalidProgram

SERVERS = {"kafka.bootstrap.servers": "kafka:9092"}


def _source(bounded: bool = False, **options: Any) -> KafkaSource:
    given = {"subscribe": "t", **options}
    return KafkaSource.from_spark_options({**SERVERS, **given}, bounded=bounded)


def test_streams_start_at_the_latest_and_never_end() -> None:
    source = _source()
    assert (source.start, source.end) == (KafkaOffsets.latest(), None)
    assert source.fail_on_data_loss and source.metadata == () and source.group_id is None


def test_bounded_reads_are_complete() -> None:
    source = _source(bounded=True)
    assert (source.start, source.end) == (KafkaOffsets.earliest(), KafkaOffsets.latest())


@pytest.mark.parametrize(
    ("options", "start"),
    [
        ({"startingOffsets": "EARLIEST"}, KafkaOffsets.earliest()),
        (
            {"startingOffsets": '{"t": {"0": 23, "1": -2, "2": -1}}'},
            KafkaOffsets.of({"t": {0: 23, 1: -2, 2: -1}}),
        ),
        ({"startingTimestamp": 7, "startingOffsets": "latest"}, KafkaOffsets.at(7, "fail")),
        (
            {"startingTimestamp": "7", "startingOffsetsByTimestampStrategy": "latest"},
            KafkaOffsets.at(7, "latest"),
        ),
        (
            {"startingOffsetsByTimestamp": '{"t": {"0": 5}}'},
            KafkaOffsets(timestamps_ms={"t": {0: 5}}, otherwise="fail"),
        ),
    ],
)
def test_starts_mean_what_they_mean_in_spark(options: Any, start: KafkaOffsets) -> None:
    assert _source(**options).start == start


def test_ends_mean_what_they_mean_in_spark() -> None:
    assert _source(True, endingTimestamp=9).end == KafkaOffsets.at(9, "latest")
    assert _source(True, endingOffsets='{"t":{"0":-1}}').end == KafkaOffsets.of({"t": {0: -1}})


def test_topics_are_named_in_three_ways() -> None:
    assert _source(subscribe="a, b").topics == ("a", "b")
    options = {**SERVERS, "subscribePattern": "a.*"}
    source = KafkaSource.from_spark_options(options)
    assert (source.topic_pattern, source.discovery_interval_s) == ("a.*", 10.0)
    options = {**SERVERS, "assign": '{"t": [1, 0]}'}
    assert KafkaSource.from_spark_options(options).partitions == {"t": (0, 1)}


def test_names_of_options_ignore_case_and_others_have_no_effect() -> None:
    source = _source(
        INCLUDEHEADERS=True, failondataloss="false", maxOffsetsPerTrigger=100, minPartitions=8
    )
    assert source.metadata == ("headers",) and not source.fail_on_data_loss
    assert source.max_records_per_checkpoint == 100 and source.min_partitions == 8


def test_properties_of_java_become_those_of_librdkafka() -> None:
    login = "org.apache.kafka.common.security.scram.ScramLoginModule"
    source = _source(
        **{
            "kafka.group.id": "g",
            "kafka.security.protocol": "SASL_SSL",
            "kafka.sasl.jaas.config": f"{login} required\n username=\"me\" password='s e';",
            "kafka.fetch.max.wait.ms": 5,
            "kafka.max.poll.records": 5,
            "kafka.ssl.truststore.location": "/etc/ca.pem",
        }
    )
    assert source.group_id == "g"
    assert source.connection.properties == {
        "security.protocol": "SASL_SSL",
        "sasl.username": "me",
        "sasl.password": "s e",
        "fetch.wait.max.ms": "5",
        "ssl.ca.location": "/etc/ca.pem",
    }
    assert "s e" not in repr(source) and source.connection.shown["sasl.password"] != "s e"


def test_logins_with_tokens_become_properties_of_librdkafka() -> None:
    package = "org.apache.kafka.common.security.oauthbearer"
    source = _source(
        **{
            "kafka.sasl.mechanism": "OAUTHBEARER",
            "kafka.sasl.login.callback.handler.class": f"{package}.OAuthBearerLoginCallbackHandler",
            "kafka.sasl.oauthbearer.token.endpoint.url": "https://login/token",
            "kafka.sasl.jaas.config": f"{package}.OAuthBearerLoginModule required"
            ' clientId="me" clientSecret="s e c r e t" scope="kafka";',
        }
    )
    assert source.connection.properties == {
        "sasl.mechanism": "OAUTHBEARER",
        "sasl.oauthbearer.token.endpoint.url": "https://login/token",
        "sasl.oauthbearer.method": "oidc",
        "sasl.oauthbearer.client.id": "me",
        "sasl.oauthbearer.client.secret": "s e c r e t",
        "sasl.oauthbearer.scope": "kafka",
    }
    assert "s e c r e t" not in f"{source!r} {source.connection.shown}"
    login = f"{package}.OAuthBearerLoginModule required unsecuredLoginStringClaim_sub=alice;"
    unsigned = _source(**{"kafka.sasl.jaas.config": login})
    assert unsigned.connection.properties == {
        "enable.sasl.oauthbearer.unsecure.jwt": "true",
        "sasl.oauthbearer.config": "principal=alice",
    }


@pytest.mark.parametrize(
    ("bounded", "options", "message"),
    [
        (False, {"startingOffset": "latest"}, "'startingOffset'; did you mean startingOffsets?"),
        (False, {"endingOffsets": "latest"}, "use spark.read, or trigger(availableNow=True)"),
        (True, {"startingOffsets": "latest"}, "a bounded read cannot start at the latest"),
        (True, {"startingOffsets": '{"t":{"0":-1}}'}, "a bounded read cannot start at the latest"),
        (True, {"endingOffsets": '{"t":{"0":-2}}'}, "a bounded read cannot end at the earliest"),
        (False, {"startingOffsets": "{"}, "which is not JSON"),
        (False, {"startingOffsets": '{"t":[1]}'}, 'use JSON such as {"topic": {"0": 23'),
        (False, {"assign": '{"t":[1]}'}, "exactly one of assign, subscribe, subscribePattern"),
        (False, {"failOnDataLoss": "no"}, "failOnDataLoss is 'no'; allowed: true, false"),
        (False, {"maxOffsetsPerTrigger": 0}, "maxOffsetsPerTrigger is '0'; use an integer from 1"),
        (False, {"kafka.auto.offset.reset": "latest"}, "'auto.offset.reset' is set by the source"),
        (False, {"kafka.ssl.truststore.location": "/a.jks"}, "export the certificates as PEM"),
        (False, {"kafka.sasl.jaas.config": "x"}, "sasl.jaas.config has neither username"),
    ],
)
def test_wrong_options_are_refused(bounded: bool, options: Any, message: str) -> None:
    with pytest.raises(InvalidProgram) as raised:
        _source(bounded, **options)
    assert message in str(raised.value)


def test_brokers_are_required() -> None:
    with pytest.raises(InvalidProgram, match=r"kafka\.bootstrap\.servers is required"):
        KafkaSource.from_spark_options({"subscribe": "t"})
