"""Typed identifiers, all 32 lower-case hex characters.

Cores use no randomness: they get an `IdSource` from their shell (seeded by the operating system),
or from a test or simulation (seeded by it).
"""

from __future__ import annotations

import hashlib
import os
import re
from typing import NewType, TypeVar

JobId = NewType("JobId", str)
VertexId = NewType("VertexId", str)
OperatorId = NewType("OperatorId", str)
ResultId = NewType("ResultId", str)  # IntermediateDataSet
AttemptId = NewType("AttemptId", str)  # one Execution
AllocationId = NewType("AllocationId", str)  # one slot allocated to one job
TaskExecutorId = NewType("TaskExecutorId", str)
ExecutorId = NewType("ExecutorId", str)  # one PySpark executor process
JobMasterId = NewType("JobMasterId", str)  # one JobMaster process

Epoch = NewType("Epoch", int)  # a leader's fencing token; a higher one supersedes

_HEX = re.compile(r"[0-9a-f]{32}")
_Id = TypeVar("_Id", bound=str)


class IdSource:
    """An endless sequence of distinct ids, determined by its seed."""

    __slots__ = ("_count", "_seed")

    def __init__(self, seed: bytes | None = None) -> None:
        self._seed = os.urandom(16) if seed is None else seed
        self._count = 0

    def next(self, kind: type[_Id] | object = str) -> str:
        self._count += 1
        return hashlib.md5(
            self._seed + self._count.to_bytes(8, "big"), usedforsecurity=False
        ).hexdigest()


def random_id() -> str:
    """Returns a new id, for shells."""
    return os.urandom(16).hex()


def stable_id(*parts: str) -> str:
    """Returns the id of these words, always the same: an md5, like Flink's operator ids from
    uids.
    """
    return hashlib.md5("\x00".join(parts).encode(), usedforsecurity=False).hexdigest()


def is_id(text: str) -> bool:
    return _HEX.fullmatch(text) is not None
