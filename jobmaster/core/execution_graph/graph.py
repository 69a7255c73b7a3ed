"""The ExecutionGraph itself: the job's status, its vertices and results, and the index of current
attempts.
"""

from __future__ import annotations

from collections.abc import Iterator

from firesteel.common.ids import AttemptId, IdSource, VertexId
from firesteel.common.job_graph import JobGraph
from firesteel.common.states import JOB_TRANSITIONS, ExecutionState, JobStatus, check_job_transition
from jobmaster.core.execution_graph.execution import Execution
from jobmaster.core.execution_graph.result import IntermediateResult
from jobmaster.core.execution_graph.vertex import INDEX, STATES, ExecutionJobVertex, ExecutionVertex


class ExecutionGraph:
    """Built by `build`. `counts`, `live` and `version` follow every change in O(1)."""

    def __init__(self, job_graph: JobGraph, now_ms: int) -> None:
        self.job_graph = job_graph
        self.status = JobStatus.INITIALIZING
        self.timestamps: list[tuple[JobStatus, int]] = [(JobStatus.INITIALIZING, now_ms)]
        self.vertices: list[ExecutionJobVertex] = []  # topological order, as in the JobGraph
        self.by_id: dict[VertexId, ExecutionJobVertex] = {}
        self.results: list[IntermediateResult] = []
        self.attempts: dict[
            AttemptId, Execution
        ] = {}  # current executions only: an unknown attempt is a stale one
        self.counts = [0] * len(STATES)  # current executions per state
        self.live = 0  # current executions that are not terminal
        self.version = 0  # counts every change of any state

    def transition(self, status: JobStatus, now_ms: int) -> None:
        if status not in JOB_TRANSITIONS[self.status]:
            check_job_transition(self.story(), self.status, status)
        self.status = status
        self.timestamps.append((status, now_ms))
        self.version += 1

    def executions(self) -> Iterator[Execution]:
        """All current executions, vertex by vertex."""
        for job_vertex in self.vertices:
            for vertex in job_vertex.vertices:
                yield vertex.current

    def execution_vertices(self) -> Iterator[ExecutionVertex]:
        for job_vertex in self.vertices:
            yield from job_vertex.vertices

    def count(self, state: ExecutionState) -> int:
        return self.counts[INDEX[state]]

    def tasks_by_state(self) -> dict[str, int]:
        """Only the states that some task is in."""
        return {
            state.name: count for state, count in zip(STATES, self.counts, strict=True) if count
        }

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
        return f"{self.job_graph.name!r} [{self.job_graph.job_id}] ({steps}; tasks {self.tasks_by_state()})"
