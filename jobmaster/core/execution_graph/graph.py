"""The ExecutionGraph: the job's status, its vertices and results, and the index of current
attempts.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence

from firesteel.common.ids import AttemptId, IdSource, ResultId, VertexId
from firesteel.common.job_graph import JobGraph
from firesteel.common.states import ExecutionState, JobEvent, JobStatus, next_job_status
from jobmaster.core.execution_graph.history import STATES, JobCounts, StateChange, StatusChange
from jobmaster.core.execution_graph.result import IntermediateResult
from jobmaster.core.execution_graph.vertex import Execution, ExecutionJobVertex, ExecutionVertex
from jobmaster.core.slots.slot import ExecutionSlotSharingGroup

_STORY_STEPS = 64


class ExecutionGraph:
    """Created by `build`. Its counts follow every change in O(1)."""

    def __init__(
        self,
        job_graph: JobGraph,
        now_ms: int,
        *,
        first_attempt: int = 0,
        earlier: Sequence[StatusChange] = (),
    ) -> None:
        """Attempts that start here have the number `first_attempt` or a higher one. `earlier` has
        the job's statuses under earlier masters.
        """
        self.job_graph = job_graph
        self.first_attempt = first_attempt
        self.status = JobStatus.INITIALIZING
        # In order; the first entry is the job's start.
        self.timestamps = list(earlier)
        if not earlier or earlier[-1].status is not JobStatus.INITIALIZING:
            self.timestamps.append(StatusChange(JobStatus.INITIALIZING, now_ms))
        self.vertices: list[ExecutionJobVertex] = []  # topological order, as in the JobGraph
        self.by_id: dict[VertexId, ExecutionJobVertex] = {}
        # In the order of the JobGraph's edges; and those that each vertex reads and produces.
        self.results: list[IntermediateResult] = []
        self._inputs: dict[VertexId, list[IntermediateResult]] = {}
        self._outputs: dict[VertexId, list[IntermediateResult]] = {}
        self._results: dict[ResultId, IntermediateResult] = {}
        # By slot sharing group and resource group: the vertices whose subtasks share slots.
        self.sharing: dict[tuple[str, str], list[ExecutionJobVertex]] = {}
        # Current executions only: an unknown attempt is stale.
        self.attempts: dict[AttemptId, Execution] = {}
        self.counts = JobCounts()
        self._story = deque([f"INITIALIZING at {now_ms}"], maxlen=_STORY_STEPS)

    def apply(self, event: JobEvent, now_ms: int, cause: str = "") -> None:
        """Moves the job to the status that the event leads to. Raises IllegalTransition."""
        self.status = next_job_status(str(self), self.status, event)
        self.timestamps.append(StatusChange(self.status, now_ms))
        because = f": {cause}" if cause else ""
        self._story.append(f"{self.status.name} at {now_ms} by {event.name}{because}")
        self.counts.version += 1

    def add_result(self, result: IntermediateResult) -> None:
        self.results.append(result)
        self._inputs.setdefault(result.edge.target_vertex_id, []).append(result)
        self._outputs.setdefault(result.edge.source_vertex_id, []).append(result)
        self._results[result.edge.result_id] = result

    def executions(self) -> Iterator[Execution]:
        """Yields all current executions, vertex by vertex."""
        for job_vertex in self.vertices:
            for vertex in job_vertex.vertices:
                yield vertex.current

    def execution_vertices(self) -> Iterator[ExecutionVertex]:
        for job_vertex in self.vertices:
            yield from job_vertex.vertices

    def vertices_in(self, group: ExecutionSlotSharingGroup) -> list[ExecutionVertex]:
        """Returns the subtasks that share this group's slot."""
        sharing, resource, subtask = group.key
        return [
            job_vertex.vertices[subtask]
            for job_vertex in self.sharing[sharing, resource]
            if subtask < len(job_vertex.vertices)
        ]

    def inputs_of(self, vertex_id: VertexId) -> list[IntermediateResult]:
        """Returns the results that this vertex reads."""
        return self._inputs.get(vertex_id, [])

    def outputs_of(self, vertex_id: VertexId) -> list[IntermediateResult]:
        """Returns the results that this vertex produces."""
        return self._outputs.get(vertex_id, [])

    def result(self, result_id: ResultId) -> IntermediateResult:
        return self._results[result_id]

    @property
    def live(self) -> int:
        """The number of current executions that are not terminal."""
        return self.counts.live

    @property
    def version(self) -> int:
        """Increases with every change of any state."""
        return self.counts.version

    def count(self, state: ExecutionState) -> int:
        return self.counts.by_state[state.value]

    def tasks_by_state(self) -> dict[str, int]:
        """Returns the number of tasks in each state that occurs."""
        counts = self.counts.by_state
        return {state.name: count for state, count in zip(STATES, counts, strict=True) if count}

    def subtask(self, vertex_id: VertexId, subtask: int) -> ExecutionVertex | None:
        job_vertex = self.by_id.get(vertex_id)
        if job_vertex is None or not 0 <= subtask < len(job_vertex.vertices):
            return None
        return job_vertex.vertices[subtask]

    def adopt(
        self, vertex: ExecutionVertex, attempt_id: AttemptId, attempt: int, now_ms: int
    ) -> Execution:
        """Makes an attempt that an earlier master started the current one. It is RECONCILING; the
        previous one was RECONCILING too or has ended.
        """
        del self.attempts[vertex.current.attempt_id]
        execution = vertex.adopt(attempt_id, attempt, now_ms)
        self.attempts[attempt_id] = execution
        return execution

    def start_over(self, vertices: Iterable[ExecutionVertex], ids: IdSource, now_ms: int) -> None:
        """Creates a new attempt for each of these subtasks, whose attempts must all have ended.
        Those of one vertex get the same number, even if only some of them were adopted: sinks treat
        data of lower numbers as abandoned.
        """
        created = StateChange(ExecutionState.CREATED, now_ms)
        vertices = list(vertices)
        first: dict[VertexId, int] = {}
        for vertex in vertices:
            vertex_id = vertex.job_vertex.vertex.vertex_id
            first[vertex_id] = max(
                first.get(vertex_id, self.first_attempt), vertex.current.attempt + 1
            )
        for vertex in vertices:
            del self.attempts[vertex.current.attempt_id]
            execution = vertex.new_attempt(
                AttemptId(ids.next(AttemptId)),
                created,
                first=first[vertex.job_vertex.vertex.vertex_id],
            )
            self.attempts[execution.attempt_id] = execution
            for result in self.outputs_of(vertex.job_vertex.vertex.vertex_id):
                result.lost.discard(vertex.subtask)

    @property
    def end_ms(self) -> int:
        """When the job reached its terminal state; 0 if it has not."""
        return self.timestamps[-1].timestamp_ms if self.status.terminal else 0

    def story(self) -> list[str]:
        """Returns the job's last transitions with time, event and cause."""
        return list(self._story)

    def __str__(self) -> str:
        job = self.job_graph
        steps = ", ".join(self._story)
        return f"{job.name!r} [{job.job_id}] ({steps}; tasks {self.tasks_by_state()})"
