"""A slot, the process in it, and the tasks in that: their states and every legal step (spec 004,
"Task Slots and Resources").

slot:                                                process:
         ┌────────────── RELEASING ◀──┐              STARTING ─▶ READY ⇄ BUSY
         ▼                   ▲        │                 │          │       │
       FREE ─▶ ALLOCATED ────┼─▶ ACTIVE                 └──▶ STOPPING ◀────┘
         ▲          │        │        │                         │
         └──────────┴────────┴────────┘                        DEAD   (any state ─▶ DEAD: it died by itself)
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from enum import Enum

from firesteel.common.backoff import Backoff
from firesteel.common.ids import AllocationId, AttemptId, ExecutorId, JobId
from firesteel.common.resources import UNKNOWN, ResourceProfile
from firesteel.common.states import ExecutionState, IllegalTransition
from taskexecutor.core.process_shape import Environment, ProcessShape


class SlotState(Enum):
    FREE = "free"  # belongs to nobody; its process is kept warm
    ALLOCATED = (
        "allocated"  # given to a job; not offered yet: its process, or the JobMaster, is not ready
    )
    ACTIVE = "active"  # offered to, and then used by, the job's JobMaster
    RELEASING = "releasing"  # its tasks are ending and its process is being cleaned


_S = SlotState
SLOT_TRANSITIONS: dict[SlotState, frozenset[SlotState]] = {
    _S.FREE: frozenset(
        {
            _S.ALLOCATED,  # the ResourceManager asked for it
        }
    ),
    _S.ALLOCATED: frozenset(
        {
            _S.ACTIVE,  # a process that fits is ready and the JobMaster is connected: offered
            _S.FREE,  # given back before it was offered, or no process could be started for it
        }
    ),
    _S.ACTIVE: frozenset(
        {
            _S.RELEASING,  # rejected or freed by the JobMaster, taken back, or the JobMaster is gone
            _S.FREE,  # its process died
        }
    ),
    _S.RELEASING: frozenset(
        {
            _S.FREE,  # its process is clean again, or dead
        }
    ),
}


class ProcessState(Enum):
    STARTING = "starting"  # Python and its JVM are coming up
    READY = "ready"  # warm; serves no job
    BUSY = "busy"  # offered to a job
    STOPPING = "stopping"  # SIGKILL is sent
    DEAD = "dead"


_P = ProcessState
PROCESS_TRANSITIONS: dict[ProcessState, frozenset[ProcessState]] = {
    _P.STARTING: frozenset(
        {
            _P.READY,  # its SparkSession is warm
            _P.STOPPING,  # the slot was given to a job that it does not fit
            _P.DEAD,  # it could not start
        }
    ),
    _P.READY: frozenset(
        {
            _P.BUSY,  # its slot is offered
            _P.STOPPING,  # replaced, over its memory limit, or the TaskExecutor ends
            _P.DEAD,  # killed by somebody else
        }
    ),
    _P.BUSY: frozenset(
        {
            _P.READY,  # its slot was released and it is clean again
            _P.STOPPING,  # over its memory limit, did not end a task in time, or the TaskExecutor ends
            _P.DEAD,  # crashed, or killed by somebody else
        }
    ),
    _P.STOPPING: frozenset({_P.DEAD}),  # the operating system says so
    _P.DEAD: frozenset(),
}


@dataclass(slots=True, kw_only=True)
class SlotProcess:
    """The PySpark executor in a slot."""

    executor_id: ExecutorId
    shape: ProcessShape
    state: ProcessState = ProcessState.STARTING
    pid: int = 0  # known once READY, like what follows
    ready_at: float = 0.0
    heard_at: float = 0.0
    link_broken_at: float | None = None
    data_address: str = ""  # Arrow Flight
    stop_reason: str = ""  # why it is being killed; empty when nobody here wanted it
    unusable: bool = False  # it could not start, or was over its slot's limit while idle: another one would hardly do better

    def become(self, state: ProcessState) -> None:
        if state not in PROCESS_TRANSITIONS[self.state]:
            raise IllegalTransition(
                f"executor {self.executor_id}: {self.state.value} -> {state.value} is not a legal transition"
            )
        self.state = state


@dataclass(slots=True, kw_only=True)
class Task:
    attempt_id: AttemptId
    state: ExecutionState = ExecutionState.DEPLOYING
    cancelled: bool = False  # the JobMaster wants it to end
    cancel_deadline: float | None = None  # when it takes the slot's process with it


@dataclass(slots=True, kw_only=True)
class Allocation:
    """One slot given to one job. All that is known of the job in this slot goes when the allocation
    ends.
    """

    allocation_id: AllocationId
    job_id: JobId
    profile: ResourceProfile  # decided, never UNKNOWN
    environment: Environment
    accepted: bool = False  # the JobMaster answered the offer, or uses the slot
    offer_again_at: float | None = None  # the answer to an offer may have been lost
    assigned: bool = False  # its process was told whose it is, so it must be cleaned
    tasks: dict[AttemptId, Task] = field(
        default_factory=dict
    )  # ended ones too: a JobMaster that reconnects asks
    waiting: list[object] = field(
        default_factory=list
    )  # messages for the process, until the job's files are on disk
    cancellation_timeout_s: float = 0.0  # 0: never
    release_cause: str = ""
    reset_deadline: float | None = None  # when a process that does not get clean is killed

    def running(self) -> list[Task]:
        return [task for task in self.tasks.values() if not task.state.terminal]


STORY_LENGTH = 24


@dataclass(slots=True, kw_only=True)
class Slot:
    index: int
    state: SlotState = SlotState.FREE
    allocation: Allocation | None = None  # exactly while not FREE
    process: SlotProcess | None = None
    start_backoff: Backoff
    start_not_before: float = 0.0
    start_problem: str = ""  # why processes cannot start; empty once one could
    story: deque[str] = field(default_factory=lambda: deque(maxlen=STORY_LENGTH))

    def become(self, state: SlotState, why: str) -> None:
        if state not in SLOT_TRANSITIONS[self.state]:
            raise IllegalTransition(
                f"slot {self.index}: {self.state.value} -> {state.value} is not a legal transition ({why}); its story: "
                + "; ".join(self.story)
            )
        self.story.append(f"{self.state.value} -> {state.value}: {why}")
        self.state = state

    @property
    def profile(self) -> ResourceProfile:
        """UNKNOWN while free: decided when it is allocated (session mode)."""
        return self.allocation.profile if self.allocation else UNKNOWN

    def holds(self, allocation_id: AllocationId) -> bool:
        return self.allocation is not None and self.allocation.allocation_id == allocation_id
