"""Records of Kafka for tests of formats, without a broker."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from firesteel.connectors.kafka.formats import Format
from firesteel.operator import RuntimeContext
from taskexecutor.executor.connectors.kafka.decoders import Decoded, decoder
from taskexecutor.executor.connectors.kafka.encoders import encoder
from taskexecutor.executor.connectors.kafka.records import RECORDS


def records(values: list[bytes | None]) -> pa.RecordBatch:
    count = len(values)
    columns: dict[str, Any] = {
        "key": [None] * count,
        "value": values,
        "topic": ["t"] * count,
        "partition": [3] * count,
        "offset": range(100, 100 + count),
        "timestamp": [0] * count,
        "timestampType": [0] * count,
    }
    return pa.RecordBatch.from_pydict(columns, schema=RECORDS)


def decoded(
    context: RuntimeContext, format: Format, values: list[bytes | None], **options: Any
) -> Decoded:
    reader = decoder(format, **options)
    reader.open(context)
    try:
        return reader.decode(records(values))
    finally:
        reader.close()


def encoded(
    context: RuntimeContext, format: Format, batch: pa.RecordBatch, **options: Any
) -> list[bytes]:
    writer = encoder(format, batch.schema.names, **options)
    writer.open(context, batch.schema)
    try:
        values = writer.encode(batch)
        assert values.type == pa.binary()
        return values.to_pylist()
    finally:
        writer.close()
