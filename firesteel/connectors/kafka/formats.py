"""Formats of the records in Kafka's topics: how bytes become rows, and rows become bytes.

Pass them to a source or a sink of Kafka. A format is a description: it holds options and opens
nothing. See docs/reference/kafka-formats.md.
"""

from __future__ import annotations

import difflib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal, get_args
from urllib.parse import urlsplit

from firesteel.connectors.checks import check_choice, duration_s, option_texts
from firesteel.connectors.read_options import OPTIONS
from firesteel.durations import Duration
from firesteel.errors import InvalidProgram

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

# Options of Spark that decide what happens to unreadable records; the source's `on_unreadable`
# decides that.
_OF_UNREADABLE = ("mode", "columnnameofcorruptrecord")
_OF_FILES = ("compression", "header", "inferschema", "multiline", "samplingratio", "enforceschema")


class Format:
    """Base of all formats."""

    @property
    def display_name(self) -> str:
        """The name in errors."""
        return type(self).__name__


def check_format(what: str, value: object) -> None:
    """Raises InvalidProgram, naming `what`, unless the value is a format."""
    if not isinstance(value, Format):
        given = value.__name__ if isinstance(value, type) else repr(value)
        raise InvalidProgram(
            f"{what} is {given}; pass a format, such as Json('id BIGINT'), Csv, Avro, Protobuf,"
            " Confluent, Debezium, Canal or Raw()"
        )


@dataclass(frozen=True, slots=True)
class Raw(Format):
    """Leaves keys and values as they are.

    A source then has Spark's columns: key, value (binary), topic, partition, offset, timestamp,
    timestampType and, if requested, headers. A sink writes a binary or string column.
    """


@dataclass(frozen=True, slots=True, init=False)
class TextFormat(Format):
    """Base of the formats that Spark reads from text."""

    schema: str | StructType | pa.Schema | None = None
    options: Mapping[str, str] = field(default_factory=dict)

    def __init__(
        self, schema: str | StructType | pa.Schema | None = None, **options: object
    ) -> None:
        object.__setattr__(self, "schema", schema)
        object.__setattr__(self, "options", _checked(self.display_name, options))


class Json(TextFormat):
    """One JSON object per record, read like Spark's `from_json` and written like `to_json`:
    `Json("auction BIGINT, price BIGINT, dateTime TIMESTAMP")`.

    `schema` describes the columns that a source reads, as DDL string, StructType or Arrow schema;
    other fields are ignored, and missing ones are null. A sink writes all columns and takes no
    schema. `options` are Spark's, such as `timestampFormat`.

    A record is unreadable if a value does not fit its column, or if it is not one JSON object.
    Raises InvalidProgram for an option that the format does not have.
    """


class Csv(TextFormat):
    """One line of CSV per record, read like Spark's `from_csv` and written like `to_csv`:
    `Csv("origin STRING, delay DOUBLE", sep=";")`.

    `schema` describes the columns that a source reads, in the order of the values. A sink writes
    all columns and takes no schema. `options` are Spark's, such as `sep` and `nullValue`.

    A record is unreadable if a value does not fit its column, or if it has too few or too many
    values. Raises InvalidProgram for an option that the format does not have.
    """


def _checked(name: str, options: Mapping[str, object]) -> dict[str, str]:
    known = [
        option
        for option in OPTIONS[name.lower()]
        if option.lower() not in (*_OF_UNREADABLE, *_OF_FILES)
    ]
    lower = {option.lower(): option for option in known}
    for option in options:
        if option.lower() in _OF_UNREADABLE:
            raise InvalidProgram(
                f"{name} has no option {option!r}: the source's on_unreadable decides what happens "
                "to unreadable records"
            )
        if option.lower() not in lower:
            close = difflib.get_close_matches(option.lower(), lower, n=1)
            hint = f"did you mean {lower[close[0]]}?" if close else "omit it"
            raise InvalidProgram(f"{name} has no option {option!r}; {hint}")
    return option_texts(options)


@dataclass(frozen=True, slots=True)
class Avro(Format):
    """One Avro record per record of Kafka, without a file's header.

    `schema` is the reader's schema as JSON text: it determines the columns, with Spark's types.
    `writer_schema` is the schema of the bytes, if it differs; inside `Confluent`, the registry has
    it. Fields that the writer lacks get the reader's default. A sink without a schema derives it
    from the columns.
    """

    schema: str | None = None
    writer_schema: str | None = None

    def __post_init__(self) -> None:
        for name, text in (("schema", self.schema), ("writer_schema", self.writer_schema)):
            if text is not None:
                check_json(f"Avro: {name}", text)


def check_json(what: str, text: object) -> None:
    """Raises InvalidProgram unless the text is JSON."""
    if not isinstance(text, str):
        raise InvalidProgram(f"{what} is a {type(text).__name__}; pass the schema's JSON text")
    try:
        json.loads(text)
    except ValueError as error:
        raise InvalidProgram(f"{what} is not JSON: {error}") from None


