"""What earlier masters of a job have left to the one that goes on with it.

Ids of checkpoints, and numbers of attempts, name files. Each master counts in a range of its own,
above those of all earlier ones, without having to know how far they came: a file of an earlier
master that was never part of a complete checkpoint cannot have the name of a new one, and nothing
that an earlier master still deletes is anybody else's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from firesteel.common.checkpoints.complete import CompleteCheckpoint
from firesteel.common.checkpoints.metadata import CheckpointMetadata

CHECKPOINTS_PER_MASTER = 10**9
ATTEMPTS_PER_MASTER = 10**6


@dataclass(frozen=True, slots=True, kw_only=True)
class Recovery:
    epoch: int = 1  # of this master
    checkpoints: Sequence[CompleteCheckpoint] = ()  # by id
    latest: CheckpointMetadata | None = None  # of the last of them: the job begins with its state

    @property
    def first_checkpoint_id(self) -> int:
        return (self.epoch - 1) * CHECKPOINTS_PER_MASTER + 1

    @property
    def first_attempt(self) -> int:
        return (self.epoch - 1) * ATTEMPTS_PER_MASTER

    @property
    def retained(self) -> tuple[int, ...]:
        return tuple(c.checkpoint_id for c in self.checkpoints if not c.savepoint)
