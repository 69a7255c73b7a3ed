"""Finds the encoder of a format."""

from __future__ import annotations

from collections.abc import Sequence

from firesteel.connectors.kafka.formats import Format, Raw
from firesteel.errors import FiresteelError
from taskexecutor.executor.connectors.kafka.encoders.encoder import Encoder
from taskexecutor.executor.connectors.kafka.encoders.raw import RawColumn


def encoder(
    format: Format, columns: Sequence[str], *, topic: str = "", key: bool = False
) -> Encoder:
    """Returns an encoder of the named columns, as values or, if `key`, as keys of records.

    `topic` names the subject in a schema registry; it is empty if a column holds the topic.
    """
    match format:
        case Raw():
            return RawColumn(columns)
    raise FiresteelError(f"records of Kafka cannot be written as {format.display_name}")
