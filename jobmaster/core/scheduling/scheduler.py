"""Moves subtasks from SCHEDULED to DEPLOYING.

A SchedulingStrategy selects units of subtasks that start together. The Scheduler makes them
SCHEDULED and requests a slot for each slot sharing group. When a unit has all of its slots, it is
deployed, with one command per TaskExecutor for all units that are deployed together.
"""

from __future__ import annotations

import itertools
from array import array
from collections.abc import Collection, Iterable, Mapping
from typing import TypeAlias

from firesteel.common.checkpoints.state import OperatorSnapshot
from firesteel.common.ids import OperatorId, TaskExecutorId, VertexId
from firesteel.common.job_graph import DistributionPattern, ResultType
from firesteel.common.states import TaskEvent
from jobmaster.core.commands import Command, DeployTasks, OutputOf, ResultLocations, TaskToDeploy
from jobmaster.core.execution_graph import (
    Execution,
    ExecutionGraph,
    ExecutionVertex,
    IntermediateResult,
)
from jobmaster.core.slots.pool import SlotPool
from jobmaster.core.slots.slot import ExecutionSlotSharingGroup, Slot

Unit: TypeAlias = tuple[ExecutionVertex, ...]  # one or more subtasks that are deployed together


def _has_slot(vertex: ExecutionVertex) -> bool:
    assert vertex.group is not None
    return vertex.group.allocation_id is not None


class Scheduler:
    def __init__(
        self, graph: ExecutionGraph, pool: SlotPool, stores: Mapping[TaskExecutorId, str]
    ) -> None:
        """`stores` has the addresses where TaskExecutors serve BLOCKING results."""
        self._graph = graph
        self._pool = pool
        self._stores = stores
        self.waiting: list[Unit] = []  # SCHEDULED, not deployed yet
        # The state that each subtask of each operator restores; None: all start empty.
        self.restored: dict[OperatorId, list[OperatorSnapshot]] | None = None
        self.restored_from = ""

    @property
    def has_all_slots(self) -> bool:
        return self._pool.pending_count == 0

    def schedule(self, units: Iterable[Unit], now: float, now_ms: int) -> None:
        """Schedules these units, whose subtasks are all CREATED."""
        groups: dict[int, ExecutionSlotSharingGroup] = {}
        for unit in units:
            for vertex in unit:
                vertex.current.apply(TaskEvent.SCHEDULE, now_ms)
                group = vertex.group
                assert group is not None
                group.running += 1
                groups[id(group)] = group
            self.waiting.append(unit)
        self._pool.request(groups.values(), now)

    @property
    def ready(self) -> list[Unit]:
        """The waiting units that have all their slots."""
        if self.has_all_slots:
            return self.waiting
        return [unit for unit in self.waiting if all(map(_has_slot, unit))]

    def first_slot(self) -> Slot:
        """Returns the slot of the first ready subtask."""
        group = self.ready[0][0].group
        assert group is not None
        assert group.allocation_id is not None
        return self._pool.slots[group.allocation_id]

    def forget(self, vertices: Collection[ExecutionVertex] | None = None) -> None:
        """Drops these subtasks, or all if None, from the waiting units."""
        if vertices is None:
            self.waiting.clear()
        elif self.waiting:
            forgotten = frozenset(vertices)
            left = (tuple(v for v in unit if v not in forgotten) for unit in self.waiting)
            self.waiting = [unit for unit in left if unit]

    def deploy(self, schemas: dict[OutputOf, bytes], now_ms: int) -> list[Command]:
        """Deploys all ready units, with one command per TaskExecutor."""
        slots = self._pool.slots
        deploy = TaskEvent.DEPLOY
        ready = self.ready
        started = frozenset(map(id, ready))
        self.waiting = [unit for unit in self.waiting if id(unit) not in started]
        executions = []
        for vertex in itertools.chain.from_iterable(ready):
            group, execution = vertex.group, vertex.current
            assert group is not None
            assert group.allocation_id is not None
            execution.slot = slots[group.allocation_id]
            execution.apply(deploy, now_ms)
            executions.append(execution)
        return self.deployments(executions, schemas)

    def deployments(
        self, executions: Iterable[Execution], schemas: dict[OutputOf, bytes]
    ) -> list[Command]:
        """Returns the commands that deploy these executions, which have their slots. Also used to
        repeat a deployment that may have been lost.
        """
        batches: dict[TaskExecutorId, tuple[list[TaskToDeploy], dict[VertexId, None]]] = {}
        consumers: dict[VertexId, list[int]] = {}
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
            consumers.setdefault(vertex_id, []).append(vertex.subtask)
        located: dict[VertexId, tuple[ResultLocations, ...]] = {
            vertex_id: tuple(
                locate(result, subtasks, self._stores)
                for result in self._graph.inputs_of(vertex_id)
            )
            for vertex_id, subtasks in consumers.items()
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


def locate(
    result: IntermediateResult,
    consumers: Iterable[int],
    stores: Mapping[TaskExecutorId, str],
) -> ResultLocations:
    """Returns where these subtasks read the result: from the slots of its producers or, if it is
    BLOCKING, from their TaskExecutors, whose addresses are `stores`. The producers that they read
    must have slots, or have finished before the job was restored; entries of other producers are
    arbitrary.
    """
    vertices = result.producer.vertices
    needed: Collection[int] = range(len(vertices))
    if result.edge.pattern is DistributionPattern.POINTWISE:
        needed = set(itertools.chain.from_iterable(map(result.producers_of, consumers)))
    if all(vertices[producer].current.restored_finished for producer in needed):
        return ResultLocations(
            result_id=result.edge.result_id,
            addresses=(),
            address_index=array("I"),
            attempts=array("I"),
            ended=True,
        )
    stored = result.edge.result_type is ResultType.BLOCKING
    addresses: dict[str, int] = {}
    address_index = array("I")
    attempts = array("I")
    for producer, vertex in enumerate(vertices):
        execution = vertex.current
        index = 0
        if producer in needed:
            address = _address(execution, stores if stored else {})
            index = addresses.setdefault(address, len(addresses))
        address_index.append(index)
        attempts.append(execution.attempt)
    return ResultLocations(
        result_id=result.edge.result_id,
        addresses=tuple(addresses),
        address_index=address_index,
        attempts=attempts,
    )


def _address(execution: Execution, stores: Mapping[TaskExecutorId, str]) -> str:
    slot = execution.slot
    assert slot is not None, str(execution)
    return stores.get(slot.task_executor_id) or slot.data_address
