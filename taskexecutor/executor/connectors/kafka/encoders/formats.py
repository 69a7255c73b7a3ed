"""Finds the encoder of a format."""

from __future__ import annotations

from collections.abc import Sequence

from firesteel.connectors.kafka.formats import Avro, Confluent, Csv, Format, Json, Protobuf, Raw
from firesteel.errors import FiresteelError
from taskexecutor.executor.connectors.kafka.encoders.avro import AvroOfRows
from taskexecutor.executor.connectors.kafka.encoders.encoder import Encoder
from taskexecutor.executor.connectors.kafka.encoders.framed import (
    FramedJsonOfRows,
    FramedProtobufOfRows,
)
from taskexecutor.executor.connectors.kafka.encoders.protobuf import ProtobufOfRows
from taskexecutor.executor.connectors.kafka.encoders.raw import RawColumn
from taskexecutor.executor.connectors.kafka.encoders.text import TextOfRows


def encoder(
    format: Format, columns: Sequence[str], *, topic: str = "", key: bool = False
) -> Encoder:
    """Returns an encoder of the named columns, as values or, if `key`, as keys of records.

    `topic` names the subject in a schema registry; it is empty if a column holds the topic.
    """
    match format:
        case Raw():
            return RawColumn(columns)
        case Json() | Csv():
            return TextOfRows(format, columns)
        case Protobuf():
            return ProtobufOfRows(format, columns)
        case Avro() | Confluent(format=Avro()):
            return AvroOfRows(format, columns, topic=topic, key=key)
        case Confluent(format=Json()):
            return FramedJsonOfRows(format, columns, topic=topic, key=key)
        case Confluent(format=Protobuf()):
            return FramedProtobufOfRows(format, columns, topic=topic, key=key)
    raise FiresteelError(f"records of Kafka cannot be written as {format.display_name}")
