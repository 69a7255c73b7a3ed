"""Converts Arrow's types and values to PostgreSQL's."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pyarrow as pa

from firesteel.errors import FiresteelError
from taskexecutor.executor.connectors.json_values import json_form, or_none


def postgres_type(field: pa.Field) -> str:
    """Returns the PostgreSQL type that holds all values of the column. Raises FiresteelError if
    there is none.
    """
    kind = field.type
    if pa.types.is_decimal(kind):
        return f"numeric({kind.precision},{kind.scale})"
    if pa.types.is_nested(kind):
        return "jsonb"
    for check, name in _TYPES:
        if check(kind):
            return name
    raise FiresteelError(
        f"PostgresSink: column {field.name!r} is {kind}, for which PostgreSQL has no type; "
        "cast or drop it"
    )


_TYPES: tuple[tuple[Any, str], ...] = (
    (pa.types.is_boolean, "boolean"),
    (lambda kind: pa.types.is_int8(kind) or pa.types.is_int16(kind), "smallint"),
    (pa.types.is_int32, "integer"),
    (pa.types.is_int64, "bigint"),
    (pa.types.is_float32, "real"),
    (pa.types.is_float64, "double precision"),
    (lambda kind: pa.types.is_string(kind) or pa.types.is_large_string(kind), "text"),
    (lambda kind: pa.types.is_binary(kind) or pa.types.is_large_binary(kind), "bytea"),
    (pa.types.is_date, "date"),
    (lambda kind: pa.types.is_timestamp(kind) and kind.tz is not None, "timestamp with time zone"),
    (pa.types.is_timestamp, "timestamp without time zone"),
)
_NUMBERS = ("smallint", "integer", "bigint", "numeric", "real", "double precision")
_TEXTS = ("text", "character", "varchar", "citext", "uuid", "json", "inet", "USER-DEFINED")


def fits(field: pa.Field, declared: str) -> bool:
    """Returns whether PostgreSQL can read the column's values, written as texts, as type
    `declared`, judging by the types.
    """
    ours = postgres_type(field).split("(", 1)[0]
    theirs = declared.split("(", 1)[0]
    if ours in _NUMBERS:
        # Values that are too large are found at run time.
        return (
            theirs in _NUMBERS
            if ours in ("numeric", "real", "double precision")
            else theirs in (*_NUMBERS, "oid")
        )
    if ours.startswith("timestamp"):
        return theirs.startswith("timestamp")
    if ours == "jsonb":
        return theirs in ("json", "jsonb", "text")
    if ours == "text":
        return theirs not in (*_NUMBERS, "boolean", "bytea", "date") and not theirs.startswith(
            "timestamp"
        )
    return ours == theirs or (ours == "date" and theirs.startswith("timestamp"))


def as_texts(table: pa.Table) -> pa.Table:
    """Returns the table in which columns that Arrow's CSV writer writes in a form other than
    PostgreSQL's are strings.
    """
    for index, field in enumerate(table.schema):
        convert = (
            _json_text(field.type)
            if pa.types.is_nested(field.type)
            else _hex_text
            if _is_binary(field.type)
            else None
        )
        if convert is not None:
            texts = [
                None if value is None else convert(value)
                for value in table.column(index).to_pylist()
            ]
            table = table.set_column(index, field.name, pa.array(texts, pa.string()))
    return table


def _is_binary(kind: pa.DataType) -> bool:
    return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind))


def _hex_text(value: bytes) -> str:
    return "\\x" + value.hex()


def _json_text(kind: pa.DataType) -> Callable[[Any], str]:
    form = or_none(json_form(kind))
    return lambda value: json.dumps(form(value))
