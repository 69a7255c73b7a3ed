"""A slot, the process in it and the process's tasks: their states and the events that change them
(spec 004, "Task Slots and Resources"). `SlotTable` drives the transitions.

slot:                                                process:
         ┌────────────── RELEASING ◀──┐              STARTING ─▶ READY ⇄ BUSY
         ▼                   ▲        │                 │          │       │
       FREE ─▶ ALLOCATED ────┼─▶ ACTIVE                 └──▶ STOPPING ◀────┘
         ▲          │        │        │                         │
         └──────────┴────────┴────────┘                        DEAD   (any state ─▶ DEAD)
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from firesteel.common.backoff import Backoff
from firesteel.common.ids import AllocationId, AttemptId, ExecutorId, JobId
from firesteel.common.resources import UNKNOWN, ResourceProfile
from firesteel.common.states import ExecutionState
from taskexecutor.core.events import AnalysisRequested, SlotTasks, TaskPlace
from taskexecutor.core.process_shape import Environment, ProcessShape


class SlotState(Enum):
    FREE = "free"  # allocated to no job; its process is kept warm
    ALLOCATED = "allocated"  # allocated to a job; its process or the JobMaster is not ready yet
    ACTIVE = "active"  # offered to the JobMaster, which then uses it
    RELEASING = "releasing"  # its tasks are ending and its process is being cleaned


class SlotEvent(Enum):
    REQUESTED = "requested by the ResourceManager"
    OFFERED = "a process that fits is ready and the JobMaster is connected"
    RELEASED = "rejected, freed or revoked, or its JobMaster is gone"
    CLEANED = "its process has discarded the job"
    PROCESS_DIED = "its process died, or could not be started"


SLOT_TRANSITIONS: dict[SlotState, dict[SlotEvent, SlotState]] = {
    SlotState.FREE: {SlotEvent.REQUESTED: SlotState.ALLOCATED},
    SlotState.ALLOCATED: {
        SlotEvent.OFFERED: SlotState.ACTIVE,
        SlotEvent.RELEASED: SlotState.FREE,  # the job has not reached the process
        SlotEvent.PROCESS_DIED: SlotState.FREE,
    },
    SlotState.ACTIVE: {
        SlotEvent.RELEASED: SlotState.RELEASING,
        SlotEvent.PROCESS_DIED: SlotState.FREE,
    },
    SlotState.RELEASING: {
        SlotEvent.CLEANED: SlotState.FREE,
        SlotEvent.PROCESS_DIED: SlotState.FREE,
    },
}


class ProcessState(Enum):
    STARTING = "starting"  # Python and its JVM are starting
    READY = "ready"  # warm; serves no job
    BUSY = "busy"  # offered to a job
    STOPPING = "stopping"  # SIGKILL was sent
    DEAD = "dead"


class ProcessEvent(Enum):
    WARMED_UP = "its SparkSession is ready"
    OFFERED = "its slot was offered"
    CLEANED = "it has discarded its job"
    KILLED = "SIGKILL was sent"
    DIED = "the operating system reports its end"


PROCESS_TRANSITIONS: dict[ProcessState, dict[ProcessEvent, ProcessState]] = {
    ProcessState.STARTING: {
        ProcessEvent.WARMED_UP: ProcessState.READY,
        ProcessEvent.KILLED: ProcessState.STOPPING,
        ProcessEvent.DIED: ProcessState.DEAD,
    },
    ProcessState.READY: {
        ProcessEvent.OFFERED: ProcessState.BUSY,
        ProcessEvent.KILLED: ProcessState.STOPPING,
        ProcessEvent.DIED: ProcessState.DEAD,
    },
    ProcessState.BUSY: {
        ProcessEvent.CLEANED: ProcessState.READY,
        ProcessEvent.KILLED: ProcessState.STOPPING,
        ProcessEvent.DIED: ProcessState.DEAD,
    },
    ProcessState.STOPPING: {ProcessEvent.DIED: ProcessState.DEAD},
    ProcessState.DEAD: {},
}


@dataclass(slots=True, kw_only=True)
class SlotProcess:
    """The PySpark executor in a slot."""

    executor_id: ExecutorId
    shape: ProcessShape
    state: ProcessState = ProcessState.STARTING
    pid: int = 0  # pid and the next three fields are known once READY
    data_address: str = ""  # Arrow Flight
    ready_at: float = 0.0
    heard_at: float = 0.0
    link_broken_at: float | None = None
    kill_reason: str = ""  # this and `killed_at` are set exactly while STOPPING
    killed_at: float | None = None
    overdue: bool = False  # it was killed long ago and has not ended
    # It could not start, or exceeded its slot's limit while idle; the next one is likely to fail
    # too.
    unusable: bool = False


@dataclass(slots=True, kw_only=True)
class Task:
    attempt_id: AttemptId
    place: TaskPlace
    state: ExecutionState = ExecutionState.DEPLOYING
    cancelled: bool = False  # by the JobMaster, or because its slot is released
    # when the slot's process is killed if the task has not ended
    cancel_deadline: float | None = None


@dataclass(slots=True, kw_only=True)
class Allocation:
    """A slot allocated to a job. Everything known of the job in this slot is dropped with it."""

    allocation_id: AllocationId
    job_id: JobId
    profile: ResourceProfile  # resolved, never UNKNOWN
    environment: Environment
    accepted: bool = False  # the JobMaster answered the offer, or uses the slot
    offer_again_at: float | None = None  # the answer to an offer may have been lost
    assigned: bool = False  # its process knows the job, so it must be cleaned
    # Includes ended tasks: a JobMaster that reconnects requests them.
    tasks: dict[AttemptId, Task] = field(default_factory=dict)
    # Items to send to the process once the job's files are on disk.
    waiting: list[SlotTasks | AnalysisRequested] = field(default_factory=list)
    cancellation_timeout_s: float = 0.0  # 0: never
    release_cause: str = ""
    clean_deadline: float | None = None  # when the process is killed if it is not clean

    def running(self) -> list[Task]:
        return [task for task in self.tasks.values() if not task.state.terminal]


@dataclass(slots=True, kw_only=True)
class Slot:
    index: int
    state: SlotState = SlotState.FREE
    allocation: Allocation | None = None  # None exactly while FREE
    process: SlotProcess | None = None
    start_backoff: Backoff
    start_not_before: float = 0.0
    warm_not_before: float = 0.0  # applies while the slot is free
    freed_at: float = 0.0
    start_problem: str = ""  # why processes cannot start; empty after a successful start

    @property
    def profile(self) -> ResourceProfile:
        """Returns UNKNOWN while the slot is free: its size is decided at allocation."""
        return self.allocation.profile if self.allocation else UNKNOWN

    def holds(self, allocation_id: AllocationId) -> bool:
        return self.allocation is not None and self.allocation.allocation_id == allocation_id
