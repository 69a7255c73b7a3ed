"""The messages between operators and their coordinators.

Any message may be lost with a broken stream, or arrive twice. So requests are numbered, a repeated
request changes nothing, and after a reconnect the coordinator asks for unanswered ones (`Resend`).
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitRequested:
    """A source subtask requests a split. A repeated request gets the same answer."""

    # The number of splits that the attempt has, which is the number of the requested one.
    received: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitAssigned:
    number: int  # per attempt, from 0
    split_json: str
    place: int = 0  # in the order in which the source's splits are distributed


class HeldSplit(NamedTuple):
    """A split of a source subtask, for a coordinator that did not assign it."""

    place: int
    digest: int  # of the split, since another list of splits may have another split in this place

    @classmethod
    def of(cls, place: int, split_json: str) -> HeldSplit:
        digest = hashlib.blake2b(split_json.encode(), digest_size=8).digest()
        return cls(place, int.from_bytes(digest))


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitsExhausted:
    """There are no more splits for this subtask: its input ends."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NoSplitYet:
    """Every known split is assigned. The request is answered again when there is another split."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkCollected:
    sequence: int  # per attempt, from 0
    # If empty, shows the chunks of `group`, because their checkpoint is complete.
    ipc_stream: bytes = field(repr=False)
    group: str = ""  # clients see the chunk once its group is shown; empty: immediately


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkAcknowledged:
    sequence: int
    error: str = ""  # if set, the chunk could not be kept


@dataclass(frozen=True, slots=True, kw_only=True)
class WatermarkReported:
    """Reports the progress of a source in a watermark alignment group. Idempotent."""

    watermark_us: int  # MIN_TIMESTAMP_US: none yet; MAX_TIMESTAMP_US: the source has ended
    idle: bool = False  # the others need not wait for it


@dataclass(frozen=True, slots=True, kw_only=True)
class WatermarkLimit:
    """A source past this limit reads nothing until it gets a higher one."""

    limit_us: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SparkMasterStarted:
    """The driver of a Spark program has a Spark Standalone master for its executors. Idempotent."""

    url: str  # spark://HOST:PORT
    secret: str = field(repr=False)  # spark.authenticate.secret
    ui_address: str = ""  # of the program's SparkContext; empty: it has none


@dataclass(frozen=True, slots=True, kw_only=True)
class SparkMasterAwaited:
    """An executor of a Spark program awaits the master, and every later one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SparkMaster:
    url: str  # empty: there is none now
    secret: str = field(default="", repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class SparkProgramEnded:
    """The program has ended with success: its executors finish."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Resend:
    """Requests unanswered messages again: a broken stream may have lost them."""


FromOperator: TypeAlias = (
    SplitRequested | ChunkCollected | WatermarkReported | SparkMasterStarted | SparkMasterAwaited
)
ToOperator: TypeAlias = (
    SplitAssigned
    | SplitsExhausted
    | NoSplitYet
    | ChunkAcknowledged
    | WatermarkLimit
    | SparkMaster
    | SparkProgramEnded
    | Resend
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
