"""Finds in the topic itself whether a transaction was committed, if the coordinator has forgotten
it: its transactional id has been used again since, or has expired.

A consumer with `isolation.level=read_committed` gets the transaction's first record if and only if
it was committed, unless the record has been deleted since.
"""

from __future__ import annotations

import time

from firesteel.connectors.kafka.connection import KafkaConnection
from taskexecutor.executor.connectors.kafka.clients import (
    REQUEST_TIMEOUT_S,
    configuration,
    consumer,
    library,
)
from taskexecutor.executor.connectors.kafka.verdicts import UNKNOWN_OFFSET, First, Prepared

_PATIENCE_S = 10.0  # for each partition


def was_committed(connection: KafkaConnection, prepared: Prepared) -> bool | None:
    """Returns whether the transaction was committed; None if no partition proves either."""
    for first in prepared.first:
        if first.offset != UNKNOWN_OFFSET:
            found = _visible(connection, first)
            if found is not None:
                return found
    return None


def _visible(connection: KafkaConnection, first: First) -> bool | None:
    kafka = library()
    configured = {
        **configuration(
            connection,
            enable_auto_commit=False,
            isolation_level="read_committed",
            enable_partition_eof=True,
            auto_offset_reset="error",
        ),
    }
    configured["group.id"] = "firesteel-evidence"  # required, and never joined
    reader = consumer(connection, configured)
    place = kafka.TopicPartition(first.topic, first.partition, first.offset)
    try:
        low, _ = reader.get_watermark_offsets(place, timeout=REQUEST_TIMEOUT_S)
        if low > first.offset:
            return None
        reader.assign([place])
        deadline = time.monotonic() + _PATIENCE_S
        while time.monotonic() < deadline:
            message = reader.poll(0.2)
            if message is None:
                continue
            error = message.error()
            offset = message.offset()
            assert offset is not None
            if error is None:
                return offset == first.offset
            if error.name() == "_PARTITION_EOF":
                # At the first record of an open transaction, readers wait for its end.
                return None if offset <= first.offset else False
            return None
    except kafka.KafkaException:
        return None
    finally:
        reader.close()
    return None
