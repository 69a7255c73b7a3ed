"""The JSON Schema of rows as Spark's `to_json` writes them (pure)."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa

from firesteel.connectors.kafka.formats import Json

_DRAFT = "http://json-schema.org/draft-07/schema#"


def json_schema(schema: pa.Schema, format: Json) -> str:
    """Returns the schema's text. Every field may be missing or null. Other fields are not allowed,
    so that a later version with more fields is compatible.
    """
    options = {name.lower() for name in format.options}
    found = _object(list(schema), formatted=not options & {"timestampformat", "dateformat"})
    return json.dumps({"$schema": _DRAFT, **found})


def title(text: str) -> str:
    """Returns the title of a schema; empty if it has none."""
    found = json.loads(text)
    return str(found.get("title", "")) if isinstance(found, dict) else ""


def _object(fields: list[pa.Field], *, formatted: bool) -> dict[str, Any]:
    properties = {field.name: _nullable(field.type, formatted=formatted) for field in fields}
    return {"type": "object", "properties": properties, "additionalProperties": False}


def _nullable(kind: pa.DataType, *, formatted: bool) -> dict[str, Any]:
    return {"oneOf": [{"type": "null"}, _type(kind, formatted=formatted)]}


def _type(kind: pa.DataType, *, formatted: bool) -> dict[str, Any]:
    types = pa.types
    if types.is_boolean(kind):
        return {"type": "boolean"}
    if types.is_integer(kind):
        return {"type": "integer"}
    if types.is_floating(kind) or types.is_decimal(kind):
        return {"type": "number"}
    if types.is_struct(kind):
        return _object([kind.field(i) for i in range(kind.num_fields)], formatted=formatted)
    if types.is_map(kind):
        values = _nullable(kind.item_type, formatted=formatted)
        return {"type": "object", "additionalProperties": values}
    if types.is_list(kind) or types.is_large_list(kind):
        return {"type": "array", "items": _nullable(kind.value_type, formatted=formatted)}
    if types.is_binary(kind) or types.is_large_binary(kind):
        return {"type": "string", "contentEncoding": "base64"}
    if formatted and types.is_date(kind):
        return {"type": "string", "format": "date"}
    if formatted and types.is_timestamp(kind) and kind.tz is not None:
        return {"type": "string", "format": "date-time"}
    return {"type": "string"}
