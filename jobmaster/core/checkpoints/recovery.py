"""The state that earlier masters of a job left for the one that continues it.

Ids of checkpoints and numbers of attempts are parts of file names. Each master numbers them in a
separate range, above those of all earlier masters, although it does not know how far they came. So
a file that an earlier master never made part of a complete checkpoint cannot have the name of a new
one, and nothing that an earlier master still deletes belongs to a later one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from firesteel.common.checkpoints.metadata import CheckpointMetadata
from firesteel.common.checkpoints.state import CompleteCheckpoint
from firesteel.common.ids import AttemptId, OperatorId
from firesteel.common.rescales import Rescale
from jobmaster.core.execution_graph.vertex import StatusChange
from jobmaster.core.failover.exceptions import Failure
from jobmaster.core.failover.restart_strategy import RestartHistory, Verdict
from jobmaster.core.parallelism import Parallelism

CHECKPOINTS_PER_MASTER = 10**9
ATTEMPTS_PER_MASTER = 10**6


@dataclass(frozen=True, slots=True, kw_only=True)
class Recovery:
    epoch: int = 1  # of this master
    checkpoints: Sequence[CompleteCheckpoint] = ()  # of the job, in order of their ids
    latest: CheckpointMetadata | None = None  # the job starts with its state
    latest_epoch: int = 1  # of the master that took it
    restored_from: str = ""  # the base directory of its paths; empty: the job's directory
    # Files of the job's retained checkpoints; None: those of one of them cannot be read.
    shared_files: Mapping[int, tuple[str, ...]] | None = field(default_factory=dict)
    restarts: RestartHistory = field(default_factory=RestartHistory)
    verdict: Verdict | None = None  # on the job's current failure; None: it is not failing
    # The number of stored chunks of each attempt, by collect sink.
    collected: Mapping[OperatorId, Mapping[AttemptId, int]] = field(default_factory=dict)
    # The job's statuses, failures, warnings and rescales so far, oldest first.
    statuses: Sequence[StatusChange] = ()
    failures: Sequence[Failure] = ()
    warnings: Sequence[str] = ()
    rescales: Sequence[Rescale] = ()
    parallelism: Parallelism = field(default_factory=Parallelism)  # stored; the graph has it
    claimed: CompleteCheckpoint | None = None  # taken by another job; owned by this one from now on

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
        """The paths of complete checkpoints by id."""
        found = {c.checkpoint_id: c.path for c in self.checkpoints}
        return (
            found
            if self.claimed is None
            else {**found, self.claimed.checkpoint_id: self.claimed.path}
        )
