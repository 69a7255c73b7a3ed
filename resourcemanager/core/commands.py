"""What the SlotManager decides: its commands. One to a peer carries the connection it goes to."""

from __future__ import annotations

from dataclasses import dataclass

from firesteel.common.ids import AllocationId, Epoch, JobId, TaskExecutorId
from firesteel.common.resources import ResourceProfile
from resourcemanager.core.events import Connection, Environment, WorkerId


@dataclass(frozen=True, slots=True, kw_only=True)
class Welcome:
    """Answers a registration."""

    connection: Connection


@dataclass(frozen=True, slots=True, kw_only=True)
class SendHeartbeat:
    connection: Connection


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestSlot:
    """To a TaskExecutor: allocate this slot to that job. Repeated unchanged while unanswered."""

    connection: Connection
    allocation_id: AllocationId
    job_id: JobId
    slot_index: int
    profile: ResourceProfile  # never UNKNOWN
    job_master_address: str
    job_master_epoch: Epoch
    environment: Environment = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class FreeSlot:
    """To a TaskExecutor: drop this allocation, if it exists."""

    connection: Connection
    allocation_id: AllocationId
    cause: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Shutdown:
    """To a TaskExecutor: exit."""

    connection: Connection
    cause: str


@dataclass(frozen=True, slots=True, kw_only=True)
class JobMasterChanged:
    """To a TaskExecutor that holds slots of the job: connect to this JobMaster."""

    connection: Connection
    job_id: JobId
    job_master_address: str
    job_master_epoch: Epoch


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotHolders:
    """To a JobMaster that takes a job over: all TaskExecutors that hold slots of it,
    or results.
    """

    connection: Connection
    task_executor_ids: tuple[TaskExecutorId, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class NotEnoughResources:
    """To a JobMaster. Sent when one of the values changes."""

    connection: Connection
    sequence: int  # of the declaration judged
    missing: int  # slots that no free slot can provide now
    growing: int  # how many of them are starting
    explanation: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskExecutorLost:
    """To every JobMaster: this TaskExecutor is declared dead (invariant 22)."""

    connection: Connection
    task_executor_id: TaskExecutorId
    cause: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Vacate:
    """To a JobMaster: move the tasks away from this TaskExecutor, which is to stop."""

    connection: Connection
    task_executor_id: TaskExecutorId
    forced: bool = False
    withdrawn: bool = False  # it does not stop


@dataclass(frozen=True, slots=True, kw_only=True)
class StopProgress:
    """To whoever waits for a TaskExecutor's end: what is awaited. Sent when it changes."""

    request: int
    slots: tuple[tuple[JobId, int], ...]  # that jobs still have there
    stored_partitions: int
    missing: int  # slots that they need elsewhere
    explanation: str  # of those


@dataclass(frozen=True, slots=True, kw_only=True)
class StopEnded:
    request: int
    problem: str = ""  # it was lost before it was told to end


@dataclass(frozen=True, slots=True, kw_only=True)
class StopRefused:
    """Nothing was changed."""

    request: int
    problem: str
    unknown: bool = False  # there is no such TaskExecutor


@dataclass(frozen=True, slots=True, kw_only=True)
class CloseConnection:
    """The peer was superseded, or is declared dead."""

    connection: Connection
    cause: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeTaskExecutor:
    """Its connection broke: find whether its process has ended. If so, TaskExecutorGone results."""

    task_executor_id: TaskExecutorId
    address: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestWorker:
    worker_id: WorkerId


@dataclass(frozen=True, slots=True, kw_only=True)
class ReleaseWorker:
    worker_id: WorkerId
    cause: str


ToTaskExecutor = RequestSlot | FreeSlot | Shutdown | JobMasterChanged
ToJobMaster = NotEnoughResources | TaskExecutorLost | SlotHolders | Vacate
ToStopper = StopProgress | StopEnded | StopRefused
ToPeer = Welcome | SendHeartbeat | ToTaskExecutor | ToJobMaster
Command = ToPeer | ToStopper | CloseConnection | ProbeTaskExecutor | RequestWorker | ReleaseWorker
