"""What happens to the Dispatcher: its core's events."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from firesteel.common.ids import JobId, JobMasterId
from firesteel.common.service.core import Tick
from firesteel.common.states import JobStatus


@dataclass(frozen=True, slots=True, kw_only=True)
class SubmitJob:
    """A client submits a job. Its graph is already in the job store, under `graph_id`."""

    request: int  # identifies the waiting client in Answer
    job_id: JobId
    name: str
    graph_id: str
    recovers: bool = False  # whether another JobMaster goes on with it when it has lost its own


@dataclass(frozen=True, slots=True, kw_only=True)
class CancelJob:
    request: int
    job_id: JobId


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoveJob:
    request: int
    job_id: JobId


@dataclass(frozen=True, slots=True, kw_only=True)
class JobMasterRegistered:
    """A JobMaster process has opened a stream; `connection` is the stream's number."""

    connection: int
    job_master_id: JobMasterId
    pid: int
    address: str
    serves: JobId | None = None  # the job that it has already


@dataclass(frozen=True, slots=True, kw_only=True)
class JobMasterDisconnected:
    """The stream ended or fell silent; its messages were all posted before this."""

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
    keeps_checkpoints: bool = False  # terminal states only
    restart_history: str = ""  # for the job's next JobMaster, which alone reads it
    analysis: bytes = b""  # the same; empty: as reported before
    history: bytes = b""  # a serialised JobHistory; empty: as reported before


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointStored:
    """The job has made progress under its JobMaster."""

    job_id: JobId
    epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessStarted:
    """The outcome of StartProcess; the process may have registered already."""

    pid: int
    log_path: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessStartFailed:
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessExited:
    pid: int
    reason: str  # its exit code in words
    log_tail: str = ""


class JobMasterProbe(Enum):
    """What asking a JobMaster at its address has shown."""

    ENDED = "its machine says that nothing listens there"
    RUNS = "it answers, and has the job"
    SILENT = "neither"


@dataclass(frozen=True, slots=True, kw_only=True)
class JobMasterProbed:
    """The outcome of ProbeJobMaster."""

    job_id: JobId
    epoch: int
    outcome: JobMasterProbe


@dataclass(frozen=True, slots=True, kw_only=True)
class CancelNotDelivered:
    """AskToCancel did not reach the JobMaster."""

    job_id: JobId


Event = (
    SubmitJob
    | CancelJob
    | RemoveJob
    | JobMasterRegistered
    | JobMasterDisconnected
    | JobStatusReported
    | CheckpointStored
    | ProcessStarted
    | ProcessStartFailed
    | ProcessExited
    | JobMasterProbed
    | CancelNotDelivered
    | Tick
)
