"""The SlotManager's events, and the types that its commands share.

Every event from a peer names the connection that it came on; every command to a peer names the
connection that it is sent on. A connection is one gRPC stream, numbered by the shell and never
reused, so an answer to a peer that has gone reaches no other peer.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NewType

from firesteel.common.ids import AllocationId, Epoch, JobId, TaskExecutorId
from firesteel.common.resources import ResourceProfile, SlotStatus
from firesteel.common.service.core import Tick

Connection = NewType("Connection", int)
WorkerId = NewType("WorkerId", str)  # names a TaskExecutor that a driver starts


# Variables for the processes of a job; passed on to TaskExecutors unread.
Environment = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Requirement:
    profile: ResourceProfile  # UNKNOWN: the size is decided with the allocation
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Started:
    """The shell serves, so TaskExecutors can register."""

    # Workers of an earlier ResourceManager that are still alive and will register. None: the driver
    # does not know them yet, and posts PreviousWorkersFound.
    previous_workers: tuple[WorkerId, ...] | None = ()


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
    default_slot: ResourceProfile  # the size that an UNKNOWN requirement gets here
    slots: tuple[SlotStatus, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotsReported:
    connection: Connection
    epoch: Epoch
    sequence: int  # strictly increasing per registration
    slots: tuple[SlotStatus, ...]
    stored_partitions: int = 0  # of BLOCKING results
    stored_bytes: int = 0
    stored_jobs: frozenset[JobId] = frozenset()  # the jobs that own them


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
    """Declares all slots that the job requires, including those that it holds."""

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
    """A JobMaster has found this TaskExecutor dead."""

    connection: Connection
    job_id: JobId
    epoch: Epoch
    task_executor_id: TaskExecutorId
    cause: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskExecutorGone:
    """The TaskExecutor's connection broke, and its machine reports that its address has no
    listener.
    """

    task_executor_id: TaskExecutorId


@dataclass(frozen=True, slots=True, kw_only=True)
class StopRequested:
    """A caller requests that this TaskExecutor ends, and waits for its end."""

    request: int  # identifies the caller
    task_executor_id: TaskExecutorId
    drain: bool = False  # moves its tasks first
    force: bool = False  # drains even if rows are repeated or slots are missing


@dataclass(frozen=True, slots=True, kw_only=True)
class StopAbandoned:
    """The caller no longer waits."""

    request: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionClosed:
    """A peer closed its stream in order and does not come back."""

    connection: Connection


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionBroken:
    """A stream broke; its peer may be dead or about to reconnect."""

    connection: Connection
    cause: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PreviousWorkersFound:
    """The live workers of an earlier ResourceManager are known. Posted once, if Started has none of
    them.
    """

    worker_ids: tuple[WorkerId, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class DriverImpeded:
    """The driver cannot start or stop workers at the moment. It keeps trying."""

    problem: str  # empty: it can again


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerDelayed:
    """The worker does not start yet. It may still start."""

    worker_id: WorkerId
    problem: str  # empty: the reason no longer holds


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerStarted:
    """The worker's process or pod exists; its TaskExecutor registers separately."""

    worker_id: WorkerId


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerLeaving:
    """Something else than this cluster ends the worker soon, such as the drain of its node."""

    worker_id: WorkerId
    cause: str


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkersOutdated:
    """These live workers were started with an earlier configuration."""

    worker_ids: tuple[WorkerId, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerStartFailed:
    worker_id: WorkerId
    cause: str


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerExited:
    worker_id: WorkerId
    cause: str
    out_of_memory: bool = False  # the kernel killed it because it reached its memory limit


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerLogRead:
    """The last lines of the log of a worker whose end was reported before."""

    worker_id: WorkerId
    log: str


FromTaskExecutor = SlotsReported | SlotRequestAccepted | SlotRequestRejected | TaskExecutorHeartbeat
FromJobMaster = RequirementsDeclared | TaskExecutorReportedLost | JobMasterHeartbeat
Registration = TaskExecutorRegistered | JobMasterRegistered
WorkerEvent = (
    PreviousWorkersFound
    | DriverImpeded
    | WorkerDelayed
    | WorkerStarted
    | WorkerLeaving
    | WorkersOutdated
    | WorkerStartFailed
    | WorkerExited
    | WorkerLogRead
)
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
