"""Errors of the exchange between two tasks. Each error names the side at fault."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.flight as flight

from firesteel.common.error_report import PeerEnded
from firesteel.common.rpc.errors import LocalProtocolError, ProtocolError, RemoteProtocolError
from firesteel.errors import FiresteelError

__all__ = [
    "TRANSPORT_ERRORS",
    "ExchangeClosed",
    "ExchangeError",
    "LocalProtocolError",
    "PartitionAbandoned",
    "PartitionFailed",
    "PartitionUnreadable",
    "ProtocolError",
    "RemoteProtocolError",
    "ResultNotWritten",
    "SchemaChanged",
    "UnsupportedKey",
]

# Exceptions that Flight raises when the connection to a peer is lost.
TRANSPORT_ERRORS = (pa.ArrowException, flight.FlightError, OSError)


class ExchangeError(FiresteelError):
    """Base of the exchange's errors."""


class ExchangeClosed(ExchangeError, PeerEnded):
    """This side has already aborted, released or closed the resource."""


class PartitionFailed(ExchangeError, PeerEnded):
    """A producer aborted, died, or never appeared: the rest of its partition is lost."""

    def __init__(
        self, *, result_id: str, producer: int, attempt: int, address: str, reason: str
    ) -> None:
        super().__init__(
            f"lost the input from producer subtask {producer}, attempt {attempt}, of result"
            f" {result_id} at {address}: {reason}"
        )
        self.result_id = result_id
        self.producer = producer
        self.attempt = attempt
        self.address = address
        self.reason = reason


class PartitionAbandoned(ExchangeError, PeerEnded):
    """A consumer died or closed its gate before it had consumed everything."""

    def __init__(self, *, result_id: str, producer: int, consumer: int, reason: str) -> None:
        super().__init__(
            f"consumer subtask {consumer} of result {result_id} abandoned the partition of producer"
            f" subtask {producer}: {reason}"
        )
        self.result_id = result_id
        self.producer = producer
        self.consumer = consumer
        self.reason = reason


class PartitionUnreadable(ExchangeError):
    """The file of a BLOCKING partition is missing or damaged. Its consumers see PartitionFailed."""


class ResultNotWritten(ExchangeError):
    """A BLOCKING partition cannot be written, because its disk is full or fails."""


class SchemaChanged(ExchangeError):
    """A producer emitted a batch whose schema differs from that of its stream's first batch."""


class UnsupportedKey(ExchangeError):
    """A key column is missing, or its type has no hash."""
