"""The commands of the CheckpointCoordinator."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from jobmaster.core.checkpoints.checkpoint import Checkpoint, Kind, Snapshot
from jobmaster.core.execution_graph import Execution


@dataclass(frozen=True, slots=True, kw_only=True)
class TriggerCheckpoint:
    """Triggers the checkpoint in these tasks; barriers carry it to the others."""

    checkpoint_id: int
    kind: Kind
    executions: tuple[Execution, ...]
    unaligned: bool = False
    aligned_timeout_ms: int | None = None  # None: the alignment does not change
    at_least_once: bool = False
    stops: bool = False  # sources produce nothing after it, unless it is abandoned
    savepoint_path: str = ""
    # Incremental: the complete checkpoint whose files it may refer to, or 0. None: it refers only
    # to its own files.
    base: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DrainTasks:
    """Ends the sources among these tasks. Tasks that have processed all their data report it
    again.
    """

    executions: tuple[Execution, ...]
    savepoint_path: str = ""  # of the savepoint that follows


@dataclass(frozen=True, slots=True, kw_only=True)
class NotifyCheckpoint:
    """Notifies these tasks of the checkpoint's outcome."""

    checkpoint_id: int
    executions: tuple[Execution, ...]
    completed: bool  # False: it was abandoned
    stops: bool = False  # the tasks end now


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreCheckpoint:
    """Writes the checkpoint's `_metadata`, then commits its row. Results in `stored` or
    `not_stored`, also after an ambiguous answer of the database: the store reads the row back
    (invariant 5).
    """

    checkpoint: Checkpoint
    subsumed: tuple[int, ...]  # checkpoints whose rows are deleted in the same commit
    # Then deletes the directories of older failed checkpoints, including files of processes that
    # died; excludes these, which may yet complete. None: none has failed.
    unsettled: frozenset[int] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DropCheckpoint:
    """Deletes the files of a checkpoint whose row was replaced by a newer one's."""

    checkpoint_id: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DropSnapshots:
    """Deletes the files of snapshots that belong to no checkpoint."""

    checkpoint_id: int
    snapshots: tuple[Snapshot, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class DropFiles:
    """Deletes files that no checkpoint refers to."""

    paths: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepSharedFiles:
    """Deletes files that checkpoints before this one wrote to the shared folder, except those in
    `kept`: attempts that died before they acknowledged, and earlier masters, have left them.
    """

    before: int
    kept: frozenset[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerRequest:
    """Reports the outcome of a requested checkpoint or savepoint."""

    request: str
    checkpoint: Checkpoint | None  # None: it was never triggered
    failure: str  # empty: it is complete


@dataclass(frozen=True, slots=True, kw_only=True)
class TooManyFailures:
    """Fails the job: more consecutive checkpoints have failed than it tolerates."""

    cause: str


Command: TypeAlias = (
    TriggerCheckpoint
    | DrainTasks
    | NotifyCheckpoint
    | StoreCheckpoint
    | DropCheckpoint
    | DropSnapshots
    | DropFiles
    | SweepSharedFiles
    | AnswerRequest
    | TooManyFailures
)
