"""Records as they are."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from firesteel.operator import RuntimeContext
from taskexecutor.executor.connectors.kafka.decoders.decoder import Decoded
from taskexecutor.executor.connectors.kafka.records import RECORDS, RECORDS_WITH_HEADERS


class RawRecords:
    def __init__(self, metadata: Sequence[str]) -> None:
        self.schema = raw_schema(metadata)

    def open(self, context: RuntimeContext) -> None: ...

    def decode(self, batch: pa.RecordBatch) -> Decoded:
        return Decoded(rows=batch.select(self.schema.names), records=None, bad=None)

    def close(self) -> None: ...


def raw_schema(metadata: Sequence[str]) -> pa.Schema:
    """Returns Spark's columns, and those of `metadata` that are not among them: headers."""
    names = [*RECORDS.names, *(name for name in metadata if name not in RECORDS.names)]
    return pa.schema([RECORDS_WITH_HEADERS.field(name) for name in names])
