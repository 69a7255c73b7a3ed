"""Changes of tables, as Debezium and Canal publish them, become rows with row_kind."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest

from firesteel.connectors.kafka.formats import (
    Avro,
    Canal,
    Confluent,
    Debezium,
    Json,
    SchemaRegistry,
)
from firesteel.errors import FiresteelError
from firesteel.operator import RuntimeContext, StreamOperator
from firesteel.testing import OperatorHarness
from taskexecutor.executor.columnar.jvm.engine import SparkEngine
from taskexecutor.executor.connectors.kafka.decoders import decoded_schema
from tests.kafka_formats import decoded, encoded
from tests.schema_registry import SchemaRegistryServer

A, B = {"id": 1, "name": "a"}, {"id": 1, "name": "b"}


@pytest.fixture(scope="module")
def context(engine: SparkEngine) -> RuntimeContext:
    harness = OperatorHarness(StreamOperator(), spark=engine.session)
    harness.open()
    return harness.operator.context


def debezium(op: str | None, before: Any, after: Any, *, with_schema: bool = False) -> bytes:
    envelope = {"before": before, "after": after, "op": op, "source": {"db": "shop"}, "ts_ms": 1}
    found = {"schema": {"type": "struct"}, "payload": envelope} if with_schema else envelope
    return json.dumps(found).encode()


@pytest.mark.parametrize("with_schema", [False, True])
def test_changes_of_debezium_become_rows(context: RuntimeContext, with_schema: bool) -> None:
    values = [
        debezium("r", None, A, with_schema=with_schema),
        debezium("u", A, B, with_schema=with_schema),
        None,
        debezium("d", B, None, with_schema=with_schema),
        debezium("c", None, A, with_schema=with_schema),
    ]
    found = decoded(context, Debezium(Json("id INT, name STRING")), values, metadata=["offset"])
    assert found.bad is None
    assert found.rows.to_pylist() == [
        {**A, "row_kind": "insert", "offset": 100},
        {**A, "row_kind": "delete", "offset": 101},
        {**B, "row_kind": "insert", "offset": 101},
        {**B, "row_kind": "delete", "offset": 103},
        {**A, "row_kind": "insert", "offset": 104},
    ]
    assert found.records is not None and found.records.to_pylist() == [0, 1, 1, 3, 4]


def test_changes_that_no_rows_express_are_unreadable(context: RuntimeContext) -> None:
    values: list[bytes | None] = [
        debezium("u", None, B),
        debezium("t", None, None),
        debezium("m", None, None),
        debezium("x", None, B),
        debezium("c", None, None),
        debezium("c", None, {"id": "x"}),
        b'{"id": 1}',
        debezium("c", None, A),
    ]
    found = decoded(context, Debezium(Json("id INT, name STRING")), values)
    assert found.rows.to_pylist() == [{**A, "row_kind": "insert"}]
    assert found.bad is not None and found.bad.indices.to_pylist() == [0, 1, 3, 4, 5, 6]
    heads = [text.partition(": {")[0] for text in found.bad.errors]
    assert "REPLICA IDENTITY" in heads[0]
    assert "truncated" in heads[1]
    assert heads[2] == "op is 'x'; known: c, r, u, d"
    assert heads[3] == "op c has no row after the change"
    assert heads[5] == "the record has no op, so Debezium did not write it"


def test_debezium_may_write_avro(context: RuntimeContext, engine: SparkEngine) -> None:
    value = {
        "type": "record",
        "name": "Value",
        "fields": [{"name": "id", "type": "int"}, {"name": "name", "type": ["null", "string"]}],
    }
    envelope = {
        "type": "record",
        "name": "Envelope",
        "fields": [
            {"name": "before", "type": ["null", value]},
            {"name": "after", "type": ["null", "Value"]},
            {"name": "op", "type": "string"},
        ],
    }
    row = pa.struct([pa.field("id", pa.int32()), pa.field("name", pa.string())])
    schema = pa.schema([("before", row), ("after", row), ("op", pa.string())])
    rows = pa.RecordBatch.from_pylist(
        [{"before": None, "after": A, "op": "c"}, {"before": A, "after": B, "op": "u"}], schema
    )
    with SchemaRegistryServer() as server:
        format = Confluent(SchemaRegistry(server.url), Avro(json.dumps(envelope)))
        values = encoded(context, format, rows, topic="shop.items")
        found = decoded(context, Debezium(format), values)
    assert found.rows.to_pylist() == [
        {**A, "row_kind": "insert"},
        {**A, "row_kind": "delete"},
        {**B, "row_kind": "insert"},
    ]
    assert found.rows.schema == decoded_schema(Debezium(format), engine)


def canal(kind: str, data: Any, old: Any = None, **more: Any) -> bytes:
    found = {"data": data, "old": old, "type": kind, "database": "shop", "table": "items"}
    return json.dumps({"isDdl": False, "ts": 1, **found, **more}).encode()


def test_changes_of_canal_become_rows(context: RuntimeContext) -> None:
    texts = {"id": "1", "name": "a", "price": "1.50", "at": "2026-01-01 00:00:00"}
    values = [
        canal("CREATE", None, isDdl=True),
        canal("INSERT", [texts, {**texts, "id": "2"}]),
        canal("UPDATE", [{**texts, "name": "b"}], [{"name": "a"}]),
        canal("UPDATE", [{**texts, "name": "c"}], [{"name": None}]),
        canal("DELETE", [texts]),
        canal("INSERT", [texts], table="others"),
        canal("INSERT", [{**texts, "id": "x"}]),
        canal("TRUNCATE", None, isDdl=True),
        canal("UPSERT", [texts]),
    ]
    format = Canal("id INT, name STRING, price DECIMAL(8,2), at TIMESTAMP_NTZ", table="shop.items")
    found = decoded(context, format, values)
    rows = [(row["id"], row["name"], row["row_kind"]) for row in found.rows.to_pylist()]
    assert rows == [
        (1, "a", "insert"),
        (2, "a", "insert"),
        (1, "a", "delete"),
        (1, "b", "insert"),
        (1, None, "delete"),
        (1, "c", "insert"),
        (1, "a", "delete"),
    ]
    assert str(found.rows.to_pylist()[0]["price"]) == "1.50"
    assert found.records is not None and found.records.to_pylist() == [1, 1, 2, 2, 3, 3, 4]
    assert found.bad is not None and found.bad.indices.to_pylist() == [6, 7, 8]
    assert found.bad.errors[0].startswith("column 'id': x is not int: ")


def test_reserved_and_missing_columns_are_refused(engine: SparkEngine) -> None:
    with pytest.raises(FiresteelError, match="column 'row_kind', which is reserved"):
        decoded_schema(Debezium(Json("row_kind STRING")), engine)
    schema = '{"type": "record", "name": "V", "fields": [{"name": "id", "type": "int"}]}'
    registry = SchemaRegistry("http://127.0.0.1:1")
    with pytest.raises(FiresteelError, match="has no field 'before'"):
        decoded_schema(Debezium(Confluent(registry, Avro(schema))), engine)
