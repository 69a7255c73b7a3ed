"""What operators and their coordinators send each other.

Any message may be lost with a stream that breaks, or arrive twice: so requests are numbered, a
repeated one changes nothing, and after a reconnect the coordinator asks for what is unanswered
(`Resend`).
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitRequested:
    """A source subtask asks for a split. A repeated request gets the same answer."""

    received: int  # splits the attempt has had so far: this is the number of the one it asks for


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitAssigned:
    number: int  # per attempt, from 0
    split_json: str
    place: int = 0  # in the order in which the source's splits are handed out


class HeldSplit(NamedTuple):
    """One that a source subtask was assigned, for a coordinator that has not assigned it."""

    place: int
    digest: int  # of the split, which another list of splits may have in another place

    @classmethod
    def of(cls, place: int, split_json: str) -> HeldSplit:
        digest = hashlib.blake2b(split_json.encode(), digest_size=8).digest()
        return cls(place, int.from_bytes(digest))


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitsExhausted:
    """There will be no more splits for this subtask: end of its input."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkCollected:
    sequence: int  # per attempt, from 0
    # Empty: shows the chunks of `group`, because their checkpoint is complete.
    ipc_stream: bytes = field(repr=False)
    group: str = ""  # clients do not see the chunk before its group is shown; empty: at once


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkAcknowledged:
    sequence: int
    error: str = ""  # set: it could not be kept


@dataclass(frozen=True, slots=True, kw_only=True)
class WatermarkReported:
    """The progress of a source in a watermark alignment group. Idempotent."""

    watermark_us: int  # MIN_TIMESTAMP_US: none yet; MAX_TIMESTAMP_US: it has ended
    idle: bool = False  # the others need not wait for it


@dataclass(frozen=True, slots=True, kw_only=True)
class WatermarkLimit:
    """A source past this limit reads nothing until it gets a higher one."""

    limit_us: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Resend:
    """A broken stream may have lost messages: send again what was not answered."""


FromOperator: TypeAlias = SplitRequested | ChunkCollected | WatermarkReported
ToOperator: TypeAlias = (
    SplitAssigned | SplitsExhausted | ChunkAcknowledged | WatermarkLimit | Resend
)
OperatorMessage: TypeAlias = FromOperator | ToOperator


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorEvent:
    """A message with the operator of the task attempt that sends or receives it."""

    job_id: str
    operator_id: str
    subtask: int
    attempt_id: str
    message: OperatorMessage
