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
    """What is ahead of it belongs to the checkpoint, what is behind it does not."""

    checkpoint_id: int
    timestamp_ms: int
    savepoint: bool = False
    # It overtakes the batches that wait at a task; they become part of the checkpoint.
    unaligned: bool = False
    # It does so at a task where, after this long, the barriers of other channels are missing.
    aligned_timeout_ms: int | None = None
    at_least_once: bool = False  # channels do not wait for each other's barriers
    # Incremental: the complete checkpoint whose files this one may refer to; 0: there is none.
    base: int | None = None

    @property
    def overtakes(self) -> bool:
        """Whether a task has to know of it before what is ahead of it is taken."""
        return self.unaligned or self.aligned_timeout_ms is not None


@dataclass(frozen=True, slots=True)
class EndOfData:
    """All user records are sent. `finished` is False on stop-with-savepoint without --drain."""

    finished: bool = True


@dataclass(frozen=True, slots=True)
class EndOfPartition:
    """Nothing follows on this channel."""


StreamEvent: TypeAlias = Watermark | StreamStatus | CheckpointBarrier | EndOfData | EndOfPartition
StreamElement: TypeAlias = pa.RecordBatch | StreamEvent
