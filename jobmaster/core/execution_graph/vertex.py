"""ExecutionVertex (a subtask) and ExecutionJobVertex (all subtasks of a JobVertex)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from firesteel.common.ids import AttemptId
from firesteel.common.job_graph import JobVertex
from firesteel.common.states import ExecutionState
from jobmaster.core.execution_graph.execution import IS_TERMINAL, Execution

if TYPE_CHECKING:
    from jobmaster.core.execution_graph.graph import ExecutionGraph
    from jobmaster.core.execution_graph.result import IntermediateResult
    from jobmaster.core.slot_sharing import ExecutionSlotSharingGroup

STATES = tuple(ExecutionState)
INDEX = {state: index for index, state in enumerate(STATES)}


class ExecutionVertex:
    """One subtask: its current Execution and the prior ones. Its edges are its ExecutionJobVertex'
    results' business.
    """

    __slots__ = ("current", "group", "job_vertex", "prior", "subtask")

    def __init__(
        self,
        job_vertex: ExecutionJobVertex,
        subtask: int,
        attempt_id: AttemptId,
        created: tuple[ExecutionState, int],
    ) -> None:
        self.job_vertex = job_vertex
        self.subtask = subtask
        self.current = Execution(self, 0, attempt_id, created)
        self.prior: list[Execution] | None = None  # oldest first; a list only once there is one
        self.group: ExecutionSlotSharingGroup | None = (
            None  # set by slot sharing: whose slot it runs in
        )

    def new_attempt(self, attempt_id: AttemptId, created: tuple[ExecutionState, int]) -> Execution:
        """Starts over; the current attempt must have ended."""
        if not self.current.terminal:
            raise ValueError(f"a new attempt while the old one lives: {self.current.story()}")
        if self.prior is None:
            self.prior = []
        self.prior.append(self.current)
        old = self.current.state
        self.current = Execution(self, self.current.attempt + 1, attempt_id, created)
        self.job_vertex.count(old, self.current.state)
        return self.current

    @property
    def attempts(self) -> list[Execution]:
        """All attempts, the current one last."""
        return [*(self.prior or ()), self.current]


class ExecutionJobVertex:
    """All subtasks of one JobVertex, with counts per state that are kept up to date step by step."""

    __slots__ = ("counts", "graph", "inputs", "outputs", "vertex", "vertices")

    def __init__(self, graph: ExecutionGraph, vertex: JobVertex) -> None:
        self.graph = graph
        self.vertex = vertex
        self.vertices: list[ExecutionVertex] = []  # by subtask
        self.inputs: list[IntermediateResult] = []  # in the order of the JobGraph's edges
        self.outputs: list[IntermediateResult] = []
        self.counts = [0] * len(STATES)  # current executions per state, by INDEX

    @property
    def parallelism(self) -> int:
        return len(self.vertices)

    def count(self, old: ExecutionState, new: ExecutionState) -> None:
        """An execution went from `old` to `new`: O(1), however many there are."""
        old_index, new_index = old._value_, new._value_  # their places in STATES
        self.counts[old_index] -= 1
        self.counts[new_index] += 1
        graph = self.graph
        graph.counts[old_index] -= 1
        graph.counts[new_index] += 1
        graph.live += IS_TERMINAL[old_index] - IS_TERMINAL[new_index]
        graph.version += 1

    @property
    def aggregate_state(self) -> ExecutionState:
        """The state of the vertex as a whole: the worst news first, else the least advanced of its
        subtasks.
        """
        counts = self.counts
        for state in _AGGREGATE_ORDER:
            if counts[INDEX[state]]:
                return state
        return ExecutionState.CREATED


_S = ExecutionState
_AGGREGATE_ORDER = (
    _S.FAILED, _S.CANCELING, _S.CANCELED, _S.CREATED, _S.SCHEDULED, _S.RECONCILING,
    _S.DEPLOYING, _S.INITIALIZING, _S.RUNNING, _S.FINISHED,
)  # fmt: skip
