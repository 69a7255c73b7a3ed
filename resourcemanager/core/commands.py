"""The SlotManager's commands. A command to a peer names the connection that it is sent on."""

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
    """Requests a slot of a TaskExecutor for a job. Resent unchanged until it is answered."""

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
    """Requests a TaskExecutor to free this allocation, if it exists."""

    connection: Connection
    allocation_id: AllocationId
    cause: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Shutdown:
    """Requests a TaskExecutor to exit."""

    connection: Connection
    cause: str


@dataclass(frozen=True, slots=True, kw_only=True)
class JobMasterChanged:
    """Notifies a TaskExecutor that holds slots or results of the job of its current JobMaster."""

    connection: Connection
    job_id: JobId
    job_master_address: str
    job_master_epoch: Epoch


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotHolders:
    """Lists, for a JobMaster that takes a job over, all TaskExecutors that hold slots or results of
    the job.
    """

    connection: Connection
    task_executor_ids: tuple[TaskExecutorId, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class NotEnoughResources:
    """Informs a JobMaster of its shortage of slots. Sent when one of the values changes."""

    connection: Connection
    sequence: int  # of the declaration that was matched
    missing: int  # required slots that no free slot can provide now
    growing: int  # how many of the missing slots are starting
    explanation: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LossExplained:
    """Sends every JobMaster the reason of a loss, or the log, which came after the verdict."""

    connection: Connection
    task_executor_id: TaskExecutorId
    cause: str = ""
    log: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskExecutorLost:
    """Notifies every JobMaster that this TaskExecutor is declared dead (invariant 22)."""

    connection: Connection
    task_executor_id: TaskExecutorId
    cause: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Vacate:
    """Requests a JobMaster to move its tasks away from this TaskExecutor, which is to stop."""

    connection: Connection
    task_executor_id: TaskExecutorId
    forced: bool = False
    without_slots: bool = False  # it need not wait for slots elsewhere


@dataclass(frozen=True, slots=True, kw_only=True)
class VacateWithdrawn:
    """Notifies a JobMaster that this TaskExecutor does not stop."""

    connection: Connection
    task_executor_id: TaskExecutorId


@dataclass(frozen=True, slots=True, kw_only=True)
class StopProgress:
    """Reports what a TaskExecutor's end is waiting for. Sent to each waiting caller on change."""

    request: int
    slots: tuple[tuple[JobId, int], ...]  # that jobs still hold on the TaskExecutor
    stored_partitions: int
    missing: int  # slots that these jobs require elsewhere
    explanation: str  # why they are missing


@dataclass(frozen=True, slots=True, kw_only=True)
class StopEnded:
    request: int
    problem: str = ""  # why the TaskExecutor was lost before it was requested to shut down


@dataclass(frozen=True, slots=True, kw_only=True)
class StopRefused:
    """Rejects a request to stop a TaskExecutor. Nothing has changed."""

    request: int
    problem: str
    unknown: bool = False  # there is no such TaskExecutor


@dataclass(frozen=True, slots=True, kw_only=True)
class CloseConnection:
    """Closes a connection whose peer was superseded or is declared dead."""

    connection: Connection
    cause: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeTaskExecutor:
    """Checks whether the process of a TaskExecutor whose connection broke has ended. If so, the
    shell posts TaskExecutorGone.
    """

    task_executor_id: TaskExecutorId
    address: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestWorker:
    worker_id: WorkerId


@dataclass(frozen=True, slots=True, kw_only=True)
class ReleaseWorker:
    worker_id: WorkerId
    cause: str
    failed: bool = False  # it is dead or did not register: its log is of interest


ToTaskExecutor = RequestSlot | FreeSlot | Shutdown | JobMasterChanged
ToJobMaster = (
    NotEnoughResources | TaskExecutorLost | LossExplained | SlotHolders | Vacate | VacateWithdrawn
)
ToStopper = StopProgress | StopEnded | StopRefused
ToPeer = Welcome | SendHeartbeat | ToTaskExecutor | ToJobMaster
Command = ToPeer | ToStopper | CloseConnection | ProbeTaskExecutor | RequestWorker | ReleaseWorker
