"""Rows as Protobuf messages."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from firesteel.connectors.kafka.formats import Protobuf
from firesteel.operator import RuntimeContext
from taskexecutor.executor.protobuf_rows import ProtobufRows


class ProtobufOfRows:
    def __init__(self, format: Protobuf, columns: Sequence[str]) -> None:
        self._format = format
        self._columns = list(columns)

    def open(self, context: RuntimeContext, schema: pa.Schema) -> None:
        self._messages = ProtobufRows(self._format.message, self._format.descriptors)
        self._messages.check(self._columns)

    def encode(self, batch: pa.RecordBatch) -> pa.BinaryArray:
        return pa.array(self._messages.values(batch.select(self._columns)), pa.binary())

    def close(self) -> None: ...
