"""Protobuf messages in Kafka's records: types, nulls, evolution and errors."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from grpc_tools import protoc

from firesteel.connectors.kafka.formats import Confluent, Protobuf, SchemaRegistry
from firesteel.errors import FiresteelError, InvalidProgram
from firesteel.operator import RuntimeContext, StreamOperator
from firesteel.testing import OperatorHarness
from tests.kafka_formats import decoded, encoded
from tests.schema_registry import SchemaRegistryServer

ORDER = """
syntax = "proto3";
package shop;
import "google/protobuf/timestamp.proto";
enum Kind { UNKNOWN = 0; ONLINE = 1; }
message Item { string name = 1; optional int32 count = 2; }
message Order {
  int64 id = 1;
  Kind kind = 2;
  google.protobuf.Timestamp time = 3;
  repeated Item items = 4;
  map<string, double> prices = 5;
  uint32 flags = 6;
  bytes code = 7;
  Item first = 8;
}
message Old { int64 id = 1; string removed = 99; }
message Tree { Tree left = 1; }
"""


@pytest.fixture(scope="module")
def descriptors(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("protobuf")
    (folder / "order.proto").write_text(ORDER)
    library = Path(protoc.__file__).parent / "_proto"
    found = folder / "order.desc"
    words = ["protoc", f"-I{folder}", f"-I{library}", "--include_imports"]
    assert protoc.main([*words, f"--descriptor_set_out={found}", "order.proto"]) == 0
    return found


@pytest.fixture
def context() -> Iterator[RuntimeContext]:
    harness = OperatorHarness(StreamOperator())
    harness.open()
    yield harness.operator.context
    harness.close()


ITEM = pa.struct([("name", pa.string()), ("count", pa.int32())])
SCHEMA = pa.schema(
    [
        ("id", pa.int64()),
        ("kind", pa.string()),
        ("time", pa.timestamp("us", "UTC")),
        ("items", pa.list_(pa.field("element", ITEM, nullable=False))),
        ("prices", pa.map_(pa.string(), pa.float64())),
        ("flags", pa.int32()),
        ("code", pa.binary()),
        ("first", ITEM),
    ]
)
ROWS: list[dict[str, Any]] = [
    {
        "id": 5,
        "kind": "ONLINE",
        "time": dt.datetime(2026, 1, 1, 0, 0, 0, 123_456, dt.UTC),
        "items": [{"name": "a", "count": 0}, {"name": None, "count": None}],
        "prices": [("x", 1.5)],
        "flags": -1,
        "code": b"\xff",
        "first": {"name": "b", "count": 2},
    },
    {
        "id": None,
        "kind": None,
        "time": None,
        "items": [],
        "prices": [],
        "flags": None,
        "code": None,
        "first": None,
    },
]


def test_rows_survive_protobuf(context: RuntimeContext, descriptors: Path) -> None:
    batch = pa.RecordBatch.from_pylist(ROWS, schema=SCHEMA)
    format = Protobuf("shop.Order", descriptors)
    values = encoded(context, format, batch)
    assert values[1] == b""
    found = decoded(context, format, values)
    assert found.rows.schema == SCHEMA
    assert found.rows.to_pylist() == ROWS


def test_other_versions_and_other_bytes(context: RuntimeContext, descriptors: Path) -> None:
    rows = pa.RecordBatch.from_pydict({"id": [3], "removed": ["x"]})
    old = encoded(context, Protobuf("shop.Old", descriptors), rows)[0]
    found = decoded(context, Protobuf("shop.Order", descriptors), [old, None, b"\xff\xff"])
    assert [row["id"] for row in found.rows.to_pylist()] == [3]
    assert found.bad is not None and found.bad.indices.to_pylist() == [2]
    assert found.bad.errors[0].startswith("not a message shop.Order")


def test_messages_may_be_framed(context: RuntimeContext, descriptors: Path) -> None:
    rows = pa.RecordBatch.from_pydict({"id": [3]})
    message = encoded(context, Protobuf("shop.Old", descriptors), rows)[0]
    with SchemaRegistryServer() as server:
        id = server.add("t-value", {"schema": '"x"', "schemaType": "PROTOBUF"})
        head = bytes(1) + id.to_bytes(4)
        format = Confluent(SchemaRegistry(server.url), Protobuf("shop.Old", descriptors))
        values = [head + b"\0" + message, head + b"\2\4" + message, bytes(5) + message, head, b"x"]
        found = decoded(context, format, values)
    assert [row["id"] for row in found.rows.to_pylist()] == [3, 3]
    assert found.bad is not None and found.bad.indices.to_pylist() == [2, 3, 4]
    assert "has no schema 0" in found.bad.errors[0]


def test_what_cannot_be_read_or_written_is_named(
    context: RuntimeContext, descriptors: Path, tmp_path: Path
) -> None:
    def fails(format: Protobuf, rows: dict[str, Any], message: str) -> None:
        with pytest.raises(FiresteelError, match=message):
            encoded(context, format, pa.RecordBatch.from_pydict(rows))

    fails(
        Protobuf("shop.Ordr", descriptors), {"id": [1]}, "it has: google.protobuf.Timestamp, shop"
    )
    fails(Protobuf("shop.Tree", descriptors), {"left": [1]}, "contains itself")
    fails(Protobuf("shop.Order", b"\xff"), {"id": [1]}, "is not a descriptor set")
    fails(Protobuf("shop.Old", descriptors), {"x": [1]}, "has no field 'x'; it has: id, removed")
    fails(
        Protobuf("shop.Order", descriptors),
        {"id": ["x"]},
        "'x' does not fit the field shop.Order.id",
    )
    fails(Protobuf("shop.Order", descriptors), {"kind": ["NO"]}, "known: UNKNOWN, ONLINE")
    with pytest.raises(InvalidProgram, match="descriptors cannot be read"):
        Protobuf("shop.Order", tmp_path / "absent.desc")
