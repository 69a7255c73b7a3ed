"""Events that the TaskExecutor's core handles. `message` fields are relayed unparsed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from firesteel.common.ids import AllocationId, AttemptId, Epoch, ExecutorId, JobId, VertexId
from firesteel.common.job_graph import Blob, ResultPartitionId, StoredPartition
from firesteel.common.resources import ResourceProfile
from firesteel.common.service.core import Tick
from firesteel.common.states import ExecutionState
from taskexecutor.core.process_shape import Environment

# ---- from the ResourceManager


@dataclass(frozen=True, slots=True, kw_only=True)
class FromResourceManager:
    resource_manager_epoch: Epoch


@dataclass(frozen=True, slots=True, kw_only=True)
class ResourceManagerRegistered(FromResourceManager):
    """The ResourceManager has accepted the registration."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotRequested(FromResourceManager):
    allocation_id: AllocationId
    job_id: JobId
    slot_index: int
    profile: ResourceProfile
    job_master_address: str
    job_master_epoch: Epoch
    environment: Environment = Environment()


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotRevoked(FromResourceManager):
    allocation_id: AllocationId
    cause: str


@dataclass(frozen=True, slots=True, kw_only=True)
class JobMasterChanged(FromResourceManager):
    """The job has a new JobMaster."""

    job_id: JobId
    job_master_address: str
    job_master_epoch: Epoch


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportDue:
    """The periodic slot report is due."""


# ---- from a JobMaster


@dataclass(frozen=True, slots=True, kw_only=True)
class JobMasterConnected:
    job_id: JobId


@dataclass(frozen=True, slots=True, kw_only=True)
class JobMasterDisconnected:
    """The stream broke. The shell reconnects until CloseJobMaster."""

    job_id: JobId
    cause: str


@dataclass(frozen=True, slots=True, kw_only=True)
class FromJobMaster:
    job_id: JobId
    job_master_epoch: Epoch


@dataclass(frozen=True, slots=True, kw_only=True)
class JobMasterHeartbeat(FromJobMaster):
    pass


@dataclass(frozen=True, slots=True, kw_only=True)
class OffersAnswered(FromJobMaster):
    accepted: tuple[AllocationId, ...]
    rejected: tuple[AllocationId, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotsFreed(FromJobMaster):
    allocation_ids: tuple[AllocationId, ...]
    cause: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionsReleased(FromJobMaster):
    """The partitions have no readers left."""

    partitions: tuple[ResultPartitionId, ...]


class TaskPlace(NamedTuple):
    """Names the subtask that an attempt runs, for a JobMaster that does not know it."""

    vertex_id: VertexId
    subtask: int
    attempt: int
    allocation_id: AllocationId
    splits: tuple[Any, ...] = ()  # read by its source; set once the task has finished


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotTasks:
    """One slot's part of a deployment."""

    allocation_id: AllocationId
    tasks: Mapping[AttemptId, TaskPlace]
    message: object

    @property
    def attempt_ids(self) -> tuple[AttemptId, ...]:
        return tuple(self.tasks)


@dataclass(frozen=True, slots=True, kw_only=True)
class TasksSubmitted(FromJobMaster):
    parts: tuple[SlotTasks, ...]
    blobs: tuple[Blob, ...]
    dispatcher_address: str
    cancellation_timeout_s: float  # 0: never
    # The job takes checkpoints: if its JobMaster is lost, a successor adopts its tasks.
    recovers: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class TasksCancelled(FromJobMaster):
    attempt_ids: tuple[AttemptId, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class AnalysisRequested(FromJobMaster):
    allocation_id: AllocationId
    blobs: tuple[Blob, ...]
    dispatcher_address: str
    message: object


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskMessageReceived(FromJobMaster):
    """An operator event, a checkpoint trigger, a checkpoint notification or an adoption, for these
    tasks.
    """

    attempt_ids: tuple[AttemptId, ...]
    message: object


@dataclass(frozen=True, slots=True, kw_only=True)
class JobMasterLeft(FromJobMaster):
    cause: str


@dataclass(frozen=True, slots=True, kw_only=True)
class JobMasterDied:
    """The JobMaster's machine reports that its process ended. Repeated until CloseJobMaster."""

    job_id: JobId
    job_master_epoch: Epoch
    cause: str


# ---- from a slot's process, and about it


@dataclass(frozen=True, slots=True, kw_only=True)
class FromProcess:
    """Base of the events that show that the process is alive."""

    executor_id: ExecutorId


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessHeartbeat(FromProcess):
    pass


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessReady(FromProcess):
    pid: int
    data_address: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessEnding(FromProcess):
    """The process cannot continue and reports why before it exits."""

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessLinkBroken:
    """The link to the process broke, usually because the process died; ProcessDied then follows."""

    executor_id: ExecutorId


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessDied:
    """The process and its process group have ended. `cause` holds the exit code and, if the process
    never became ready, the end of its log.
    """

    executor_id: ExecutorId
    cause: str


@dataclass(frozen=True, slots=True, kw_only=True)
class MemorySampled:
    executor_id: ExecutorId
    used_bytes: int


class TaskState(NamedTuple):
    attempt_id: AttemptId
    state: ExecutionState
    splits: tuple[Any, ...] = ()  # read by the task's source; reported to the next JobMaster


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskStatesReported(FromProcess):
    job_id: JobId
    states: tuple[TaskState, ...]
    message: object
    partitions: tuple[StoredPartition, ...] = ()  # left by finished tasks


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessMessageReceived(FromProcess):
    """Any other message to the JobMaster: operator events, analysis results, metrics."""

    job_id: JobId
    message: object
    # keep for a JobMaster that is not connected; False if the message is useless later
    keep: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessCleaned(FromProcess):
    allocation_id: AllocationId


@dataclass(frozen=True, slots=True, kw_only=True)
class JobFilesReady:
    job_id: JobId
    job_dir: str
    python_paths: tuple[str, ...]
    single_use: bool  # a process that has imported from these cannot serve another job


@dataclass(frozen=True, slots=True, kw_only=True)
class JobFilesFailed:
    job_id: JobId
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StopRequested:
    cause: str


Event = (
    Tick
    | ResourceManagerRegistered
    | SlotRequested
    | SlotRevoked
    | JobMasterChanged
    | ReportDue
    | JobMasterConnected
    | JobMasterDisconnected
    | JobMasterHeartbeat
    | OffersAnswered
    | SlotsFreed
    | PartitionsReleased
    | TasksSubmitted
    | TasksCancelled
    | AnalysisRequested
    | TaskMessageReceived
    | JobMasterLeft
    | JobMasterDied
    | ProcessHeartbeat
    | ProcessReady
    | ProcessEnding
    | ProcessLinkBroken
    | ProcessDied
    | MemorySampled
    | TaskStatesReported
    | ProcessMessageReceived
    | ProcessCleaned
    | JobFilesReady
    | JobFilesFailed
    | StopRequested
)
