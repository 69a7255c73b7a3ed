"""Who takes part in a checkpoint: the tasks to trigger, those that acknowledge, and what has
finished (spec 001, "Triggering Checkpoints After Tasks Finished" and appendix 1).

A barrier starts at the tasks that run and that no running task feeds. Usually these are the
sources; once sources have finished, it is whoever they fed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from firesteel.common.ids import AttemptId, VertexId
from firesteel.common.job_graph import DistributionPattern
from firesteel.common.states import ExecutionState
from jobmaster.core.execution_graph import (
    Execution,
    ExecutionGraph,
    ExecutionJobVertex,
    IntermediateResult,
)

_RUNNING, _FINISHED = ExecutionState.RUNNING, ExecutionState.FINISHED


class NotPossible(Exception):
    """No checkpoint can be taken as the tasks are; the message says why."""


class CheckpointPlan(NamedTuple):
    to_trigger: tuple[Execution, ...]
    to_acknowledge: dict[AttemptId, Execution]  # all that run
    finished: frozenset[VertexId]  # of which every subtask has finished
    # Of the other vertices: the subtasks that have finished, if there are any.
    finished_subtasks: dict[VertexId, tuple[int, ...]]


def plan_checkpoint(graph: ExecutionGraph, *, after_tasks_finish: bool) -> CheckpointPlan:
    """The plan for a checkpoint of the graph as it is. Takes O(subtasks) time. Raises NotPossible.

    `after_tasks_finish`: whether a checkpoint is taken although some tasks have finished.
    """
    _check(graph, after_tasks_finish=after_tasks_finish)
    to_acknowledge: dict[AttemptId, Execution] = {}
    finished: set[VertexId] = set()
    finished_subtasks: dict[VertexId, tuple[int, ...]] = {}
    for vertex in graph.vertices:
        running = vertex.counts[_RUNNING.value]
        if running:
            for subtask in vertex.vertices:
                execution = subtask.current
                if execution.state is _RUNNING:
                    to_acknowledge[execution.attempt_id] = execution
        vertex_id = vertex.vertex.vertex_id
        if running == 0:
            finished.add(vertex_id)
        elif running < vertex.parallelism:
            finished_subtasks[vertex_id] = tuple(
                subtask.subtask for subtask in vertex.vertices if subtask.current.state is _FINISHED
            )
    return CheckpointPlan(
        to_trigger=tuple(tasks_to_trigger(graph)),
        to_acknowledge=to_acknowledge,
        finished=frozenset(finished),
        finished_subtasks=finished_subtasks,
    )


def tasks_to_trigger(graph: ExecutionGraph) -> Iterator[Execution]:
    """The running tasks without a running producer, in O(subtasks): the edges between subtasks are
    looked at only where it matters, and there are no more of those than subtasks.
    """
    for vertex in graph.vertices:
        if vertex.counts[_RUNNING.value] and not _all_are_fed(graph, vertex):
            yield from _unfed(graph, vertex)


def _all_are_fed(graph: ExecutionGraph, vertex: ExecutionJobVertex) -> bool:
    """Whether every subtask has a running producer, by the counts of its producers alone."""
    for result in graph.inputs_of(vertex.vertex.vertex_id):
        running = result.producer.counts[_RUNNING.value]
        if result.edge.pattern is DistributionPattern.ALL_TO_ALL:
            if running:
                return True
        elif running == result.producer.parallelism:
            return True
    return False


def _unfed(graph: ExecutionGraph, vertex: ExecutionJobVertex) -> Iterator[Execution]:
    # The producers of ALL_TO_ALL edges have all finished, or every subtask would be fed.
    pointwise = [
        result
        for result in graph.inputs_of(vertex.vertex.vertex_id)
        if result.edge.pattern is DistributionPattern.POINTWISE
    ]
    for subtask in vertex.vertices:
        execution = subtask.current
        if execution.state is _RUNNING and not (pointwise and _is_fed(pointwise, subtask.subtask)):
            yield execution


def _is_fed(pointwise: Sequence[IntermediateResult], subtask: int) -> bool:
    return any(
        result.producer.vertices[producer].current.state is _RUNNING
        for result in pointwise
        for producer in result.producers_of(subtask)
    )


def _check(graph: ExecutionGraph, *, after_tasks_finish: bool) -> None:
    running, finished = graph.count(_RUNNING), graph.count(_FINISHED)
    if running + finished < len(graph.attempts):
        other = next(e for e in graph.executions() if e.state not in (_RUNNING, _FINISHED))
        raise NotPossible(f"task {other.name} is {other.state.name}, not RUNNING")
    if not running:
        raise NotPossible("all tasks have finished")
    if finished and not after_tasks_finish:
        done = next(e for e in graph.executions() if e.state is _FINISHED)
        raise NotPossible(
            f"task {done.name} has finished, and"
            " execution.checkpointing.checkpoints-after-tasks-finish.enabled is false"
        )
