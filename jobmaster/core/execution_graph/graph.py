"""The ExecutionGraph: the job's status, its vertices and results, and the index of current
attempts. `build` expands a JobGraph to it: an ExecutionVertex per parallel subtask, an
IntermediateResult per edge (spec 002).

`share_slots` decides which subtasks share a slot, and how large the slot must be (spec 003, "Share
Slot"; spec 004). Subtask i of every vertex in one slot sharing group and one resource group runs in
one slot. So a job needs, per such pair of groups, as many slots as its highest parallelism, and
tasks of one vertex never share a slot. Vertices of a co-location group are in one slot sharing
group, so they always share slots.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence

from firesteel.common.ids import AttemptId, IdSource, ResultId, VertexId
from firesteel.common.job_graph import JobGraph, JobVertex
from firesteel.common.resources import UNKNOWN, ResourceProfile
from firesteel.common.states import ExecutionState, JobEvent, JobStatus, next_job_status
from jobmaster.core.execution_graph.vertex import (
    STATES,
    Execution,
    ExecutionJobVertex,
    ExecutionVertex,
    IntermediateResult,
    JobCounts,
    StateChange,
    StatusChange,
)
from jobmaster.core.slots.slot import ExecutionSlotSharingGroup, GroupKey

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

    def rescale(self, by_vertex: Mapping[VertexId, int], ids: IdSource, now_ms: int) -> None:
        """Changes the parallelism of these vertices, and creates a new attempt for each subtask of
        the job. All attempts must have ended, and their slots are released. New attempts of a
        vertex have higher numbers than any before, including those of subtasks that are removed.
        """
        groups = (vertex.group for vertex in self.execution_vertices())
        previous = {group.key: group for group in groups if group is not None}
        self.job_graph = self.job_graph.with_parallelism(by_vertex)
        created = StateChange(ExecutionState.CREATED, now_ms)
        self.attempts.clear()
        for job_vertex, vertex in zip(self.vertices, self.job_graph.vertices, strict=True):
            number = max(v.current.attempt + 1 for v in job_vertex.vertices)
            job_vertex.resize(vertex, ids, created, max(number, self.first_attempt))
            for execution_vertex in job_vertex.vertices:
                self.attempts[execution_vertex.current.attempt_id] = execution_vertex.current
        for result in self.results:
            result.resize()
        for group in share_slots(self):
            if (before := previous.get(group.key)) is not None:
                assert not before.wanted, f"{before.key} still has a slot: {self}"
                group.previous_allocation_id = before.previous_allocation_id
                group.previous_task_executor_id = before.previous_task_executor_id

    def resize_in_place(
        self, by_vertex: Mapping[VertexId, int], ids: IdSource, now_ms: int
    ) -> list[ExecutionVertex]:
        """Changes the parallelism of vertices that exchange no data and share no slots with others.
        Surplus subtasks have ended; the other ones keep their attempts. Returns the new ones.
        """
        self.job_graph = self.job_graph.with_parallelism(by_vertex)
        profiles = dict(slot_profiles(self.job_graph.vertices))
        created = StateChange(ExecutionState.CREATED, now_ms)
        added: list[ExecutionVertex] = []
        for job_vertex, vertex in zip(self.vertices, self.job_graph.vertices, strict=True):
            before = job_vertex.parallelism
            for surplus in job_vertex.vertices[vertex.parallelism :]:
                del self.attempts[surplus.current.attempt_id]
            number = max(v.current.attempt + 1 for v in job_vertex.vertices)
            job_vertex.resize_in_place(vertex, ids, created, number)
            for new in job_vertex.vertices[before:]:
                key = GroupKey(vertex.slot_sharing_group, vertex.resource_group, new.subtask)
                new.group = ExecutionSlotSharingGroup(key, profiles[key])
                self.attempts[new.current.attempt_id] = new.current
                added.append(new)
        return added

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


class InvalidJobGraph(Exception):
    """The client sent a graph that cannot be expanded; the message names the vertex or edge."""


def build(
    job_graph: JobGraph,
    ids: IdSource,
    now_ms: int,
    *,
    first_attempt: int = 0,
    earlier: Sequence[StatusChange] = (),
) -> ExecutionGraph:
    """Expands the graph, in O(subtasks) time and memory, and leaves it CREATED. `first_attempt` is
    the number of each subtask's first attempt; `earlier` has the job's statuses so far. Raises
    InvalidJobGraph.
    """
    check(job_graph)
    graph = ExecutionGraph(job_graph, now_ms, first_attempt=first_attempt, earlier=earlier)
    created = StateChange(ExecutionState.CREATED, now_ms)
    attempts = graph.attempts
    for vertex in job_graph.vertices:
        job_vertex = ExecutionJobVertex(vertex, graph.counts)
        for subtask in range(vertex.parallelism):
            attempt_id = AttemptId(ids.next())
            execution_vertex = ExecutionVertex(
                job_vertex, subtask, attempt_id, created, first_attempt=first_attempt
            )
            job_vertex.vertices.append(execution_vertex)
            attempts[attempt_id] = execution_vertex.current
        job_vertex.counts[ExecutionState.CREATED.value] = vertex.parallelism
        graph.vertices.append(job_vertex)
        graph.by_id[vertex.vertex_id] = job_vertex
    graph.counts.by_state[ExecutionState.CREATED.value] = graph.counts.live = len(attempts)
    for edge in job_graph.edges:
        producer, consumer = graph.by_id[edge.source_vertex_id], graph.by_id[edge.target_vertex_id]
        graph.add_result(IntermediateResult(edge, producer, consumer))
    graph.apply(JobEvent.BUILD, now_ms)
    return graph


def check(job_graph: JobGraph) -> None:
    """Raises InvalidJobGraph unless vertices are unique and in topological order, and edges connect
    existing vertices.
    """
    if not job_graph.vertices:
        raise InvalidJobGraph(f"the job {job_graph.name!r} has no vertices: nothing would run")
    position = {vertex.vertex_id: index for index, vertex in enumerate(job_graph.vertices)}
    if len(position) != len(job_graph.vertices):
        raise InvalidJobGraph(f"the job {job_graph.name!r} has two vertices with the same id")
    for vertex in job_graph.vertices:
        if not 1 <= vertex.parallelism <= vertex.max_parallelism:
            raise InvalidJobGraph(
                f"vertex {vertex.name!r} has parallelism {vertex.parallelism}; it must be between "
                f"1 and its max parallelism {vertex.max_parallelism}"
            )
        if not vertex.operators:
            raise InvalidJobGraph(f"vertex {vertex.name!r} has no operators")
    for edge in job_graph.edges:
        for vertex_id in (edge.source_vertex_id, edge.target_vertex_id):
            if vertex_id not in position:
                raise InvalidJobGraph(
                    f"edge {edge.result_id} names vertex {vertex_id}, which is not in the job"
                )
        if position[edge.source_vertex_id] >= position[edge.target_vertex_id]:
            raise InvalidJobGraph(
                f"edge {edge.result_id} goes backwards: vertices must be in topological order"
            )
    if len({edge.result_id for edge in job_graph.edges}) != len(job_graph.edges):
        raise InvalidJobGraph(f"the job {job_graph.name!r} has two edges with the same result id")


def share_slots(graph: ExecutionGraph) -> list[ExecutionSlotSharingGroup]:
    """Assigns every ExecutionVertex to its group. Raises InvalidJobGraph if a co-location group
    spans groups.
    """
    _check_co_location(graph)
    families = graph.sharing
    families.clear()
    for job_vertex in graph.vertices:
        vertex = job_vertex.vertex
        families.setdefault((vertex.slot_sharing_group, vertex.resource_group), []).append(
            job_vertex
        )
    groups: list[ExecutionSlotSharingGroup] = []
    for key, profile in slot_profiles(graph.job_graph.vertices):
        group = ExecutionSlotSharingGroup(key, profile)
        for job_vertex in families[key.slot_sharing_group, key.resource_group]:
            if key.subtask < job_vertex.parallelism:
                job_vertex.vertices[key.subtask].group = group
        groups.append(group)
    return groups


def slot_profiles(vertices: Iterable[JobVertex]) -> Iterator[tuple[GroupKey, ResourceProfile]]:
    """Yields the groups of subtasks that share a slot, with the profile of the slot."""
    families: dict[tuple[str, str], list[JobVertex]] = {}
    for vertex in vertices:
        families.setdefault((vertex.slot_sharing_group, vertex.resource_group), []).append(vertex)
    for (sharing, resource), members in families.items():
        profiles = _Profiles(members)
        for subtask in range(max(vertex.parallelism for vertex in members)):
            yield GroupKey(sharing, resource, subtask), profiles(subtask)


class _Profiles:
    """The slot's profile by subtask. It changes only at the parallelism of a vertex, so it is
    computed once per range.
    """

    def __init__(self, vertices: list[JobVertex]) -> None:
        self._vertices = vertices
        self._cache: dict[int, ResourceProfile] = {}

    def __call__(self, subtask: int) -> ResourceProfile:
        # The smallest parallelism above the subtask identifies all subtasks with the same set of
        # vertices.
        bound = min(v.parallelism for v in self._vertices if v.parallelism > subtask)
        profile = self._cache.get(bound)
        if profile is None:
            profile = UNKNOWN
            for vertex in self._vertices:
                if vertex.parallelism > subtask:
                    profile = profile + vertex.resources
            self._cache[bound] = profile
        return profile


def _check_co_location(graph: ExecutionGraph) -> None:
    homes: dict[str, ExecutionJobVertex] = {}
    for job_vertex in graph.vertices:
        vertex = job_vertex.vertex
        if not vertex.co_location_group:
            continue
        first = homes.setdefault(vertex.co_location_group, job_vertex).vertex
        if (first.slot_sharing_group, first.resource_group) != (
            vertex.slot_sharing_group,
            vertex.resource_group,
        ):
            raise InvalidJobGraph(
                f"co-location group {vertex.co_location_group!r} has {first.name!r} and "
                f"{vertex.name!r}, which are in different slot sharing or resource groups and so "
                "can never share a slot; give them the same groups"
            )
