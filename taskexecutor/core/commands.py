"""Commands of the TaskExecutor's core. The shell executes them in order.

`message` fields are relayed unparsed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from firesteel.common.ids import AllocationId, AttemptId, Epoch, ExecutorId, JobId
from firesteel.common.job_graph import Blob, ResultPartitionId, StoredPartition
from firesteel.common.resources import ResourceProfile, SlotStatus
from taskexecutor.core.events import TaskPlace, TaskState
from taskexecutor.core.process_shape import ProcessShape

# ---- to the ResourceManager


class Stored(NamedTuple):
    """Count and size of the partitions of BLOCKING results stored here, for all jobs."""

    partitions: int = 0
    size_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class AcceptSlotRequest:
    allocation_id: AllocationId


@dataclass(frozen=True, slots=True, kw_only=True)
class RejectSlotRequest:
    allocation_id: AllocationId
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportSlots:
    sequence: int  # strictly increasing
    slots: tuple[SlotStatus, ...]  # every slot of this TaskExecutor
    stored_partitions: int = 0  # of BLOCKING results, for all jobs
    stored_bytes: int = 0  # their size
    stored_jobs: tuple[JobId, ...] = ()  # the jobs that own them


ToResourceManager = AcceptSlotRequest | RejectSlotRequest | ReportSlots


# ---- to a JobMaster


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectJobMaster:
    """Connects, and reconnects until CloseJobMaster. Replaces the job's previous connection."""

    job_id: JobId
    address: str
    epoch: Epoch


@dataclass(frozen=True, slots=True, kw_only=True)
class CloseJobMaster:
    job_id: JobId


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotOffer:
    allocation_id: AllocationId
    slot_index: int
    profile: ResourceProfile
    executor_id: ExecutorId
    data_address: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SendHello:
    """The first message on every connection: lists everything held for the job."""

    job_id: JobId
    slots: tuple[SlotOffer, ...]
    tasks: tuple[TaskState, ...]
    places: Mapping[AttemptId, TaskPlace]  # of the tasks
    partitions: tuple[ResultPartitionId, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class OfferSlots:
    job_id: JobId
    slots: tuple[SlotOffer, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportSlotLost:
    job_id: JobId
    allocation_id: AllocationId
    slot_index: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportTasks:
    """Reports states that the TaskExecutor itself determined, with a `reason` if FAILED."""

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
    """Logs why processes cannot start: once per cause, not once per retry."""

    slot_index: int
    problem: str
    retry_in_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class KillProcess:
    """Sends SIGKILL to the process group. ProcessDied follows."""

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
    """Makes the process discard the job. ProcessCleaned follows."""

    executor_id: ExecutorId
    allocation_id: AllocationId


@dataclass(frozen=True, slots=True, kw_only=True)
class PrepareJobFiles:
    """Downloads and unpacks the job's files. JobFilesReady or JobFilesFailed follows."""

    job_id: JobId
    blobs: tuple[Blob, ...]
    dispatcher_address: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoveJobFiles:
    job_id: JobId


# ---- to the store of results


@dataclass(frozen=True, slots=True, kw_only=True)
class TakePartitionsOver:
    """Moves the partitions out of the producing process's folder and serves them."""

    job_id: JobId
    partitions: tuple[StoredPartition, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class DeletePartitions:
    job_id: JobId
    partitions: tuple[ResultPartitionId, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteResults:
    """Deletes all partitions of a job."""

    job_id: JobId


Command = (
    ToResourceManager
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
