"""Rows as JSON or Protobuf that start with the id of their schema in a registry."""

from __future__ import annotations

import base64
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from firesteel.connectors.kafka.formats import Confluent, Json, Protobuf
from firesteel.operator import RuntimeContext
from taskexecutor.executor.connectors.kafka.encoders.encoder import Encoder
from taskexecutor.executor.connectors.kafka.encoders.json_schema import json_schema, title
from taskexecutor.executor.connectors.kafka.encoders.protobuf import ProtobufOfRows
from taskexecutor.executor.connectors.kafka.encoders.registration import Imported, Registration
from taskexecutor.executor.connectors.kafka.encoders.text import TextOfRows
from taskexecutor.executor.protobuf_rows import MessageFile, ProtobufRows

_KNOWN = "google/protobuf/"  # files that registries have


class FramedRows(ABC):
    """Adds a head to the records of another encoder."""

    def __init__(
        self, format: Confluent, encoder: Encoder, columns: Sequence[str], *, topic: str, key: bool
    ) -> None:
        """`topic` is empty if rows have different topics."""
        self._format = format
        self._encoder = encoder
        self._columns = columns
        self._registration = Registration(format=format, topic=topic, key=key)

    @abstractmethod
    def head(self, context: RuntimeContext, schema: pa.Schema) -> bytes:
        """Registers the schema. Returns the bytes that follow the zero byte."""

    def open(self, context: RuntimeContext, schema: pa.Schema) -> None:
        self._encoder.open(context, schema)
        given = pa.schema([schema.field(name) for name in self._columns])
        self._head = pa.scalar(b"\0" + self.head(context, given), pa.binary())

    def encode(self, batch: pa.RecordBatch) -> pa.BinaryArray:
        return pc.binary_join_element_wise(
            self._head, self._encoder.encode(batch), pa.scalar(b"", pa.binary())
        )

    def close(self) -> None:
        self._encoder.close()


class FramedJsonOfRows(FramedRows):
    def __init__(self, format: Confluent, columns: Sequence[str], *, topic: str, key: bool) -> None:
        assert isinstance(format.format, Json)
        self._json = format.format
        super().__init__(format, TextOfRows(self._json, columns), columns, topic=topic, key=key)

    def head(self, context: RuntimeContext, schema: pa.Schema) -> bytes:
        text = self._format.schema or json_schema(schema, self._json)
        return self._registration.id(context, text, "JSON", title(text)).to_bytes(4)


class FramedProtobufOfRows(FramedRows):
    def __init__(self, format: Confluent, columns: Sequence[str], *, topic: str, key: bool) -> None:
        assert isinstance(format.format, Protobuf)
        self._protobuf = format.format
        encoder = ProtobufOfRows(self._protobuf, columns)
        super().__init__(format, encoder, columns, topic=topic, key=key)

    def head(self, context: RuntimeContext, schema: pa.Schema) -> bytes:
        message = ProtobufRows(self._protobuf.message, self._protobuf.descriptors)
        file = _registered(message.file)
        id = self._registration.id(
            context, self._format.schema or file.text, "PROTOBUF", message.name, file.imports
        )
        return id.to_bytes(4) + _place(message.indexes)


def _registered(file: MessageFile) -> Imported:
    """Returns the file as registries accept it besides the source."""
    imports = [_registered(each) for each in file.imports if not each.name.startswith(_KNOWN)]
    text = base64.b64encode(file.descriptor).decode()
    return Imported(name=file.name, text=text, imports=imports)


def _place(indexes: Sequence[int]) -> bytes:
    """Returns the place of a message in its file: the number of indexes, and the indexes. The first
    message has a short form.
    """
    return b"\0" if list(indexes) == [0] else _varints([len(indexes), *indexes])


def _varints(numbers: Iterable[int]) -> bytes:
    """Returns zigzag numbers, which are not negative."""
    found = bytearray()
    for number in numbers:
        rest = number << 1
        while rest > 127:
            found.append(rest & 127 | 128)
            rest >>= 7
        found.append(rest)
    return bytes(found)
