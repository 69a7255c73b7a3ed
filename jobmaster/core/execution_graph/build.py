"""Expands a JobGraph to an ExecutionGraph: an ExecutionVertex per parallel subtask, an
IntermediateResult per edge (spec 002).
"""

from __future__ import annotations

from collections.abc import Sequence

from firesteel.common.ids import AttemptId, IdSource
from firesteel.common.job_graph import JobGraph
from firesteel.common.states import ExecutionState, JobEvent
from jobmaster.core.execution_graph.graph import ExecutionGraph
from jobmaster.core.execution_graph.history import StateChange, StatusChange
from jobmaster.core.execution_graph.result import IntermediateResult
from jobmaster.core.execution_graph.vertex import ExecutionJobVertex, ExecutionVertex


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
