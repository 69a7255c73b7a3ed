"""JSON and Protobuf with the ids of their schemas in a registry: what is registered, evolution,
refusals, and records of other schemas.
"""

from __future__ import annotations

import base64
import datetime as dt
import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from grpc_tools import protoc

from firesteel.connectors.kafka.formats import Avro, Confluent, Json, Protobuf, SchemaRegistry
from firesteel.errors import FiresteelError, InvalidProgram
from firesteel.operator import RuntimeContext, StreamOperator
from firesteel.testing import OperatorHarness
from taskexecutor.executor.columnar.jvm.engine import SparkEngine
from tests.kafka_formats import decoded, encoded
from tests.schema_registry import SchemaRegistryServer

ONE = pa.RecordBatch.from_pydict({"id": [1]})
TWO = pa.RecordBatch.from_pydict({"id": [2], "name": ["b"]})


@pytest.fixture(scope="module")
def context(engine: SparkEngine) -> RuntimeContext:
    harness = OperatorHarness(StreamOperator(), spark=engine.session)
    harness.open()
    return harness.operator.context


def compiled(folder: Path, **files: str) -> bytes:
    """Returns the descriptor set of Protobuf files, by their names without ending."""
    for name, text in files.items():
        (folder / f"{name}.proto").write_text(f'syntax = "proto3";\npackage shop;\n{text}')
    library = Path(protoc.__file__).parent / "_proto"
    found = folder / "all.desc"
    words = ["protoc", f"-I{folder}", f"-I{library}", "--include_imports"]
    names = [f"{name}.proto" for name in files]
    assert protoc.main([*words, f"--descriptor_set_out={found}", *names]) == 0
    return found.read_bytes()


# -- JSON


def test_the_schema_of_json_describes_what_is_written(context: RuntimeContext) -> None:
    time = dt.datetime(2026, 1, 2, 3, 4, 5, 678_000, dt.UTC)
    row: dict[str, Any] = {
        "id": 1,
        "price": Decimal("1.50"),
        "share": 0.5,
        "new": True,
        "at": time,
        "day": dt.date(2026, 1, 2),
        "code": b"\xff",
        "tags": ["a", None],
        "part": {"x": 1},
        "counts": [("a", 1)],
        "none": None,
    }
    columns = pa.schema(
        [
            ("id", pa.int64()),
            ("price", pa.decimal128(10, 2)),
            ("share", pa.float64()),
            ("new", pa.bool_()),
            ("at", pa.timestamp("us", "UTC")),
            ("day", pa.date32()),
            ("code", pa.binary()),
            ("tags", pa.list_(pa.string())),
            ("part", pa.struct([("x", pa.int32())])),
            ("counts", pa.map_(pa.string(), pa.int32())),
            ("none", pa.string()),
        ]
    )
    batch = pa.RecordBatch.from_pylist([row], schema=columns)
    with SchemaRegistryServer() as server:
        format = Confluent(SchemaRegistry(server.url), Json())
        (value,) = encoded(context, format, batch, topic="t")
        assert server.subjects == {"t-value": [1]}
        registered = server.schemas[0]
    assert registered["schemaType"] == "JSON" and value[:5] == b"\0\0\0\0\1"
    schema = json.loads(registered["schema"])
    assert schema["type"] == "object" and schema["additionalProperties"] is False
    written = json.loads(value[5:])
    assert written.keys() == row.keys() - {"none"}
    of_python = {int: "integer", float: "number", bool: "boolean", str: "string"}
    of_python |= {list: "array", dict: "object"}
    for name, found in written.items():
        null, described = schema["properties"][name]["oneOf"]
        expected = "number" if name == "price" else of_python[type(found)]
        assert null == {"type": "null"} and described["type"] == expected, name
    described = {name: each["oneOf"][1] for name, each in schema["properties"].items()}
    assert described["at"]["format"] == "date-time" and described["day"]["format"] == "date"
    assert described["code"]["contentEncoding"] == "base64"
    assert described["tags"]["items"] == {"oneOf": [{"type": "null"}, {"type": "string"}]}
    assert described["part"]["properties"] == {
        "x": {"oneOf": [{"type": "null"}, {"type": "integer"}]}
    }


