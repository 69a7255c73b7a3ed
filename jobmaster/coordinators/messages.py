"""What operators and their coordinators tell each other."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeAlias


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitRequested:
    """A source subtask has nothing to read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitAssigned:
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


OperatorMessage: TypeAlias = SplitRequested | SplitAssigned | SplitsExhausted | ChunkCollected | ChunkAcknowledged
