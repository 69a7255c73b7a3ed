"""What operators and their coordinators send each other."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeAlias


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitRequested:
    """A source subtask has nothing to read. Said again, it is answered the same."""

    received: int  # splits the attempt has had so far: this is the number of the one it asks for


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitAssigned:
    number: int  # per attempt, from 0
    split_json: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitsExhausted:
    """There will be no more splits for this subtask: end of its input."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkCollected:
    sequence: int  # per attempt, from 0
    ipc_stream: bytes = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkAcknowledged:
    sequence: int
    error: str = ""  # set: it could not be kept


@dataclass(frozen=True, slots=True, kw_only=True)
class WatermarkReported:
    """How far a source of an alignment group has come. Said again, it changes nothing."""

    watermark_us: int  # MIN_TIMESTAMP_US: none yet; MAX_TIMESTAMP_US: it has ended
    idle: bool = False  # the others need not wait for it


@dataclass(frozen=True, slots=True, kw_only=True)
class WatermarkLimit:
    """A source that has come further reads nothing more until it is told a higher limit."""

    limit_us: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Resend:
    """Messages may have been lost with a broken stream: say again what was not answered."""


OperatorMessage: TypeAlias = (
    SplitRequested
    | SplitAssigned
    | SplitsExhausted
    | ChunkCollected
    | ChunkAcknowledged
    | WatermarkReported
    | WatermarkLimit
    | Resend
)
