"""The events of the Dispatcher's core."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from firesteel.common.ids import JobId, JobMasterId
from firesteel.common.service.core import Tick
from firesteel.common.states import JobStatus


@dataclass(frozen=True, slots=True, kw_only=True)
class SubmitJob:
    """A client submits a job."""

    request: int  # identifies the waiting client in Answer
    job_id: JobId
    name: str
    graph_id: str
    graph: bytes = field(repr=False)  # serialised
    blob_hashes: frozenset[str]  # the files that the graph needs
    recovers: bool = False  # whether a new JobMaster continues the job when its JobMaster is lost
    owner: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphStored:
    """The outcome of StoreGraph."""

    submission: SubmitJob


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
    job_id: JobId | None = None  # the job that it already serves


@dataclass(frozen=True, slots=True, kw_only=True)
class JobMasterDisconnected:
    """The stream ended or fell silent; all of its messages were posted earlier."""

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
    restart_history: str = ""  # read only by the job's next JobMaster
    handover: bytes = b""  # as above; empty: unchanged
    history: bytes = b""  # a serialised JobHistory; empty: unchanged
    unadoptable: bool = False  # tasks may run, and the handover is too large to be stored


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointStored:
    """The job has made progress under its current JobMaster."""

    job_id: JobId
    epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessStarted:
    """The outcome of StartProcess. The process may have registered already."""

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
    """The outcomes of probing a JobMaster at its address."""

    ENDED = "its machine reports that the port is closed"
    RUNS = "it answers and serves the job"
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
    | GraphStored
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
