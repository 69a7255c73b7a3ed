"""What the SlotManager wants done. A command to a peer carries the connection that it goes to."""

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
    """To a TaskExecutor: give this slot to that job. Sent again unchanged (same allocation id)
    while unanswered.
    """

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
    """To a TaskExecutor: drop this allocation, should you have it."""

    connection: Connection
    allocation_id: AllocationId
    cause: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Shutdown:
    """To a TaskExecutor: end."""

    connection: Connection
    cause: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NotEnoughResources:
    """To a JobMaster. Sent when one of the values changes."""

    connection: Connection
    sequence: int  # of the declaration judged
    missing: int  # slots that nothing free can give now
    growing: int  # how many of them the driver is bringing up
    explanation: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskExecutorLost:
    """To every JobMaster: the one verdict on a dead TaskExecutor (invariant 22)."""

    connection: Connection
    task_executor_id: TaskExecutorId
    cause: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CloseConnection:
    """This peer was superseded, or is taken for dead."""

    connection: Connection
    cause: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestWorker:
    worker_id: WorkerId


@dataclass(frozen=True, slots=True, kw_only=True)
class ReleaseWorker:
    worker_id: WorkerId
    cause: str


ToTaskExecutor = RequestSlot | FreeSlot | Shutdown
ToJobMaster = NotEnoughResources | TaskExecutorLost
Command = (
    Welcome
    | SendHeartbeat
    | ToTaskExecutor
    | ToJobMaster
    | CloseConnection
    | RequestWorker
    | ReleaseWorker
)
