"""The ExecutionGraph itself: the job's status, its vertices and results, and the index of current
attempts.
"""

from __future__ import annotations

from collections.abc import Iterator

from firesteel.common.ids import AttemptId, IdSource, VertexId
from firesteel.common.job_graph import JobGraph
from firesteel.common.states import JOB_TRANSITIONS, ExecutionState, JobStatus, check_job_transition
from jobmaster.core.execution_graph.counts import STATES, JobCounts
from jobmaster.core.execution_graph.result import IntermediateResult
from jobmaster.core.execution_graph.vertex import Execution, ExecutionJobVertex, ExecutionVertex
from jobmaster.core.slots.slot import ExecutionSlotSharingGroup


class ExecutionGraph:
    """Built by `build`. Its counts follow every change in O(1)."""

    def __init__(self, job_graph: JobGraph, now_ms: int) -> None:
        self.job_graph = job_graph
        self.status = JobStatus.INITIALIZING
        self.timestamps: list[tuple[JobStatus, int]] = [(JobStatus.INITIALIZING, now_ms)]
        self.vertices: list[ExecutionJobVertex] = []  # topological order, as in the JobGraph
        self.by_id: dict[VertexId, ExecutionJobVertex] = {}
        # In the order of the JobGraph's edges; and those that each vertex reads.
        self.results: list[IntermediateResult] = []
        self._inputs: dict[VertexId, list[IntermediateResult]] = {}
        # By slot sharing group and resource group: the vertices whose subtasks share slots.
        self.sharing: dict[tuple[str, str], list[ExecutionJobVertex]] = {}
        # Current executions only: an unknown attempt is a stale one.
        self.attempts: dict[AttemptId, Execution] = {}
        self.counts = JobCounts()

    def transition(self, status: JobStatus, now_ms: int) -> None:
        if status not in JOB_TRANSITIONS[self.status]:
            check_job_transition(self.story(), self.status, status)
        self.status = status
        self.timestamps.append((status, now_ms))
        self.counts.version += 1

    def add_result(self, result: IntermediateResult) -> None:
        self.results.append(result)
        self._inputs.setdefault(result.edge.target_vertex_id, []).append(result)

    def executions(self) -> Iterator[Execution]:
        """All current executions, vertex by vertex."""
        for job_vertex in self.vertices:
            for vertex in job_vertex.vertices:
                yield vertex.current

    def execution_vertices(self) -> Iterator[ExecutionVertex]:
        for job_vertex in self.vertices:
            yield from job_vertex.vertices

    def vertices_in(self, group: ExecutionSlotSharingGroup) -> list[ExecutionVertex]:
        """The subtasks that share this group's slot."""
        sharing, resource, subtask = group.key
        return [
            job_vertex.vertices[subtask]
            for job_vertex in self.sharing[sharing, resource]
            if subtask < len(job_vertex.vertices)
        ]

    def inputs_of(self, vertex_id: VertexId) -> list[IntermediateResult]:
        """The results that this vertex reads."""
        return self._inputs.get(vertex_id, [])

    @property
    def live(self) -> int:
        """Current executions that are not terminal."""
        return self.counts.live

    @property
    def version(self) -> int:
        """Increases with every change of any state."""
        return self.counts.version

    def count(self, state: ExecutionState) -> int:
        return self.counts.by_state[state.value]

    def tasks_by_state(self) -> dict[str, int]:
        """Only the states that some task is in."""
        counts = self.counts.by_state
        return {state.name: count for state, count in zip(STATES, counts, strict=True) if count}

    def start_over(self, ids: IdSource, now_ms: int) -> None:
        """A new attempt for every subtask; all must have ended."""
        self.attempts.clear()
        created = (ExecutionState.CREATED, now_ms)
        for vertex in self.execution_vertices():
            execution = vertex.new_attempt(AttemptId(ids.next(AttemptId)), created)
            self.attempts[execution.attempt_id] = execution

    @property
    def end_ms(self) -> int:
        """When the job reached its terminal state; 0 while it has not."""
        return self.timestamps[-1][1] if self.status.terminal else 0

    def story(self) -> str:
        steps = ", ".join(f"{status.name} at {at_ms}" for status, at_ms in self.timestamps)
        job = self.job_graph
        return f"{job.name!r} [{job.job_id}] ({steps}; tasks {self.tasks_by_state()})"
