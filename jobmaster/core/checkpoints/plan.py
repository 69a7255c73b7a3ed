"""Plans a checkpoint: the tasks to trigger, the tasks that acknowledge, and the finished ones (spec
001, "Triggering Checkpoints After Tasks Finished" and appendix 1).

Barriers start at the running tasks that have no running producer. Usually these are the sources;
once sources have finished, they are the consumers of finished tasks.
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
    """The tasks are in a state in which no checkpoint can be taken; the message says why."""


class CheckpointPlan(NamedTuple):
    to_trigger: tuple[Execution, ...]
    to_acknowledge: dict[AttemptId, Execution]  # all running tasks
    finished: frozenset[VertexId]  # vertices of which every subtask has finished
    # Other vertices with finished subtasks.
    finished_subtasks: dict[VertexId, tuple[int, ...]]


def plan_checkpoint(graph: ExecutionGraph, *, after_tasks_finish: bool) -> CheckpointPlan:
    """Plans a checkpoint of the current graph. Takes O(subtasks) time. Raises NotPossible.

    With `after_tasks_finish`, a checkpoint is possible although some tasks have finished.
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
    """Yields the running tasks without a running producer, in O(subtasks): edges between subtasks
    are inspected only where needed, and there are no more of those than subtasks.
    """
    for vertex in graph.vertices:
        if vertex.counts[_RUNNING.value] and not _all_are_fed(graph, vertex):
            yield from _unfed(graph, vertex)


def _all_are_fed(graph: ExecutionGraph, vertex: ExecutionJobVertex) -> bool:
    """Whether every subtask has a running producer, judged by the counts of its producers alone."""
    for result in graph.inputs_of(vertex.vertex.vertex_id):
        running = result.producer.counts[_RUNNING.value]
        if result.edge.pattern is DistributionPattern.ALL_TO_ALL:
            if running:
                return True
        elif running == result.producer.parallelism:
            return True
    return False


def _unfed(graph: ExecutionGraph, vertex: ExecutionJobVertex) -> Iterator[Execution]:
    # All producers of ALL_TO_ALL edges have finished, or every subtask would have one.
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
