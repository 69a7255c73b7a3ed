"""The elements of a stream: record batches (`pyarrow.RecordBatch`) and the events between them.

Event time is microseconds since the epoch, UTC, as in Arrow and Spark timestamps.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import pyarrow as pa

MIN_TIMESTAMP_US = -(2**63)
MAX_TIMESTAMP_US = 2**63 - 1


@dataclass(frozen=True, slots=True, order=True)
class Watermark:
    """No record with event time <= timestamp_us will follow."""

    timestamp_us: int


MAX_WATERMARK = Watermark(MAX_TIMESTAMP_US)  # end of event time: every timer fires


@dataclass(frozen=True, slots=True)
class StreamStatus:
    """An idle channel does not hold back watermarks until it is active again."""

    idle: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointBarrier:
    checkpoint_id: int
    timestamp_ms: int
    savepoint: bool = False
    unaligned: bool = False


@dataclass(frozen=True, slots=True)
class EndOfData:
    """All user records are sent. `finished` is False on stop-with-savepoint without --drain."""

    finished: bool = True


@dataclass(frozen=True, slots=True)
class EndOfPartition:
    """Nothing follows on this channel."""


StreamEvent: TypeAlias = Watermark | StreamStatus | CheckpointBarrier | EndOfData | EndOfPartition
StreamElement: TypeAlias = pa.RecordBatch | StreamEvent
