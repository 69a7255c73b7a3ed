"""Types shared by both halves of a channel."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

from firesteel.elements import StreamElement, StreamEvent

# A sender waits once it is this many events ahead of its consumer, per channel.
MAX_WAITING_EVENTS = 1024


@dataclass(slots=True)
class Queued:
    """An element with its size; `rows` is -1 for events."""

    element: StreamElement
    size_bytes: int
    rows: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Parcel:
    """The unit that a sender sends next: one event, one batch, or several small batches coalesced
    into one.
    """

    sequence: int  # number of the first element
    count: int  # number of elements
    size_bytes: int  # of the batches; 0 for an event
    event: StreamEvent | None = None
    batches: tuple[pa.RecordBatch, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Grant:
    """Credit returned to the sender."""

    size_bytes: int
    events: int