def test_json_of_earlier_and_later_schemas_is_read(context: RuntimeContext) -> None:
    with SchemaRegistryServer() as server:
        format = Confluent(SchemaRegistry(server.url), Json())
        values = [
            value for rows in (ONE, TWO) for value in encoded(context, format, rows, topic="t")
        ]
        assert server.subjects == {"t-value": [1, 2]}
        server.requests.clear()
        reader = Confluent(SchemaRegistry(server.url), Json("id BIGINT, name STRING"))
        found = decoded(context, reader, [*values, *values])
        assert found.rows.to_pylist() == [{"id": 1, "name": None}, {"id": 2, "name": "b"}] * 2
        earlier = Confluent(SchemaRegistry(server.url), Json("id BIGINT"))
        assert decoded(context, earlier, values).rows.to_pylist() == [{"id": 1}, {"id": 2}]
        assert sorted(server.requests) == sorted(["/schemas/ids/1", "/schemas/ids/2"] * 2)
        changed = pa.RecordBatch.from_pydict({"id": ["1"], "name": ["b"]})
        with pytest.raises(
            FiresteelError, match="not compatible with earlier .*TYPE_CHANGED: .'id'"
        ):
            encoded(context, format, changed, topic="t")


def test_a_given_schema_of_json_is_registered_under_its_title(context: RuntimeContext) -> None:
    text = json.dumps({"title": "Bid", "type": "object", "properties": {"id": {"type": "integer"}}})
    with SchemaRegistryServer() as server:
        registry = SchemaRegistry(server.url)
        for subject in ("record", "topic_record"):
            format = Confluent(registry, Json(), schema=text, subject_name=subject)  # type: ignore[arg-type]
            encoded(context, format, ONE, topic="t")
        encoded(context, Confluent(registry, Json(), schema=text), ONE, topic="t", key=True)
        assert server.subjects == {"Bid": [1], "t-Bid": [1], "t-key": [1]}
        assert server.schemas == [{"schema": text, "schemaType": "JSON"}]
        with pytest.raises(FiresteelError, match="the schema has no title"):
            encoded(context, Confluent(registry, Json(), subject_name="record"), ONE, topic="t")
        absent = Confluent(registry, Json(), register=False)
        with pytest.raises(FiresteelError, match="is not registered as subject 't-value'"):
            encoded(context, absent, ONE, topic="t")
    with pytest.raises(InvalidProgram, match="schema is not JSON"):
        Confluent(registry, Json(), schema="Bid")
    with pytest.raises(InvalidProgram, match=r"pass the schema to Avro\(schema\)"):
        Confluent(registry, Avro(), schema="{}")


# -- Protobuf


def test_protobuf_of_earlier_and_later_schemas_is_read(
    context: RuntimeContext, tmp_path: Path
) -> None:
    first = compiled(tmp_path, order="message Order { int64 id = 1; }")
    second = compiled(tmp_path, order="message Order { int64 id = 1; string name = 2; }")
    other = compiled(tmp_path, order="message Order { string id = 1; }")
    with SchemaRegistryServer() as server:
        registry = SchemaRegistry(server.url)

        def format(descriptors: bytes) -> Confluent:
            return Confluent(registry, Protobuf("shop.Order", descriptors))

        (one,) = encoded(context, format(first), ONE, topic="t")
        (two,) = encoded(context, format(second), TWO, topic="t")
        assert one == b"\0\0\0\0\1" + b"\0" + b"\x08\1"
        assert two[:6] == b"\0\0\0\0\2" + b"\0"
        assert server.subjects == {"t-value": [1, 2]}
        (file,) = {each["schemaType"] for each in server.schemas}
        assert file == "PROTOBUF"
        described = FileDescriptorProto.FromString(base64.b64decode(server.schemas[1]["schema"]))
        assert [field.name for field in described.message_type[0].field] == ["id", "name"]
        server.requests.clear()
        found = decoded(context, format(second), [one, two, one, two])
        assert found.rows.to_pylist() == [{"id": 1, "name": None}, {"id": 2, "name": "b"}] * 2
        assert decoded(context, format(first), [one, two]).rows.to_pylist() == [
            {"id": 1},
            {"id": 2},
        ]
        assert sorted(server.requests) == sorted(["/schemas/ids/1", "/schemas/ids/2"] * 2)
        rows = pa.RecordBatch.from_pydict({"id": ["x"]})
        with pytest.raises(FiresteelError, match="not compatible .*FIELD_SCALAR_KIND_CHANGED"):
            encoded(context, format(other), rows, topic="t")


