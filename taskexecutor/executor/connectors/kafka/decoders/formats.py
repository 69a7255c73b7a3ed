"""Finds the decoder of a format."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from firesteel.connectors.kafka.formats import (
    Avro,
    Canal,
    Confluent,
    Csv,
    Debezium,
    Format,
    Json,
    Protobuf,
    Raw,
)
from firesteel.errors import FiresteelError
from taskexecutor.executor.columnar.jvm.engine import SparkEngine
from taskexecutor.executor.columnar.schemas import to_arrow
from taskexecutor.executor.connectors.kafka.decoders.avro import AvroValues, avro_type
from taskexecutor.executor.connectors.kafka.decoders.changes import (
    CanalValues,
    DebeziumValues,
    canal_rows,
    debezium_schema,
    with_kind,
)
from taskexecutor.executor.connectors.kafka.decoders.decoder import Decoder
from taskexecutor.executor.connectors.kafka.decoders.framed_json import FramedJson
from taskexecutor.executor.connectors.kafka.decoders.protobuf import ProtobufValues
from taskexecutor.executor.connectors.kafka.decoders.raw import RawRecords, raw_schema
from taskexecutor.executor.connectors.kafka.decoders.text import TextValues, text_rows
from taskexecutor.executor.connectors.kafka.decoders.values import (
    ValueDecoder,
    Values,
    with_metadata,
)
from taskexecutor.executor.protobuf_rows import ProtobufRows


def decoder(format: Format, *, metadata: Sequence[str] = ()) -> Decoder:
    """Returns a decoder of values. `metadata` names columns of the records that follow those of the
    format, such as partition and offset.
    """
    if isinstance(format, Raw):
        return RawRecords(metadata)
    return ValueDecoder(_values(format), metadata)


def decoded_schema(
    format: Format, engine: SparkEngine, *, metadata: Sequence[str] = ()
) -> pa.Schema:
    """Returns the columns of the rows of `decoder`, before data flows."""
    if isinstance(format, Raw):
        return raw_schema(metadata)
    return with_metadata(_schema(format, engine), metadata)


def _values(format: Format) -> Values:
    match format:
        case Json() | Csv():
            return TextValues(format)
        case Avro() | Confluent(format=Avro()):
            return AvroValues(format)
        case Confluent(format=Json()):
            return FramedJson(format)
        case Protobuf() | Confluent(format=Protobuf()):
            return ProtobufValues(format)
        case Debezium():
            return DebeziumValues(format)
        case Canal():
            return CanalValues(format)
    raise _unknown(format)


def _schema(format: Format, engine: SparkEngine) -> pa.Schema:
    match format:
        case Json() | Csv() | Confluent(format=Json()):
            text = format.format if isinstance(format, Confluent) else format
            assert isinstance(text, Json | Csv)
            return text_rows(engine, text)
        case Avro() | Confluent(format=Avro()):
            avro = format.format if isinstance(format, Confluent) else format
            assert isinstance(avro, Avro)
            return to_arrow(avro_type(engine, avro))
        case Protobuf() | Confluent(format=Protobuf()):
            protobuf = format.format if isinstance(format, Confluent) else format
            assert isinstance(protobuf, Protobuf)
            return ProtobufRows(protobuf.message, protobuf.descriptors).schema
        case Debezium():
            return debezium_schema(format, engine)
        case Canal():
            return with_kind(canal_rows(format))
    raise _unknown(format)


def _unknown(format: Format) -> FiresteelError:
    return FiresteelError(f"records of Kafka cannot be read as {format.display_name}")
