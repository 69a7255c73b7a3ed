"""A slot, the group of subtasks that shares it, and the number of slots that a job requires."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from firesteel.common.ids import AllocationId, ExecutorId, TaskExecutorId
from firesteel.common.resources import ResourceProfile


class GroupKey(NamedTuple):
    slot_sharing_group: str
    resource_group: str
    subtask: int


class ExecutionSlotSharingGroup:
    """The subtasks that share one slot: those with this index, of all vertices in one slot sharing
    group and one resource group. `ExecutionGraph.vertices_in` returns them.
    """

    __slots__ = (
        "allocation_id",
        "key",
        "previous_allocation_id",
        "previous_task_executor_id",
        "profile",
        "running",
        "wanted",
    )

    def __init__(self, key: GroupKey, profile: ResourceProfile) -> None:
        self.key = key
        self.profile = profile  # of the whole slot
        self.wanted = False  # needs a slot now: waits for one, or holds one
        self.running = 0  # executions scheduled and not yet ended; at 0 the slot is released
        self.allocation_id: AllocationId | None = None  # while it holds a slot
        # Where it ran before: preferred on a restart, to reuse warm state.
        self.previous_allocation_id: AllocationId | None = None
        self.previous_task_executor_id: TaskExecutorId | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotOffer:
    """A slot that a TaskExecutor holds for this job."""

    allocation_id: AllocationId
    slot_index: int
    profile: ResourceProfile  # decided; never UNKNOWN
    executor_id: ExecutorId  # the PySpark executor process in the slot
    data_address: str  # its Arrow Flight address, host:port


@dataclass(slots=True, kw_only=True, eq=False)
class Slot:
    """A slot in the pool. Exactly one of `group` and `idle_since` is set."""

    allocation_id: AllocationId
    slot_index: int
    profile: ResourceProfile
    executor_id: ExecutorId
    data_address: str
    task_executor_id: TaskExecutorId
    host: str
    requirement: ResourceProfile  # the declared profile that it counts for
    group: ExecutionSlotSharingGroup | None = None
    # The group whose tasks ran in it last; kept when the slot is lost.
    last_group: ExecutionSlotSharingGroup | None = None
    idle_since: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Requirement:
    """A number of slots with this profile."""

    profile: ResourceProfile
    count: int
