"""When which subtasks get slots and are deployed (spec 003, "Eager" and "Lazy_From_Source"
dispatching).

A SchedulingStrategy chooses the subtasks to start. The Scheduler makes them SCHEDULED and requests
a slot for each slot sharing group; when all of these slots are there, it deploys the subtasks with
one command per TaskExecutor.
"""

from __future__ import annotations

from array import array
from collections.abc import Collection, Iterable
from typing import Protocol

from firesteel.common.checkpoints.state import OperatorSnapshot
from firesteel.common.ids import OperatorId, TaskExecutorId, VertexId
from firesteel.common.states import TaskEvent
from jobmaster.core.commands import DeployTasks, OutputOf, ResultLocations, TaskToDeploy
from jobmaster.core.execution_graph import (
    Execution,
    ExecutionGraph,
    ExecutionVertex,
    IntermediateResult,
)
from jobmaster.core.slots.pool import SlotPool
from jobmaster.core.slots.slot import ExecutionSlotSharingGroup, Slot


class SchedulingStrategy(Protocol):
    """Which subtasks to start, and when. Lazy-from-source, for batch, is another one of these."""

    def first(self, graph: ExecutionGraph) -> Iterable[ExecutionVertex]:
        """The subtasks that start with the job."""
        ...

    def after(self, graph: ExecutionGraph, finished: Execution) -> Iterable[ExecutionVertex]:
        """The subtasks that start because this execution has finished."""
        ...


class EagerScheduling:
    """Everything at once, for streaming jobs: their tasks need each other from the first row on."""

    def first(self, graph: ExecutionGraph) -> Iterable[ExecutionVertex]:
        return graph.execution_vertices()

    def after(self, graph: ExecutionGraph, finished: Execution) -> Iterable[ExecutionVertex]:
        return ()


class Scheduler:
    """Subtasks on their way from SCHEDULED to DEPLOYING."""

    def __init__(self, graph: ExecutionGraph, pool: SlotPool) -> None:
        self._graph = graph
        self._pool = pool
        self.waiting: list[ExecutionVertex] = []  # SCHEDULED, not yet deployed
        # What each subtask of each operator restores; None: everything begins from nothing.
        self.restored: dict[OperatorId, list[OperatorSnapshot]] | None = None
        self.restored_from = ""

    @property
    def has_all_slots(self) -> bool:
        return self._pool.pending_count == 0

    def schedule(self, vertices: Iterable[ExecutionVertex], now: float, now_ms: int) -> None:
        groups: dict[int, ExecutionSlotSharingGroup] = {}
        for vertex in vertices:
            vertex.current.apply(TaskEvent.SCHEDULE, now_ms)
            group = vertex.group
            assert group is not None
            group.running += 1
            groups[id(group)] = group
            self.waiting.append(vertex)
        self._pool.request(groups.values(), now)

    def first_slot(self) -> Slot:
        """The slot of the first subtask that waits."""
        group = self.waiting[0].group
        assert group is not None
        assert group.allocation_id is not None
        return self._pool.slots[group.allocation_id]

    def forget(self, vertices: Collection[ExecutionVertex] | None = None) -> None:
        """These will not be deployed, even if they wait; None: nothing that waits will."""
        if vertices is None:
            self.waiting.clear()
        elif self.waiting:
            forgotten = frozenset(vertices)
            self.waiting = [vertex for vertex in self.waiting if vertex not in forgotten]

    def deploy(self, schemas: dict[OutputOf, bytes], now_ms: int) -> list[DeployTasks]:
        """Everything that waits, one command per TaskExecutor. All of it must have its slot."""
        slots = self._pool.slots
        deploy = TaskEvent.DEPLOY
        executions = []
        for vertex in self.waiting:
            group, execution = vertex.group, vertex.current
            assert group is not None
            assert group.allocation_id is not None
            execution.slot = slots[group.allocation_id]
            execution.apply(deploy, now_ms)
            executions.append(execution)
        self.waiting.clear()
        return self.deployments(executions, schemas)

    def deployments(
        self, executions: Iterable[Execution], schemas: dict[OutputOf, bytes]
    ) -> list[DeployTasks]:
        """The commands that deploy these executions, which have their slots. Also sent when a
        deployment may have been lost.
        """
        batches: dict[TaskExecutorId, tuple[list[TaskToDeploy], dict[VertexId, None]]] = {}
        for execution in executions:
            vertex, slot = execution.vertex, execution.slot
            assert slot is not None
            batch = batches.get(slot.task_executor_id)
            if batch is None:
                batch = batches[slot.task_executor_id] = ([], {})
            vertex_id = vertex.job_vertex.vertex.vertex_id
            batch[0].append(
                TaskToDeploy(
                    execution.attempt_id,
                    vertex_id,
                    vertex.subtask,
                    execution.attempt,
                    slot.allocation_id,
                    self._restored(vertex),
                )
            )
            batch[1][vertex_id] = None
        located: dict[VertexId, tuple[ResultLocations, ...]] = {
            vertex_id: tuple(locate(result) for result in self._graph.inputs_of(vertex_id))
            for vertex_id in dict.fromkeys(v for _, vertices in batches.values() for v in vertices)
        }
        return [
            DeployTasks(
                task_executor_id=task_executor_id,
                tasks=tuple(tasks),
                vertices=tuple(vertices),
                locations=tuple(
                    locations for vertex_id in vertices for locations in located[vertex_id]
                ),
                schemas=schemas,
                restored_from=self.restored_from,
            )
            for task_executor_id, (tasks, vertices) in batches.items()
        ]

    def _restored(self, vertex: ExecutionVertex) -> tuple[OperatorSnapshot, ...] | None:
        restored = self.restored
        if restored is None:
            return None
        return tuple(
            restored[operator.operator_id][vertex.subtask]
            for operator in vertex.job_vertex.vertex.operators
            if operator.operator_id in restored
        )


def locate(result: IntermediateResult) -> ResultLocations:
    """Where the producers of a result run. All of them must have been given their slots, or all
    have finished before the job was restored.
    """
    if all(vertex.current.restored_finished for vertex in result.producer.vertices):
        return ResultLocations(
            result_id=result.edge.result_id,
            addresses=(),
            address_index=array("I"),
            attempts=array("I"),
            ended=True,
        )
    addresses: dict[str, int] = {}
    address_index = array("I")
    attempts = array("I")
    for vertex in result.producer.vertices:
        execution = vertex.current
        assert execution.slot is not None, str(execution)
        address_index.append(addresses.setdefault(execution.slot.data_address, len(addresses)))
        attempts.append(execution.attempt)
    return ResultLocations(
        result_id=result.edge.result_id,
        addresses=tuple(addresses),
        address_index=address_index,
        attempts=attempts,
    )
