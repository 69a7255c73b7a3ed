"""The commands of the Dispatcher's core to the shell."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from dispatcher.core.events import SubmitJob
from firesteel.common.ids import JobId
from firesteel.common.states import JobStatus


class RefusalKind(Enum):
    NOT_FOUND = "not found"
    ALREADY_EXISTS = "already exists"
    WRONG_STATE = "wrong state"
    NOT_STORED = "not stored"


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    kind: RefusalKind
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    request: int
    refusal: Refusal | None = None  # None: accepted


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreGraph:
    """Stores the graph of a job that is to be accepted. Results in GraphStored; on an error, the
    shell answers the client.
    """

    submission: SubmitJob


@dataclass(frozen=True, slots=True, kw_only=True)
class StartProcess:
    """Starts a JobMaster process. Results in ProcessStarted or ProcessStartFailed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KillProcess:
    pid: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StartJob:
    """Assigns the job to a JobMaster. Resent with the same epoch if the JobMaster reconnects before
    it has reported.
    """

    connection: int
    job_id: JobId
    graph_id: str
    epoch: int
    restart_history: str = ""  # as last reported by the job's previous JobMaster
    history: bytes = b""  # as above
    handover: bytes = b""  # as above
    reconciles: bool = False  # the job's tasks may be running and are to be adopted
    cancels: bool = False  # a user has cancelled the job


@dataclass(frozen=True, slots=True, kw_only=True)
class AskToCancel:
    job_id: JobId
    address: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Acknowledge:
    """Confirms that the terminal status is stored: the JobMaster process may exit."""

    connection: int
    status: JobStatus


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeJobMaster:
    """Queries the JobMaster that an earlier Dispatcher assigned: is it alive, and does it run the
    job? Results in JobMasterProbed.
    """

    job_id: JobId
    epoch: int
    address: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NotifyWatchers:
    job_id: JobId


@dataclass(frozen=True, slots=True, kw_only=True)
class DropResults:
    """Deletes the job's collected rows, and files that no job needs."""

    job_id: JobId


@dataclass(frozen=True, slots=True, kw_only=True)
class DropLog:
    """Deletes the log of the job's JobMaster."""

    job_id: JobId


Command = (
    Answer
    | StoreGraph
    | StartProcess
    | KillProcess
    | StartJob
    | AskToCancel
    | Acknowledge
    | ProbeJobMaster
    | NotifyWatchers
    | DropResults
    | DropLog
)
