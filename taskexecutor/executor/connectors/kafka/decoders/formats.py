"""Finds the decoder of a format."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from firesteel.connectors.kafka.formats import Format, Raw
from firesteel.errors import FiresteelError
from taskexecutor.executor.columnar.jvm.engine import SparkEngine
from taskexecutor.executor.connectors.kafka.decoders.decoder import Decoder
from taskexecutor.executor.connectors.kafka.decoders.raw import RawRecords, raw_schema


def decoder(format: Format, *, metadata: Sequence[str] = ()) -> Decoder:
    """Returns a decoder of values. `metadata` names columns of the records that follow those of the
    format, such as partition and offset.
    """
    match format:
        case Raw():
            return RawRecords(metadata)
    raise FiresteelError(f"records of Kafka cannot be read as {format.display_name}")


def decoded_schema(
    format: Format, engine: SparkEngine, *, metadata: Sequence[str] = ()
) -> pa.Schema:
    """Returns the columns of the rows of `decoder`, before data flows."""
    match format:
        case Raw():
            return raw_schema(metadata)
    raise FiresteelError(f"records of Kafka cannot be read as {format.display_name}")
