"""The messages of tasks to the JobMaster about checkpoints."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from firesteel.common.checkpoints.state import OperatorSnapshot, is_shared
from firesteel.common.ids import AttemptId, OperatorId
from firesteel.common.operator_messages import HeldSplit


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """A task's part of a checkpoint."""

    operators: tuple[OperatorSnapshot, ...] = ()  # only operators with state
    operators_finished: bool = False  # finish() was called on all operators before the snapshot
    start_delay_ms: float = 0.0  # from the trigger, by the JobMaster's clock, to the first barrier
    alignment_ms: float = 0.0  # from the first barrier to the snapshot
    sync_ms: float = 0.0
    async_ms: float = 0.0
    # By the attempt's source before the barrier, before filters; None: the task has none.
    records_read: int | None = None

    @property
    def size_bytes(self) -> int:
        return sum(operator.size_bytes for operator in self.operators)

    @property
    def union_lists(self) -> frozenset[OperatorId]:
        """Operators with union list state: all of their subtasks must take part (spec 001)."""
        return frozenset(o.operator_id for o in self.operators if o.union_lists)

    @property
    def shared_files(self) -> tuple[str, ...]:
        """Files that other checkpoints may refer to."""
        return tuple(
            table.file.path
            for operator in self.operators
            for database in operator.databases
            for table in database.tables
            if is_shared(table.file.path)
        )

    @property
    def files(self) -> tuple[str, ...]:
        return tuple(file.path for operator in self.operators for file in operator.files)


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointAcknowledged:
    """The task has written its part of a checkpoint."""

    attempt_id: AttemptId
    checkpoint_id: int
    snapshot: Snapshot


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointDeclined:
    """The task could not write its part of the checkpoint, and has left no files."""

    attempt_id: AttemptId
    checkpoint_id: int
    cause: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DataEnded:
    """The task has processed all its data, and needs one more checkpoint that contains it."""

    attempt_id: AttemptId


class Stopping(NamedTuple):
    """The job is to end with a savepoint."""

    savepoint_path: str
    drains: bool  # the sources end first


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskHeld:
    """Reports what an adopted task holds, once it has read all messages of earlier JobMasters."""

    attempt_id: AttemptId
    splits: Mapping[OperatorId, Sequence[HeldSplit]]  # by source: all assigned splits
    # Checkpoints in progress whose outcome the task does not know.
    open_checkpoints: tuple[int, ...]
    stops_with: int | None  # its source waits for the outcome of this savepoint
    data_ended: bool
    stops: Stopping | None = None  # None: as far as the task knows, the job is not being stopped


CheckpointAnswer: TypeAlias = CheckpointAcknowledged | CheckpointDeclined | DataEnded | TaskHeld
