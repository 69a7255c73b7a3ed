"""The elements of a stream: record batches (`pyarrow.RecordBatch`) and the events between them.

Event time is in microseconds since the epoch, in UTC, like Arrow and Spark timestamps.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import pyarrow as pa

MIN_TIMESTAMP_US = -(2**63)
MAX_TIMESTAMP_US = 2**63 - 1


@dataclass(frozen=True, slots=True, order=True)
class Watermark:
    """Asserts that no record with event time <= timestamp_us follows."""

    timestamp_us: int


MAX_WATERMARK = Watermark(MAX_TIMESTAMP_US)  # the end of event time: every timer fires


@dataclass(frozen=True, slots=True)
class StreamStatus:
    """Marks a channel as idle or active. An idle channel does not hold back watermarks."""

    idle: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointBarrier:
    """Separates the elements that belong to the checkpoint, before it, from later ones."""

    checkpoint_id: int
    timestamp_ms: int
    savepoint: bool = False
    # Overtakes the batches that wait at a task; they become part of the checkpoint.
    unaligned: bool = False
    # Does so at a task if the barriers of other channels are missing after this time.
    aligned_timeout_ms: int | None = None
    at_least_once: bool = False  # channels do not wait for each other's barriers
    # Incremental: the complete checkpoint whose files this one may refer to; 0: none.
    base: int | None = None

    @property
    def overtakes(self) -> bool:
        """Whether a task must see it before the elements ahead of it."""
        return self.unaligned or self.aligned_timeout_ms is not None


@dataclass(frozen=True, slots=True)
class EndOfData:
    """Follows the last user record. `finished` is False on stop-with-savepoint without --drain."""

    finished: bool = True


@dataclass(frozen=True, slots=True)
class EndOfPartition:
    """Follows the last element of a channel."""


StreamEvent: TypeAlias = Watermark | StreamStatus | CheckpointBarrier | EndOfData | EndOfPartition
StreamElement: TypeAlias = pa.RecordBatch | StreamEvent