@dataclass(frozen=True, slots=True)
class SchemaRegistry:
    """A Confluent schema registry, or another with its REST API.

    `url` has a scheme, such as "https://registry:8081". `properties` are those of Confluent's
    clients: `basic.auth.user.info` (user:password), `bearer.auth.token` and `ssl.ca.location`. A
    value may be `env:NAME` or `file:PATH`, which the slot resolves. Secrets are not shown.

    While the registry does not answer, a task waits for it and logs that; after `wait` ("1 min") it
    fails. Raises InvalidProgram for invalid options.
    """

    url: str
    properties: Mapping[str, str] = field(default_factory=dict, repr=False)
    wait: Duration = "1 min"

    def __post_init__(self) -> None:
        parts = urlsplit(self.url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise InvalidProgram(
                f"SchemaRegistry: url is {self.url!r}; write, for example, 'http://registry:8081'"
            )
        if parts.username is not None:
            raise InvalidProgram(
                "SchemaRegistry: the url contains a user; pass"
                " properties={'basic.auth.user.info': 'env:NAME'} instead"
            )
        for name in self.properties:
            if name not in REGISTRY_PROPERTIES:
                close = difflib.get_close_matches(name, REGISTRY_PROPERTIES, n=1)
                hint = f"did you mean {close[0]}?" if close else ", ".join(REGISTRY_PROPERTIES)
                raise InvalidProgram(f"SchemaRegistry has no property {name!r}; {hint}")
        duration_s("SchemaRegistry: wait", self.wait)

    @property
    def wait_s(self) -> float:
        return duration_s("SchemaRegistry: wait", self.wait)


@dataclass(frozen=True, slots=True, init=False)
class Protobuf(Format):
    """One Protobuf message per record: `Protobuf("shop.Order", "order.desc")`.

    `message` is the full name of its type. `descriptors` is a descriptor set with all its imports,
    as bytes, or the file that `protoc --include_imports --descriptor_set_out` writes, which is read
    where the program runs. Columns and nulls are those of Spark's `from_protobuf`.

    Raises InvalidProgram if the file cannot be read.
    """

    message: str
    descriptors: bytes = field(repr=False)

    def __init__(self, message: str, descriptors: bytes | str | os.PathLike[str]) -> None:
        object.__setattr__(self, "message", message)
        if not isinstance(descriptors, bytes):
            try:
                descriptors = Path(descriptors).read_bytes()
            except OSError as error:
                raise InvalidProgram(f"Protobuf: descriptors cannot be read: {error}") from None
        object.__setattr__(self, "descriptors", descriptors)


REGISTRY_PROPERTIES = ("basic.auth.user.info", "bearer.auth.token", "ssl.ca.location")
SubjectName = Literal["topic", "record", "topic_record"]


@dataclass(frozen=True, slots=True)
class Confluent(Format):
    """Records that start with the id of their schema in a registry (a zero byte, and four bytes):
    `Confluent(SchemaRegistry("http://registry:8081"), Avro(schema))`.

    `format` is Avro, Json or Protobuf. A source reads each record with the schema that it was
    written with, and returns the columns of `format`; a record with an unknown id is unreadable.

    A sink registers its schema under a subject, or only looks it up if `register` is False.
    `subject_name` is the name of the topic ("topic"), that of the schema's record ("record"), or
    both ("topic_record"), as in Confluent's clients. The schema is that of `format`: of Json, it is
    derived from the columns, and of Protobuf, it is the file of the message. Instead, `schema` is
    the text to register: a JSON Schema, or the source of the message's file.
    """

    registry: SchemaRegistry
    format: Avro | Json | Protobuf
    subject_name: SubjectName = "topic"
    register: bool = True
    schema: str | None = None

    def __post_init__(self) -> None:
        if self.schema is not None and isinstance(self.format, Avro):
            raise InvalidProgram("Confluent: pass the schema to Avro(schema), not to Confluent")
        if self.schema is not None and isinstance(self.format, Json):
            check_json("Confluent: schema", self.schema)
        if not isinstance(self.format, Avro | Json | Protobuf):
            raise InvalidProgram(
                f"Confluent: format is {type(self.format).__name__}; it must be Avro, Json or"
                " Protobuf"
            )
        check_choice("Confluent: subject_name", self.subject_name, get_args(SubjectName))


@dataclass(frozen=True, slots=True)
class Debezium(Format):
    """Changes of a table, as Debezium publishes them: `Debezium(Json("id BIGINT, name STRING"))`.

    `format` describes the table's rows: Json, for envelopes with or without their schema, or
    Confluent with Avro, whose schema is that of the envelope. The rows have a column `row_kind`:
    creations and snapshots (`c`, `r`) are an insert, deletions (`d`) a delete, and updates (`u`) a
    delete of the earlier row followed by an insert. Records without a value have no row.
    """

    format: Json | Confluent

    def __post_init__(self) -> None:
        if isinstance(self.format, Json) or (
            isinstance(self.format, Confluent) and isinstance(self.format.format, Avro)
        ):
            return
        raise InvalidProgram("Debezium: format must be Json, or Confluent with Avro")


@dataclass(frozen=True, slots=True)
class Canal(Format):
    """Changes of MySQL's tables, as Canal publishes them: `Canal("id BIGINT, name STRING")`.

    `schema` describes the table's rows. Inserts, updates and deletes become rows with `row_kind`,
    as with Debezium; changes of the table's definition have no row. `table` ("database.table")
    drops the changes of other tables.
    """

    schema: str | StructType | pa.Schema
    table: str | None = None
