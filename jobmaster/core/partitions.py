"""Partitions of BLOCKING results: which TaskExecutor stores them, when they are lost, and when they
are released. This follows from the graph: a partition is stored where its producer has finished.

A partition is released when all consumers of its result have finished and none of them is about to
restart. From then on it counts as lost: if a consumer restarts after all, its producer restarts
too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from firesteel.common.ids import TaskExecutorId
from firesteel.common.job_graph import ResultType
from firesteel.common.results import ResultPartitionId
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
    def __init__(self, graph: ExecutionGraph, out: list[Command]) -> None:
        """`out` collects the core's commands of the current event."""
        self._graph = graph
        self._out = out

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
    ) -> None:
        """Releases the inputs of a finished task that no task will read again. `restarts_soon`
        tells whether a task is part of a restart that was decided while the partitions existed.
        """
        inputs = self._graph.inputs_of(finished.vertex.job_vertex.vertex.vertex_id)
        self.release_read(restarts_soon, inputs)

    def release_read(
        self,
        restarts_soon: Callable[[ExecutionVertex], bool],
        among: Iterable[IntermediateResult] | None = None,
    ) -> None:
        """Releases the partitions of these results, or of all, that no task will read again."""
        for result in self._graph.results if among is None else among:
            if result.edge.result_type is ResultType.BLOCKING and _is_read(result, restarts_soon):
                self._release(_all_of(result))
                result.lost.update(range(result.producer.parallelism))

    def reported(
        self,
        task_executor_id: TaskExecutorId,
        partitions: Iterable[ResultPartitionId],
        restarts_soon: Callable[[ExecutionVertex], bool],
    ) -> tuple[ResultPartitionId, ...]:
        """Compares the partitions stored by a reconnected TaskExecutor with the expected ones.
        Returns the missing ones, and releases those whose release it missed.
        """
        found = frozenset(partitions)
        read = {r.edge.result_id for r in self._blocking() if _is_read(r, restarts_soon)}
        self._release((task_executor_id, each) for each in sorted(found) if each.result_id in read)
        return tuple(each for each in self.kept_by(task_executor_id) if each not in found)

    def _blocking(self) -> Iterator[IntermediateResult]:
        return (r for r in self._graph.results if r.edge.result_type is ResultType.BLOCKING)

    def _release(self, partitions: Iterable[tuple[TaskExecutorId, ResultPartitionId]]) -> None:
        by_task_executor: dict[TaskExecutorId, list[ResultPartitionId]] = {}
        for task_executor_id, partition in partitions:
            by_task_executor.setdefault(task_executor_id, []).append(partition)
        for task_executor_id, found in by_task_executor.items():
            self._out.append(
                ReleasePartitions(task_executor_id=task_executor_id, partitions=tuple(found))
            )


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
