"""What happens to the ResourceManager: the SlotManager's events, and types that its commands share.

Every event from a peer carries the connection that it came on; every command to a peer carries the
connection that it goes to. A connection is one gRPC stream, numbered by the shell and never
reused, so an answer to a peer that has gone reaches nobody else.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NewType

from firesteel.common.ids import AllocationId, Epoch, JobId, TaskExecutorId
from firesteel.common.resources import ResourceProfile, SlotStatus
from firesteel.common.service.core import Tick

Connection = NewType("Connection", int)
WorkerId = NewType("WorkerId", str)  # of a TaskExecutor, by its driver


# What a job's processes are started with; only passed on to TaskExecutors.
Environment = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Requirement:
    profile: ResourceProfile  # UNKNOWN: the size is decided with the allocation
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Started:
    """The shell serves: TaskExecutors can register."""

    # Of an earlier ResourceManager and still alive: they will register.
    previous_workers: tuple[WorkerId, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskExecutorRegistered:
    """First message of a TaskExecutor's stream, on every (re-)connection."""

    connection: Connection
    task_executor_id: TaskExecutorId
    address: str
    host: str
    pid: int
    worker_id: WorkerId | None  # None: started by hand
    total: ResourceProfile
    default_slot: ResourceProfile  # what an UNKNOWN requirement gets here
    slots: tuple[SlotStatus, ...]
    metrics_address: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotsReported:
    connection: Connection
    epoch: Epoch
    sequence: int  # strictly increasing per registration
    slots: tuple[SlotStatus, ...]
    stored_partitions: int = 0  # of BLOCKING results
    stored_bytes: int = 0
    stored_jobs: frozenset[JobId] = frozenset()  # whose they are


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotRequestAccepted:
    connection: Connection
    epoch: Epoch
    allocation_id: AllocationId


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotRequestRejected:
    connection: Connection
    epoch: Epoch
    allocation_id: AllocationId
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskExecutorHeartbeat:
    connection: Connection
    epoch: Epoch


@dataclass(frozen=True, slots=True, kw_only=True)
class JobMasterRegistered:
    """First message of a JobMaster's stream, on every (re-)connection."""

    connection: Connection
    job_id: JobId
    epoch: Epoch  # the JobMaster's own
    address: str
    job_name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RequirementsDeclared:
    """All slots that the job needs, those that it holds included."""

    connection: Connection
    job_id: JobId
    epoch: Epoch
    sequence: int  # the newest wins
    requirements: tuple[Requirement, ...]
    environment: Environment = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class JobMasterHeartbeat:
    connection: Connection
    job_id: JobId
    epoch: Epoch


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskExecutorReportedLost:
    """What a JobMaster has found."""

    connection: Connection
    job_id: JobId
    epoch: Epoch
    task_executor_id: TaskExecutorId
    cause: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskExecutorGone:
    """After its connection broke: nothing listens at its address any more, says its machine."""

    task_executor_id: TaskExecutorId


@dataclass(frozen=True, slots=True, kw_only=True)
class StopRequested:
    """Somebody wants this TaskExecutor to end, and waits for that."""

    request: int  # identifies who waits in StopAnswered
    task_executor_id: TaskExecutorId
    drain: bool = False  # its tasks are moved first
    force: bool = False  # drain: also if rows are repeated, or slots are missing


@dataclass(frozen=True, slots=True, kw_only=True)
class StopAbandoned:
    """Nobody waits for this one any more."""

    request: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionClosed:
    """A peer ended its stream in order: it does not come back."""

    connection: Connection


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionBroken:
    """A stream broke; the peer may be dead, or about to reconnect."""

    connection: Connection
    cause: str


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerStarted:
    """Its process runs; its TaskExecutor registers by itself."""

    worker_id: WorkerId


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerStartFailed:
    worker_id: WorkerId
    cause: str


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerExited:
    worker_id: WorkerId
    cause: str


FromTaskExecutor = SlotsReported | SlotRequestAccepted | SlotRequestRejected | TaskExecutorHeartbeat
FromJobMaster = RequirementsDeclared | TaskExecutorReportedLost | JobMasterHeartbeat
Registration = TaskExecutorRegistered | JobMasterRegistered
WorkerEvent = WorkerStarted | WorkerStartFailed | WorkerExited
Event = (
    Started
    | Registration
    | FromTaskExecutor
    | FromJobMaster
    | TaskExecutorGone
    | StopRequested
    | StopAbandoned
    | ConnectionClosed
    | ConnectionBroken
    | WorkerEvent
    | Tick
)
