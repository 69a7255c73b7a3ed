"""A complete checkpoint as masters refer to it: what its row in the job store says."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class CompleteCheckpoint:
    checkpoint_id: int
    savepoint: bool = False  # a savepoint belongs to its user, not to the job
    path: str  # of the directory with its _metadata: a path or a URI
    size_bytes: int = 0
    triggered_ms: int = 0
    completed_ms: int = 0
    epoch: int = 1  # of the JobMaster that took it
