"""One checkpoint, from its trigger to its completion or failure.

COLLECTING ──all have acknowledged──▶ STORING ──its row is committed──▶ COMPLETED
    └───────────── declined, expired, subsumed, job stopped ──────────▶ FAILED
                                         └────── it could not be stored ──▲
"""

from __future__ import annotations

from collections import Counter
from dataclasses import KW_ONLY, dataclass, field
from enum import Enum

from firesteel.common.checkpoints.messages import Snapshot
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


@dataclass(slots=True, eq=False)
class Checkpoint:
    """Created when it is triggered; only the coordinator changes it."""

    checkpoint_id: int
    kind: Kind
    plan: CheckpointPlan
    coordinators: dict[OperatorId, Json]  # snapshots of the operator coordinators
    _: KW_ONLY
    triggered_at: float  # in seconds on the core's clock, as the other times
    expires_at: float
    request: str = ""  # identifies the caller's request
    savepoint_path: str = ""  # the savepoint's directory
    stops: bool = False  # the job ends with it
    drains: bool = False  # it is the last one: all tasks have processed all their data
    rescales: bool = False  # the job restarts from it with a different parallelism
    snapshots: dict[AttemptId, Snapshot] = field(default_factory=dict)
    state: CheckpointState = CheckpointState.COLLECTING
    ended_at: float | None = None
    failure: str = ""  # FAILED only
    # COMPLETED only: rows that each vertex with a source has read since the checkpoint that was
    # complete before; empty: not known.
    records_read: dict[VertexId, int] = field(default_factory=dict)

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
