"""What the Dispatcher's core has the job store persist, before any command of the same event is carried out."""

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
