"""Avro records of Kafka, and a schema registry: evolution, unknown ids, refusals and waiting."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest

from firesteel.connectors.kafka.formats import Avro, Confluent, Json, SchemaRegistry
from firesteel.errors import FiresteelError, InvalidProgram
from firesteel.operator import RuntimeContext, StreamOperator
from firesteel.testing import OperatorHarness
from taskexecutor.executor.columnar.jvm.engine import SparkEngine
from taskexecutor.executor.connectors.kafka.decoders import decoded_schema, decoder
from taskexecutor.executor.connectors.kafka.registry import RegistryClient
from tests.kafka_formats import decoded, encoded, records
from tests.schema_registry import SchemaRegistryServer

ID, NAME = (
    {"name": "id", "type": "long"},
    {"name": "name", "type": ["null", "string"], "default": None},
)
COUNT = {"name": "count", "type": "int", "default": 7}


def record(*fields: Any) -> str:
    return json.dumps(
        {"type": "record", "name": "Bid", "namespace": "shop", "fields": list(fields)}
    )


@pytest.fixture(scope="module")
def context(engine: SparkEngine) -> RuntimeContext:
    harness = OperatorHarness(StreamOperator(), spark=engine.session)
    harness.open()
    return harness.operator.context


BATCH = pa.RecordBatch.from_pylist(
    [
        {
            "id": 1,
            "name": "é",
            "time": 1_700_000_000_123_456,
            "tags": ["a", None],
            "part": {"x": 1.5},
        },
        {"id": None, "name": None, "time": None, "tags": None, "part": None},
        {"id": -(2**63), "name": "", "time": 0, "tags": [], "part": {"x": None}},
    ],
    schema=pa.schema(
        [
            ("id", pa.int64()),
            ("name", pa.string()),
            ("time", pa.timestamp("us", "UTC")),
            ("tags", pa.list_(pa.field("element", pa.string()))),
            ("part", pa.struct([("x", pa.float64())])),
        ]
    ),
)


def test_rows_of_many_types_survive_avro(context: RuntimeContext, engine: SparkEngine) -> None:
    kinds = engine.code.type("FiresteelAvroBytes")
    types = engine.session._jvm.org.apache.spark.sql.types.DataType  # type: ignore[union-attr]
    from taskexecutor.executor.columnar.schemas import to_spark

    schema = kinds.schema(types.fromJson(to_spark(BATCH.schema).json()), "topLevelRecord")
    values = encoded(context, Avro(), BATCH)
    found = decoded(context, Avro(schema), values)
    assert found.bad is None
    assert found.rows.to_pylist() == BATCH.to_pylist()
    assert decoded_schema(Avro(schema), engine) == found.rows.schema


def test_records_of_an_earlier_schema_get_defaults(context: RuntimeContext) -> None:
    old = pa.RecordBatch.from_pydict({"id": [1], "name": ["a"]})
    written = record(ID, NAME)
    values = encoded(context, Avro(written), old)
    found = decoded(context, Avro(record(COUNT, ID), writer_schema=written), values)
    assert found.rows.to_pylist() == [{"count": 7, "id": 1}]


def test_bytes_that_are_not_avro_are_unreadable(context: RuntimeContext) -> None:
    good = encoded(context, Avro(record(ID)), pa.RecordBatch.from_pydict({"id": [5]}))[0]
    found = decoded(context, Avro(record(ID)), [good, b"", None, good + b"x"])
    assert found.rows.to_pylist() == [{"id": 5}]
    assert found.bad is not None and found.bad.indices.to_pylist() == [1, 3]
    assert "another schema" in found.bad.errors[1]


def test_rows_that_do_not_fit_the_schema_are_refused(context: RuntimeContext) -> None:
    with pytest.raises(FiresteelError, match="the rows do not fit the Avro schema"):
        encoded(
            context,
            Avro(record(ID, COUNT)),
            pa.RecordBatch.from_pydict({"id": ["x"], "count": [1]}),
        )


def test_a_batch_may_have_several_schemas(context: RuntimeContext) -> None:
    with SchemaRegistryServer() as server:
        registry = SchemaRegistry(server.url)
        v1, v2 = Avro(record(ID)), Avro(record(ID, NAME))
        one = encoded(
            context, Confluent(registry, v1), pa.RecordBatch.from_pydict({"id": [1]}), topic="t"
        )
        two = encoded(
            context,
            Confluent(registry, v2),
            pa.RecordBatch.from_pydict({"id": [2], "name": ["b"]}),
            topic="t",
        )
        assert one[0][:5] == b"\0\0\0\0\1" and two[0][:5] == b"\0\0\0\0\2"
        assert server.subjects == {"t-value": [1, 2]}
        server.requests.clear()
        unknown = b"\0\0\0\0\x09" + one[0][5:]
        reader = Confluent(registry, Avro(record(ID, NAME, COUNT)))
        found = decoded(context, reader, [two[0], one[0], unknown, b"\1", *one * 3])
    assert found.rows.to_pylist() == [
        {"id": 2, "name": "b", "count": 7},
        *[{"id": 1, "name": None, "count": 7}] * 4,
    ]
    assert found.bad is not None and found.bad.indices.to_pylist() == [2, 3]
    assert found.bad.errors[0].startswith("the schema registry has no schema 9: ")
    assert found.bad.errors[1].startswith("the record does not start with a zero byte")
    assert sorted(server.requests) == [f"/schemas/ids/{id}" for id in (1, 2, 9)]


def test_json_may_be_framed(context: RuntimeContext) -> None:
    with SchemaRegistryServer() as server:
        id = server.add("t-value", {"schema": "{}", "schemaType": "JSON"})
        head = bytes(1) + id.to_bytes(4)
        values = [head + b'{"id": 4}', bytes(5) + b'{"id": 5}', head + b'{"id": 6}', b"{}", head]
        found = decoded(context, Confluent(SchemaRegistry(server.url), Json("id INT")), values)
    assert found.rows.to_pylist() == [{"id": 4}, {"id": 6}]
    assert found.records is not None and found.records.to_pylist() == [0, 2]
    assert found.bad is not None and found.bad.indices.to_pylist() == [1, 3, 4]


def test_incompatible_schemas_are_refused_in_words(context: RuntimeContext) -> None:
    with SchemaRegistryServer() as server:
        registry = SchemaRegistry(server.url)
        rows = pa.RecordBatch.from_pydict({"id": [1]})
        encoded(context, Confluent(registry, Avro(record(ID))), rows, topic="t")
        needed = {"name": "needed", "type": "int"}
        more = pa.RecordBatch.from_pydict({"id": [1], "needed": pa.array([1], pa.int32())})
        with pytest.raises(FiresteelError, match="not compatible with earlier versions of subject"):
            encoded(context, Confluent(registry, Avro(record(ID, needed))), more, topic="t")
        absent = Confluent(registry, Avro(record(ID, COUNT)), register=False)
        count = pa.RecordBatch.from_pydict({"id": [1], "count": pa.array([1], pa.int32())})
        with pytest.raises(FiresteelError, match="is not registered as subject 't-value'"):
            encoded(context, absent, count, topic="t")
        named = Confluent(registry, Avro(record(ID)), subject_name="topic_record")
        encoded(context, named, rows, topic="t")
        assert server.subjects == {"t-value": [1], "t-shop.Bid": [1]}


def test_a_client_waits_for_the_registry_and_then_fails(context: RuntimeContext) -> None:
    with SchemaRegistryServer() as server:
        server.add("t-value", {"schema": record(ID), "schemaType": "AVRO"})
        server.failures = 3
        client = RegistryClient(SchemaRegistry(server.url, wait="30 s"), {})
        found = client.schema(1)
        assert found is not None and found.text == record(ID)
        assert client.schema(1) is found and len(server.requests) == 4
        url = server.url
    with pytest.raises(FiresteelError, match=f"{url} has not answered /schemas/ids/2 for"):
        RegistryClient(SchemaRegistry(url, wait="200 ms"), {}).schema(2)


def test_credentials_are_sent_and_not_shown(
    context: RuntimeContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REGISTRY_USER", "me:sesame-123")
    with SchemaRegistryServer(user="me:sesame-123") as server:
        server.add("t-value", {"schema": record(ID), "schemaType": "AVRO"})
        value = b"\0\0\0\0\1\x02"
        for text in ("me:sesame-123", "env:REGISTRY_USER"):
            registry = SchemaRegistry(server.url, {"basic.auth.user.info": text})
            assert "sesame" not in repr(registry)
            found = decoded(context, Confluent(registry, Avro(record(ID))), [value])
            assert found.rows.to_pylist() == [{"id": 1}]
        denied = SchemaRegistry(server.url, {"basic.auth.user.info": "me:wrong-secret"})
        reader = decoder(Confluent(denied, Avro(record(ID))))
        reader.open(context)
        with pytest.raises(FiresteelError, match="denies access") as raised:
            reader.decode(records([value]))
        reader.close()
        assert "wrong-secret" not in str(raised.value)


def test_invalid_options_are_named() -> None:
    with pytest.raises(InvalidProgram, match="url is 'registry:8081'"):
        SchemaRegistry("registry:8081")
    with pytest.raises(InvalidProgram, match="did you mean basic.auth.user.info"):
        SchemaRegistry("http://r", {"basic.auth.userinfo": "x"})
    with pytest.raises(InvalidProgram, match="schema is not JSON"):
        Avro("record Bid")
