"""What the Dispatcher's core is told (events), wants stored (records) and wants done (commands)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from firesteel.common.core import Tick
from firesteel.common.ids import JobId, JobMasterId
from firesteel.common.states import JobStatus

# ---- events


@dataclass(frozen=True, slots=True, kw_only=True)
class SubmitJob:
    """A client wants this job run. Its graph is already in the job store, under `graph_id`."""

    request: int  # names the waiting client in Answer
    job_id: JobId
    name: str
    graph_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CancelJob:
    request: int
    job_id: JobId


@dataclass(frozen=True, slots=True, kw_only=True)
class JobMasterRegistered:
    """A JobMaster process opened (or re-opened) its stream; `connection` numbers the stream."""

    connection: int
    job_master_id: JobMasterId
    pid: int
    address: str


@dataclass(frozen=True, slots=True, kw_only=True)
class JobMasterDisconnected:
    """The stream ended or fell silent; everything it carried was posted before this."""

    connection: int


@dataclass(frozen=True, slots=True, kw_only=True)
class JobStatusReported:
    connection: int
    job_id: JobId
    epoch: int
    status: JobStatus
    timestamp_ms: int
    tasks_by_state: Mapping[str, int] = field(default_factory=dict)
    final_details: bytes | None = None  # serialised; terminal states only


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessStarted:
    """What StartProcess asked for is there; it may have registered already."""

    pid: int
    log_path: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessStartFailed:
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessExited:
    pid: int
    exit_code: int
    log_tail: str = ""  # its last words


@dataclass(frozen=True, slots=True, kw_only=True)
class CancelNotDelivered:
    """AskToCancel could not be delivered to the JobMaster."""

    job_id: JobId


Event = (
    SubmitJob
    | CancelJob
    | JobMasterRegistered
    | JobMasterDisconnected
    | JobStatusReported
    | ProcessStarted
    | ProcessStartFailed
    | ProcessExited
    | CancelNotDelivered
    | Tick
)

# ---- records


@dataclass(frozen=True, slots=True, kw_only=True)
class JobAdded:
    job_id: JobId
    name: str
    graph_id: str
    start_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class JobAssigned:
    job_id: JobId
    epoch: int
    job_master_id: JobMasterId


@dataclass(frozen=True, slots=True, kw_only=True)
class JobStatusChanged:
    job_id: JobId
    status: JobStatus


@dataclass(frozen=True, slots=True, kw_only=True)
class JobCancelRequested:
    """The client was told that its job will be cancelled: a Dispatcher that takes over must know."""

    job_id: JobId


@dataclass(frozen=True, slots=True, kw_only=True)
class JobEnded:
    """The job is globally terminal. Without `final_details` the store keeps what can be said
    without its JobMaster.
    """

    job_id: JobId
    status: JobStatus
    end_ms: int
    final_details: bytes | None = None
    failure: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobForgotten:
    """Drops the job's graph and details. Its id and status stay, so that it never runs again
    (invariant 1).
    """

    job_id: JobId


Record = JobAdded | JobAssigned | JobStatusChanged | JobCancelRequested | JobEnded | JobForgotten

# ---- commands


class RefusalKind(Enum):
    NOT_FOUND = "not found"
    ALREADY_EXISTS = "already exists"
    WRONG_STATE = "wrong state"


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    kind: RefusalKind
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    request: int
    refusal: Refusal | None = None  # None: done


@dataclass(frozen=True, slots=True, kw_only=True)
class StartProcess:
    """Start one JobMaster process; comes back as ProcessStarted or ProcessStartFailed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KillProcess:
    pid: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StartJob:
    """May be repeated for the same job and epoch after a reconnection."""

    connection: int
    job_id: JobId
    graph_id: str
    epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AskToCancel:
    job_id: JobId
    address: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Acknowledge:
    """The terminal status is stored: the JobMaster process may go."""

    connection: int
    status: JobStatus


@dataclass(frozen=True, slots=True, kw_only=True)
class TellWatchers:
    job_id: JobId


@dataclass(frozen=True, slots=True, kw_only=True)
class DropResults:
    """Delete the job's collected results, and files that no job needs any more."""

    job_id: JobId


Command = (
    Answer
    | StartProcess
    | KillProcess
    | StartJob
    | AskToCancel
    | Acknowledge
    | TellWatchers
    | DropResults
)
