"""One checkpoint, from its trigger to its completion or failure.

COLLECTING ──all have acknowledged──▶ STORING ──its row is committed──▶ COMPLETED
    └───────────── declined, expired, subsumed, job stopped ──────────▶ FAILED
                                         └────── it could not be stored ──▲
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from enum import Enum

from firesteel.common.checkpoints.state import OperatorSnapshot, is_shared
from firesteel.common.ids import AttemptId, OperatorId, VertexId
from firesteel.common.states import IllegalTransition
from jobmaster.core.checkpoints.plan import CheckpointPlan
from jobmaster.core.coordinators.base import Json


class Kind(Enum):
    CHECKPOINT = "checkpoint"  # kept according to the retention
    SAVEPOINT = "savepoint"  # owned by the caller


class CheckpointState(Enum):
    COLLECTING = 0
    STORING = 1
    COMPLETED = 2
    FAILED = 3


_S = CheckpointState
TRANSITIONS: dict[CheckpointState, frozenset[CheckpointState]] = {
    _S.COLLECTING: frozenset({_S.STORING, _S.FAILED}),
    _S.STORING: frozenset({_S.COMPLETED, _S.FAILED}),
    _S.COMPLETED: frozenset(),
    _S.FAILED: frozenset(),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """A task's acknowledgement of a checkpoint."""

    operators: tuple[OperatorSnapshot, ...] = ()  # only operators with state
    operators_finished: bool = False  # finish() was called on all operators before the snapshot
    start_delay_ms: float = 0.0
    alignment_ms: float = 0.0
    sync_ms: float = 0.0
    async_ms: float = 0.0

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


class Checkpoint:
    """Created when it is triggered; only the coordinator changes it."""

    def __init__(
        self,
        checkpoint_id: int,
        kind: Kind,
        plan: CheckpointPlan,
        coordinators: dict[OperatorId, Json],
        *,
        triggered_at: float,
        expires_at: float,
        request: str = "",
        savepoint_path: str = "",
        stops: bool = False,
        drains: bool = False,
    ) -> None:
        """Times are in seconds on the core's clock. `request` identifies the caller's request;
        `savepoint_path` is the savepoint's directory; with `stops` the job ends with it; with
        `drains` it is the last one, and all tasks have processed all their data.
        """
        self.checkpoint_id = checkpoint_id
        self.kind = kind
        self.plan = plan
        self.coordinators = coordinators  # snapshots of the operator coordinators
        self.triggered_at = triggered_at
        self.expires_at = expires_at
        self.request = request
        self.savepoint_path = savepoint_path
        self.stops = stops
        self.drains = drains
        self.snapshots: dict[AttemptId, Snapshot] = {}
        self.state = CheckpointState.COLLECTING
        self.ended_at: float | None = None
        self.failure = ""  # FAILED only

    def become(self, state: CheckpointState) -> None:
        if state not in TRANSITIONS[self.state]:
            raise IllegalTransition(f"{self}: {self.state.name} -> {state.name} is illegal")
        self.state = state

    @property
    def complete(self) -> bool:
        """Whether every task has acknowledged."""
        return len(self.snapshots) == len(self.plan.to_acknowledge)

    @property
    def size_bytes(self) -> int:
        """The number of bytes that it has written."""
        return sum(snapshot.size_bytes for snapshot in self.snapshots.values())

    @property
    def shared_files(self) -> tuple[str, ...]:
        return tuple(path for found in self.snapshots.values() for path in found.shared_files)

    def duration_s(self, now: float) -> float:
        return (now if self.ended_at is None else self.ended_at) - self.triggered_at

    def awaits(self, attempt_id: AttemptId) -> bool:
        """Whether the task takes part and has not acknowledged."""
        return attempt_id in self.plan.to_acknowledge and attempt_id not in self.snapshots

    @property
    def finished_before(self) -> frozenset[VertexId]:
        """Vertices that had finished in the restored checkpoint. Their tasks run again to signal
        the end of input to their consumers (invariant 15).
        """
        return frozenset(
            self.plan.to_acknowledge[attempt_id].vertex.job_vertex.vertex.vertex_id
            for attempt_id, snapshot in self.snapshots.items()
            if any(operator.finished for operator in snapshot.operators)
        )

    def torn_union_list(self) -> str:
        """Returns the operator whose union list is incomplete, or will be when the next checkpoint
        starts, because some but not all of its subtasks have finished; empty if there is none.
        Subtasks whose finish() was called end with this checkpoint, and their part with them (spec
        001, "UnionListState").
        """
        finishing = Counter(
            self.plan.to_acknowledge[attempt_id].vertex.job_vertex.vertex.vertex_id
            for attempt_id, snapshot in self.snapshots.items()
            if snapshot.operators_finished
        )
        for attempt_id, snapshot in self.snapshots.items():
            if not snapshot.union_lists:
                continue
            vertex = self.plan.to_acknowledge[attempt_id].vertex.job_vertex.vertex
            if (
                self._finished_in(vertex.vertex_id)
                or 0 < finishing[vertex.vertex_id] < vertex.parallelism
            ):
                names = [
                    operator.name
                    for operator in vertex.operators
                    if operator.operator_id in snapshot.union_lists
                ]
                return ", ".join(names)
        return ""

    def _finished_in(self, vertex_id: VertexId) -> tuple[int, ...]:
        return self.plan.finished_subtasks.get(vertex_id, ())

    def __str__(self) -> str:
        return f"{self.kind.value} {self.checkpoint_id}"
