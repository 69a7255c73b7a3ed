"""Partitions of BLOCKING results: which TaskExecutor stores them, when they are lost, and when they
are released. This follows from the graph: a partition is stored where its producer has finished.

A partition is released when all consumers of its result have finished and none of them is about to
restart. From then on it counts as lost: if a consumer restarts after all, its producer restarts
too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from firesteel.common.ids import TaskExecutorId
from firesteel.common.job_graph import ResultPartitionId, ResultType
from firesteel.common.states import ExecutionState
from jobmaster.core.commands import Command, ReleasePartitions
from jobmaster.core.execution_graph import (
    Execution,
    ExecutionGraph,
    ExecutionVertex,
    IntermediateResult,
)

_FINISHED = ExecutionState.FINISHED


class Partitions:
    def __init__(self, graph: ExecutionGraph) -> None:
        self._graph = graph

    def kept_by(self, task_executor_id: TaskExecutorId) -> tuple[ResultPartitionId, ...]:
        """Returns the stored partitions of current attempts. O(producers)."""
        return tuple(
            ResultPartitionId(result.edge.result_id, producer, execution.attempt)
            for result in self._blocking()
            for producer, vertex in enumerate(result.producer.vertices)
            if (execution := vertex.current).state is _FINISHED
            and execution.slot is not None
            and execution.slot.task_executor_id == task_executor_id
            and producer not in result.lost
        )

    def lose(self, partitions: Iterable[ResultPartitionId]) -> None:
        """Marks partitions as unreadable. Those of earlier attempts are or will be replaced
        anyway.
        """
        for result_id, producer, attempt in partitions:
            result = self._graph.result(result_id)
            execution = result.producer.vertices[producer].current
            if execution.attempt == attempt and execution.state is _FINISHED:
                result.lost.add(producer)

    def replace_those_of(self, producers: Iterable[ExecutionVertex]) -> None:
        """Makes consumers that start from now on wait for the next attempts of these producers."""
        for vertex in producers:
            for result in self._graph.outputs_of(vertex.job_vertex.vertex.vertex_id):
                if result.edge.result_type is ResultType.BLOCKING:
                    result.lost.add(vertex.subtask)

    def read_by(
        self, finished: Execution, restarts_soon: Callable[[ExecutionVertex], bool]
    ) -> list[Command]:
        """Releases the inputs of a finished task that no task will read again. `restarts_soon`
        tells whether a task is part of a restart that was decided while the partitions existed.
        """
        inputs = self._graph.inputs_of(finished.vertex.job_vertex.vertex.vertex_id)
        return self.release_read(restarts_soon, inputs)

    def release_read(
        self,
        restarts_soon: Callable[[ExecutionVertex], bool],
        among: Iterable[IntermediateResult] | None = None,
    ) -> list[Command]:
        """Releases the partitions of these results, or of all, that no task will read again."""
        commands: list[Command] = []
        for result in self._graph.results if among is None else among:
            if result.edge.result_type is ResultType.BLOCKING and _is_read(result, restarts_soon):
                commands += _releases(_all_of(result))
                result.lost.update(range(result.producer.parallelism))
        return commands

    def release_read_at(
        self,
        task_executor_id: TaskExecutorId,
        stored: Iterable[ResultPartitionId],
        restarts_soon: Callable[[ExecutionVertex], bool],
    ) -> list[Command]:
        """Releases stored partitions whose release a reconnected TaskExecutor missed."""
        read = {r.edge.result_id for r in self._blocking() if _is_read(r, restarts_soon)}
        return _releases((task_executor_id, p) for p in sorted(stored) if p.result_id in read)

    def _blocking(self) -> Iterator[IntermediateResult]:
        return (r for r in self._graph.results if r.edge.result_type is ResultType.BLOCKING)


def _releases(partitions: Iterable[tuple[TaskExecutorId, ResultPartitionId]]) -> list[Command]:
    by_task_executor: dict[TaskExecutorId, list[ResultPartitionId]] = {}
    for task_executor_id, partition in partitions:
        by_task_executor.setdefault(task_executor_id, []).append(partition)
    return [
        ReleasePartitions(task_executor_id=task_executor_id, partitions=tuple(partitions))
        for task_executor_id, partitions in by_task_executor.items()
    ]


def _is_read(result: IntermediateResult, restarts_soon: Callable[[ExecutionVertex], bool]) -> bool:
    consumer = result.consumer
    if consumer.counts[_FINISHED.value] < consumer.parallelism:
        return False
    return not any(map(restarts_soon, consumer.vertices))


def _all_of(
    result: IntermediateResult,
) -> Iterator[tuple[TaskExecutorId, ResultPartitionId]]:
    """Includes partitions of earlier attempts, which consumers that continued have read."""
    for producer, vertex in enumerate(result.producer.vertices):
        for execution in vertex.attempts:
            if execution.state is _FINISHED and execution.slot is not None:
                yield (
                    execution.slot.task_executor_id,
                    ResultPartitionId(result.edge.result_id, producer, execution.attempt),
                )
