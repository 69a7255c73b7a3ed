"""What both halves of a channel work with."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

from firesteel.elements import StreamElement, StreamEvent

# Per channel: a sender that is this many events ahead of its consumer must wait.
MAX_WAITING_EVENTS = 1024


@dataclass(slots=True)
class Queued:
    """An element with its size; `rows` is -1 for events."""

    element: StreamElement
    size_bytes: int
    rows: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Parcel:
    """What the sender hands over next: one event, one batch, or several small batches to send as
    one.
    """

    sequence: int  # number of the first element
    count: int  # elements in it
    size_bytes: int  # of the batches; 0 for an event
    event: StreamEvent | None = None
    batches: tuple[pa.RecordBatch, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Grant:
    """Credit returned to the sender."""

    size_bytes: int
    events: int
