"""The records that the Dispatcher's core persists before it carries out commands of the same
event.
"""

from __future__ import annotations

from dataclasses import dataclass

from firesteel.common.ids import JobId, JobMasterId
from firesteel.common.states import JobStatus


@dataclass(frozen=True, slots=True, kw_only=True)
class JobAdded:
    job_id: JobId
    name: str
    graph_id: str
    start_ms: int
    recovers: bool = False
    owner: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobAssigned:
    job_id: JobId
    epoch: int
    job_master_id: JobMasterId
    address: str = ""  # host:port, where it serves


@dataclass(frozen=True, slots=True, kw_only=True)
class JobStatusChanged:
    job_id: JobId
    status: JobStatus
    restart_history: str = ""
    history: bytes = b""


@dataclass(frozen=True, slots=True, kw_only=True)
class HandoverChanged:
    job_id: JobId
    handover: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class JobCancelRequested:
    """A client was assured that the job will be cancelled; a restarted Dispatcher honours that."""

    job_id: JobId


@dataclass(frozen=True, slots=True, kw_only=True)
class JobEnded:
    """The job is globally terminal. Without `final_details`, its JobMaster did not report the end,
    and `failure` says why the job ended.
    """

    job_id: JobId
    status: JobStatus
    end_ms: int
    final_details: bytes | None = None
    failure: str = ""
    keeps_checkpoints: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class JobForgotten:
    """Drops the job's graph and details but keeps its id and status, so that it never runs again
    (invariant 1).
    """

    job_id: JobId
    why: str = ""  # empty: dropped in favour of newer jobs


Record = (
    JobAdded
    | JobAssigned
    | JobStatusChanged
    | HandoverChanged
    | JobCancelRequested
    | JobEnded
    | JobForgotten
)
