"""What the CheckpointCoordinator wants done."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from jobmaster.core.checkpoints.checkpoint import Checkpoint, Kind, Snapshot
from jobmaster.core.execution_graph import Execution


@dataclass(frozen=True, slots=True, kw_only=True)
class TriggerCheckpoint:
    """Begin the checkpoint in these tasks; the barrier reaches the others from there."""

    checkpoint_id: int
    kind: Kind
    executions: tuple[Execution, ...]
    unaligned: bool = False
    aligned_timeout_ms: int | None = None  # None: it stays as it begins
    at_least_once: bool = False
    stops: bool = False  # sources produce nothing after it, unless it is given up
    path: str = ""  # of a savepoint
    # Incremental: the complete checkpoint whose files it may refer to, 0 for none. None: all files
    # are its own.
    base: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DrainTasks:
    """Sources among them end now. Those that have processed all their data say so again."""

    executions: tuple[Execution, ...]
    path: str = ""  # of the savepoint that follows


@dataclass(frozen=True, slots=True, kw_only=True)
class NotifyCheckpoint:
    """Tell these tasks how the checkpoint ended."""

    checkpoint_id: int
    executions: tuple[Execution, ...]
    completed: bool  # False: it was given up
    stops: bool = False  # the tasks end now


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreCheckpoint:
    """Write its `_metadata`, then commit its row. Results in `stored` or `not_stored`, also after
    an ambiguous answer of the database: whoever stores reads it back (invariant 5).
    """

    checkpoint: Checkpoint
    subsumed: tuple[int, ...]  # their rows go when its own is committed
    # Then, directories of older ones that have failed are deleted, with what a process that died
    # has left in them; these are of older ones that may yet be complete. None: none has failed.
    unsettled: frozenset[int] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DropCheckpoint:
    """A newer one has taken its place, and its row is gone: delete its files."""

    checkpoint_id: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DropSnapshots:
    """These belong to no checkpoint: delete their files."""

    checkpoint_id: int
    snapshots: tuple[Snapshot, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class DropFiles:
    """No checkpoint refers to these any more."""

    paths: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepSharedFiles:
    """Delete what checkpoints before this one have written to the shared folder, except these: it
    is of attempts that died before they acknowledged, and of earlier masters.
    """

    before: int
    kept: frozenset[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerRequest:
    """A checkpoint or savepoint that somebody asked for has come to its end."""

    request: str
    checkpoint: Checkpoint | None  # None: it never began
    failure: str  # empty: it is complete


@dataclass(frozen=True, slots=True, kw_only=True)
class TooManyFailures:
    """The job fails: more checkpoints in a row have failed than it tolerates."""

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
