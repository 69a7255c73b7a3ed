"""What earlier masters of a job have left to the one that goes on with it.

Ids of checkpoints, and numbers of attempts, name files. Each master counts in a range of its own,
above those of all earlier ones, although it does not know how far they came: a file of an earlier
master that was never part of a complete checkpoint cannot have the name of a new one, and nothing
that an earlier master still deletes is anybody else's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from firesteel.common.checkpoints.complete import CompleteCheckpoint
from firesteel.common.checkpoints.metadata import CheckpointMetadata
from firesteel.common.ids import AttemptId, OperatorId
from jobmaster.core.execution_graph.history import StatusChange
from jobmaster.core.failover.exceptions import Failure
from jobmaster.core.failover.restart_strategy import RestartHistory, Verdict

CHECKPOINTS_PER_MASTER = 10**9
ATTEMPTS_PER_MASTER = 10**6


@dataclass(frozen=True, slots=True, kw_only=True)
class Recovery:
    epoch: int = 1  # of this master
    checkpoints: Sequence[CompleteCheckpoint] = ()  # of the job, by id
    latest: CheckpointMetadata | None = None  # the job begins with its state
    latest_epoch: int = 1  # of the master that took it
    restored_from: str = ""  # what its paths are relative to; empty: the job's directory
    # Of retained checkpoints of the job; None: those of one cannot be read.
    shared_files: Mapping[int, tuple[str, ...]] | None = field(default_factory=dict)
    restarts: RestartHistory = field(default_factory=RestartHistory)
    verdict: Verdict | None = None  # on the failure that it is in; None: it is in none
    # How many chunks of each attempt are kept, by collect sink.
    collected: Mapping[OperatorId, Mapping[AttemptId, int]] = field(default_factory=dict)
    # The job's statuses and failures so far, oldest first.
    statuses: Sequence[StatusChange] = ()
    failures: Sequence[Failure] = ()
    claimed: CompleteCheckpoint | None = None  # of another job, and this one's own from now on

    @property
    def first_checkpoint_id(self) -> int:
        before = 0 if self.latest is None else self.latest.checkpoint_id
        return before + (self.epoch - self.latest_epoch) * CHECKPOINTS_PER_MASTER + 1

    @property
    def first_attempt(self) -> int:
        return (self.epoch - 1) * ATTEMPTS_PER_MASTER

    @property
    def retained(self) -> tuple[int, ...]:
        own = tuple(c.checkpoint_id for c in self.checkpoints if not c.savepoint)
        return own if self.claimed is None else (self.claimed.checkpoint_id, *own)

    @property
    def paths(self) -> dict[int, str]:
        """Where complete checkpoints are, by id."""
        found = {c.checkpoint_id: c.path for c in self.checkpoints}
        return (
            found
            if self.claimed is None
            else {**found, self.claimed.checkpoint_id: self.claimed.path}
        )
