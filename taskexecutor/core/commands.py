"""What the TaskExecutor's core wants done. The shell carries these out, in order.

`message` fields are relayed unread.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from firesteel.common.ids import AllocationId, AttemptId, Epoch, ExecutorId, JobId
from firesteel.common.job_graph import Blob
from firesteel.common.resources import ResourceProfile, SlotStatus
from firesteel.common.results import ResultPartitionId, StoredPartition
from taskexecutor.core.events import HeldTask, TaskState
from taskexecutor.core.process_shape import ProcessShape

# ---- to the ResourceManager


class Stored(NamedTuple):
    """The partitions of BLOCKING results that are kept here, of all jobs."""

    partitions: int = 0
    size_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerSlotRequest:
    allocation_id: AllocationId
    accepted: bool
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportSlots:
    sequence: int  # strictly increasing
    slots: tuple[SlotStatus, ...]  # all of them
    stored: Stored = Stored()
    stored_jobs: tuple[JobId, ...] = ()  # whose it is


# ---- to a JobMaster


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectJobMaster:
    """Connects, and reconnects until CloseJobMaster. Replaces an earlier connection for the job."""

    job_id: JobId
    address: str
    epoch: Epoch


@dataclass(frozen=True, slots=True, kw_only=True)
class CloseJobMaster:
    job_id: JobId


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    allocation_id: AllocationId
    slot_index: int
    profile: ResourceProfile
    executor_id: ExecutorId
    data_address: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SendHello:
    """First on every connection: all that is held for the job."""

    job_id: JobId
    slots: tuple[Offer, ...]
    tasks: tuple[HeldTask, ...]
    partitions: tuple[StoredPartition, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class OfferSlots:
    job_id: JobId
    slots: tuple[Offer, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportSlotLost:
    job_id: JobId
    allocation_id: AllocationId
    slot_index: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportTasks:
    """States that this TaskExecutor itself knows; `reason` if FAILED."""

    job_id: JobId
    states: tuple[TaskState, ...]
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportAnalysisFailed:
    job_id: JobId
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RelayToJobMaster:
    job_id: JobId
    message: object


ToJobMaster = (
    SendHello | OfferSlots | ReportSlotLost | ReportTasks | ReportAnalysisFailed | RelayToJobMaster
)


# ---- to a slot's process, and about it


@dataclass(frozen=True, slots=True, kw_only=True)
class StartProcess:
    executor_id: ExecutorId
    slot_index: int
    shape: ProcessShape


@dataclass(frozen=True, slots=True, kw_only=True)
class LogStartProblem:
    """Once for each cause, however often the start is tried again."""

    slot_index: int
    problem: str
    retry_in_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class KillProcess:
    """SIGKILL to its whole process group; ProcessDied follows."""

    executor_id: ExecutorId
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AssignProcess:
    executor_id: ExecutorId
    job_id: JobId
    allocation_id: AllocationId
    job_dir: str
    python_paths: tuple[str, ...]
    managed_bytes: int  # the slot's memory for state


@dataclass(frozen=True, slots=True, kw_only=True)
class RelayToProcess:
    executor_id: ExecutorId
    message: object


@dataclass(frozen=True, slots=True, kw_only=True)
class CancelInProcess:
    executor_id: ExecutorId
    job_id: JobId
    attempt_ids: tuple[AttemptId, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class CleanProcess:
    """It forgets the job; ProcessCleaned follows."""

    executor_id: ExecutorId
    allocation_id: AllocationId


@dataclass(frozen=True, slots=True, kw_only=True)
class PrepareJobFiles:
    """JobFilesReady or JobFilesFailed follows."""

    job_id: JobId
    blobs: tuple[Blob, ...]
    dispatcher_address: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoveJobFiles:
    job_id: JobId


# ---- to the store of results


@dataclass(frozen=True, slots=True, kw_only=True)
class TakePartitionsOver:
    """From the folder of the process that has written them; serve them from now on."""

    job_id: JobId
    partitions: tuple[StoredPartition, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class DeletePartitions:
    job_id: JobId
    partitions: tuple[ResultPartitionId, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteResults:
    """All partitions of a job."""

    job_id: JobId


Command = (
    AnswerSlotRequest
    | ReportSlots
    | ConnectJobMaster
    | CloseJobMaster
    | ToJobMaster
    | StartProcess
    | LogStartProblem
    | KillProcess
    | AssignProcess
    | RelayToProcess
    | CancelInProcess
    | CleanProcess
    | PrepareJobFiles
    | RemoveJobFiles
    | TakePartitionsOver
    | DeletePartitions
    | DeleteResults
)
