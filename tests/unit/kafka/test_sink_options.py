"""The options of a KafkaSink."""

from __future__ import annotations

import pickle
import warnings
from typing import Any

import pytest

from firesteel import Environment
from firesteel.connectors import KafkaSink, SequenceSource
from firesteel.connectors.kafka.formats import Json, Raw
from firesteel.errors import InvalidProgram

AT = "localhost:9092"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"delivery": "at-most-once"},
            "delivery is 'at-most-once'; allowed: at-least-once, exactly",
        ),
        ({"delivery": "exactly-once"}, "needs transactional_id_prefix"),
        ({"transactional_id_prefix": "p"}, "no effect with delivery='at-least-once'"),
        ({"transaction_timeout": "1 min"}, "no effect with delivery='at-least-once'"),
        ({"topic": "no spaces"}, "topic is 'no spaces'"),
        ({"key": "k"}, "need a value format"),
        ({"value": "json"}, r"value is .json.; pass a format"),
        ({"value": Raw(), "key": "k", "key_format": Json}, "key_format is Json; pass a format"),
        ({"value": Raw(), "key_format": Raw()}, "key_format needs key"),
        ({"value": Raw(), "upsert": True}, "upsert needs key"),
        ({"value": Raw(), "partition_by": "key_group"}, "needs key"),
        ({"properties": {"transactional.id": "t"}}, "pass transactional_id_prefix instead"),
        ({"properties": {"transaction.timeout.ms": 1}}, "pass transaction_timeout instead"),
        ({"properties": {"bootstrap.servers": AT}}, "pass bootstrap_servers instead"),
        ({"bootstrap_servers": "localhost"}, "host:port"),
        ({"on_aborted": "skip"}, "on_aborted is 'skip'; allowed: fail, ignore"),
    ],
)
def test_wrong_options_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidProgram, match=message):
        KafkaSink(**{"bootstrap_servers": AT, "topic": "t", **options})


def test_secrets_are_not_shown() -> None:
    sink = KafkaSink("t", bootstrap_servers=AT, properties={"sasl.password": "hush"})
    assert "hush" not in repr(sink)
    assert pickle.loads(pickle.dumps(sink)).properties["sasl.password"] == "hush"


def test_options_of_spark_become_a_sink() -> None:
    sink = KafkaSink.from_spark_options(
        {
            "kafka.bootstrap.servers": "a:1,b:2",
            "topic": "t",
            "includeHeaders": "true",
            "kafka.compression.type": "lz4",
            "checkpointLocation": "/c",
        }
    )
    assert sink == KafkaSink(
        "t", bootstrap_servers="a:1,b:2", properties={"compression.type": "lz4"}
    )


def test_properties_of_java_get_the_names_of_librdkafka() -> None:
    login = "org.apache.kafka.common.security.plain.PlainLoginModule"
    sink = KafkaSink.from_spark_options(
        {
            "kafka.bootstrap.servers": AT,
            "kafka.sasl.jaas.config": f'{login} required username="ada" password="hush";',
            "kafka.ssl.truststore.location": "/ca.pem",
        }
    )
    assert sink.properties == {
        "sasl.username": "ada",
        "sasl.password": "hush",
        "ssl.ca.location": "/ca.pem",
    }


def test_an_unknown_option_of_spark_is_refused() -> None:
    with pytest.raises(InvalidProgram, match="no option 'startingOffsets'"):
        KafkaSink.from_spark_options({"kafka.bootstrap.servers": AT, "startingOffsets": "latest"})


def test_spark_needs_the_brokers() -> None:
    with pytest.raises(InvalidProgram, match=r"kafka\.bootstrap\.servers is missing"):
        KafkaSink.from_spark_options({"topic": "t"})


@pytest.mark.parametrize(
    ("end", "delivery", "interval", "warned"),
    [
        (None, "exactly-once", "0 s", True),
        (None, "exactly-once", "1 s", False),
        (None, "at-least-once", "0 s", False),
        (10, "exactly-once", "0 s", False),
    ],
)
def test_a_sink_that_never_commits_is_a_warning(
    end: int | None, delivery: str, interval: str, warned: bool
) -> None:
    configuration = {
        "execution.checkpointing.interval": interval,
        "execution.checkpointing.dir": "/checkpoints",
    }
    env = Environment(configuration=configuration)
    once = {"delivery": delivery, "transactional_id_prefix": "p"}
    options: dict[str, Any] = once if delivery == "exactly-once" else {}
    sink = KafkaSink("t", bootstrap_servers="localhost:9092", value=Json(), **options)
    env.from_source(SequenceSource(0, end, "n"), name="Numbers").sink_to(sink)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        env.job_graph()
    found = [str(warning.message) for warning in caught]
    assert any("Numbers' (" in text and "never ends" in text for text in found) is warned, found