def test_a_message_has_a_place_in_its_file(context: RuntimeContext, tmp_path: Path) -> None:
    descriptors = compiled(
        tmp_path,
        order="""
        message First { int64 id = 1; }
        message Outer { message A {} message Inner { int64 id = 1; } }
        """,
    )
    with SchemaRegistryServer() as server:
        registry = SchemaRegistry(server.url)
        for message, place in (("First", b"\0"), ("Outer.Inner", b"\4\2\2")):
            format = Confluent(
                registry, Protobuf(f"shop.{message}", descriptors), subject_name="record"
            )
            (value,) = encoded(context, format, ONE, topic="t")
            assert value == b"\0\0\0\0\1" + place + b"\x08\1"
            assert decoded(context, format, [value]).rows.to_pylist() == [{"id": 1}]
        assert server.subjects == {"shop.First": [1], "shop.Outer.Inner": [1]}


def test_imports_are_registered_as_references(context: RuntimeContext, tmp_path: Path) -> None:
    descriptors = compiled(
        tmp_path,
        base="message Base { int64 id = 1; }",
        item='import "base.proto"; message Item { Base base = 1; }',
        order="""
        import "item.proto";
        import "google/protobuf/timestamp.proto";
        message Order { Item item = 1; google.protobuf.Timestamp at = 2; }
        """,
    )
    rows = pa.RecordBatch.from_pylist([{"item": {"base": {"id": 7}}}])
    with SchemaRegistryServer() as server:
        registry = SchemaRegistry(server.url)
        format = Confluent(registry, Protobuf("shop.Order", descriptors))
        (value,) = encoded(context, format, rows, topic="t")
        assert server.subjects == {"base.proto": [1], "item.proto": [2], "t-value": [3]}
        assert [each.get("references") for each in server.schemas] == [
            None,
            [{"name": "base.proto", "subject": "base.proto", "version": 1}],
            [{"name": "item.proto", "subject": "item.proto", "version": 1}],
        ]
        known = Confluent(registry, Protobuf("shop.Order", descriptors), register=False)
        assert encoded(context, known, rows, topic="t") == [value]
        assert decoded(context, known, [value]).rows.to_pylist() == [
            {"item": {"base": {"id": 7}}, "at": None}
        ]
        unknown = Confluent(registry, Protobuf("shop.Item", descriptors), register=False)
        with pytest.raises(FiresteelError, match="is not registered as subject 'u-value'"):
            encoded(context, unknown, pa.RecordBatch.from_pylist([{"base": {"id": 7}}]), topic="u")


# -- all


def test_records_of_another_kind_of_schema_are_unreadable(
    context: RuntimeContext, tmp_path: Path
) -> None:
    schema = '{"type": "record", "name": "Bid", "fields": [{"name": "id", "type": "long"}]}'
    protobuf = Protobuf("shop.Bid", compiled(tmp_path, bid="message Bid { int64 id = 1; }"))
    with SchemaRegistryServer() as server:
        registry = SchemaRegistry(server.url)
        written = [
            (kind, Confluent(registry, format))
            for kind, format in (("AVRO", Avro(schema)), ("JSON", Json()), ("PROTOBUF", protobuf))
        ]
        values = [
            encoded(context, format, ONE, topic=f"topic-{kind}")[0] for kind, format in written
        ]
        readers = [("AVRO", Avro(schema)), ("JSON", Json("id BIGINT")), ("PROTOBUF", protobuf)]
        for place, (kind, format) in enumerate(readers):
            found = decoded(context, Confluent(registry, format), [*values])
            assert found.rows.to_pylist() == [{"id": 1}]
            assert found.bad is not None
            others = [at for at in range(3) if at != place]
            assert found.bad.indices.to_pylist() == others
            for at, error in zip(others, found.bad.errors, strict=True):
                other = written[at][0]
                assert error.startswith(
                    f"schema {at + 1} of the schema registry is {other}, not {kind}: "
                )
