"""What JobMasterCore wants done. The shell carries the commands out, in order."""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, TypeAlias

from firesteel.common.checkpoints.metadata import CheckpointMetadata
from firesteel.common.checkpoints.state import OperatorSnapshot
from firesteel.common.ids import (
    AllocationId,
    AttemptId,
    OperatorId,
    ResultId,
    TaskExecutorId,
    VertexId,
)
from firesteel.common.operator_messages import OperatorMessage
from firesteel.common.results import ResultPartitionId
from firesteel.common.states import JobStatus
from jobmaster.core.slots.slot import Requirement


class TaskToDeploy(NamedTuple):
    """A tuple, not a dataclass: there are tens of thousands."""

    attempt_id: AttemptId
    vertex_id: VertexId
    subtask: int
    attempt: int
    allocation_id: AllocationId
    restored: tuple[OperatorSnapshot, ...] | None = None  # None: it begins from nothing


class OutputOf(NamedTuple):
    """One of an operator's outputs."""

    operator_id: OperatorId
    side_output_tag: str = ""  # empty: the main output


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ResultLocations:
    """Where the partitions of one result are. All commands share one object per result, which is
    serialised once.
    """

    result_id: ResultId
    addresses: tuple[str, ...]  # distinct Flight addresses
    address_index: array[int]  # by producer subtask: index into addresses
    attempts: array[int]  # by producer subtask
    ended: bool = False  # all producers had finished before the job was restored; no addresses


@dataclass(frozen=True, slots=True, kw_only=True)
class DeclareRequirements:
    sequence: int  # strictly increasing
    requirements: tuple[Requirement, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerSlots:
    task_executor_id: TaskExecutorId
    accepted: tuple[AllocationId, ...]
    rejected: tuple[AllocationId, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class FreeSlots:
    task_executor_id: TaskExecutorId
    allocation_ids: tuple[AllocationId, ...]
    cause: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ReleasePartitions:
    """Nobody will read these partitions of BLOCKING results."""

    task_executor_id: TaskExecutorId
    partitions: tuple[ResultPartitionId, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class AnalyzeJob:
    task_executor_id: TaskExecutorId
    allocation_id: AllocationId


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class DeployTasks:
    """All tasks that start now on one TaskExecutor."""

    task_executor_id: TaskExecutorId
    tasks: tuple[TaskToDeploy, ...]
    vertices: tuple[VertexId, ...]  # those that occur in tasks
    locations: tuple[ResultLocations, ...]  # of every input of those vertices
    schemas: dict[OutputOf, bytes] = field(repr=False)  # the job's, shared by all commands
    # What the paths of the state that they restore are relative to; empty: the job's directory.
    restored_from: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class CancelTasks:
    task_executor_id: TaskExecutorId
    attempt_ids: tuple[AttemptId, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SendOperatorMessage:
    task_executor_id: TaskExecutorId
    operator_id: OperatorId
    subtask: int
    attempt_id: AttemptId
    message: OperatorMessage


@dataclass(frozen=True, slots=True, kw_only=True)
class TriggerCheckpoint:
    """Begin a checkpoint in these tasks."""

    task_executor_id: TaskExecutorId
    checkpoint_id: int
    timestamp_ms: int
    savepoint: bool
    unaligned: bool
    aligned_timeout_ms: int | None
    at_least_once: bool
    attempt_ids: tuple[AttemptId, ...]
    splits: dict[AttemptId, int]  # how many a source was assigned, where there are any
    base: int | None = None  # see `core.checkpoints.commands`
    stops: bool = False  # sources produce nothing after it, unless it is given up
    stops_into: str = ""  # stops: where the savepoint is to be, for the next JobMaster


@dataclass(frozen=True, slots=True, kw_only=True)
class DrainTasks:
    """End the sources among these tasks, as if they had nothing more to read."""

    task_executor_id: TaskExecutorId
    attempt_ids: tuple[AttemptId, ...]
    stops_into: str = ""  # where the savepoint is to be that follows, for the next JobMaster


@dataclass(frozen=True, slots=True, kw_only=True)
class AdoptTasks:
    """Each of them answers with TaskHeld."""

    task_executor_id: TaskExecutorId
    attempt_ids: tuple[AttemptId, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class NotifyCheckpoint:
    """Tell these tasks how a checkpoint ended."""

    task_executor_id: TaskExecutorId
    checkpoint_id: int
    completed: bool
    attempt_ids: tuple[AttemptId, ...]
    stops: bool = False  # the tasks end now


@dataclass(frozen=True, slots=True, kw_only=True)
class DismissTaskExecutor:
    """Send a Goodbye and close the stream: the job has nothing left there."""

    task_executor_id: TaskExecutorId
    cause: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeTaskExecutor:
    """Its stream broke: find whether its process has ended. If so, TaskExecutorGone results."""

    task_executor_id: TaskExecutorId
    connection: int  # which broke
    address: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportTaskExecutorLost:
    """To the ResourceManager: this JobMaster has found that it is dead."""

    task_executor_id: TaskExecutorId
    cause: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ListPaths:
    """Find the files that these paths and globs match. Results in PathsListed or PathsMissing."""

    operator_id: OperatorId
    paths: tuple[str, ...]
    watched: bool = False  # listed repeatedly: files may be missing, their directories not


@dataclass(frozen=True, slots=True, kw_only=True)
class BeginResults:
    """These operators run from the beginning: what they collect from now on replaces earlier
    rows.
    """

    restart: int  # how many restarts there have been; increases
    operator_ids: tuple[OperatorId, ...]  # also of operators that collect nothing


@dataclass(frozen=True, slots=True, kw_only=True)
class SpoolChunk:
    """Append one chunk of collected rows. Results in ChunkSpooled or ChunkNotSpooled."""

    operator_id: OperatorId
    attempt_id: AttemptId
    sequence: int
    ipc_stream: bytes = field(repr=False)  # empty: shows the chunks of `group`
    group: str = ""  # the chunk is hidden until this is shown; empty: it is not


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreCheckpoint:
    """Write its metadata, then commit its row instead of those that it subsumes. Results in
    CheckpointStored, CheckpointNotStored or Superseded.
    """

    metadata: CheckpointMetadata = field(repr=False)
    size_bytes: int
    subsumed: tuple[int, ...]
    savepoint_path: str = ""  # of a savepoint: all of it is copied into this directory
    # Once it is complete, directories of older ones that are not are deleted, but for these, which
    # are still collected; None: there are none.
    unsettled: frozenset[int] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerRequest:
    """A checkpoint or savepoint that somebody asked for has come to its end."""

    request: str
    checkpoint_id: int = 0
    problem: str = ""  # empty: it is complete


@dataclass(frozen=True, slots=True, kw_only=True)
class DropCheckpoint:
    """Delete a complete checkpoint that is no longer retained."""

    checkpoint_id: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DropAllCheckpoints:
    """The job is over: delete its checkpoints."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DropCheckpointFiles:
    """Delete files that belong to no checkpoint."""

    paths: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepSharedFiles:
    """Delete shared files that checkpoints before this one have written, except those kept."""

    before: int
    kept: frozenset[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportStatus:
    """The job has a new status, or has been analysed: report it to the Dispatcher at once; a
    terminal status with the details to keep.
    """

    status: JobStatus
    timestamp_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportProgress:
    """Task states changed, the status did not: report it to the Dispatcher soon. Several such
    reports may become one.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class Log:
    """A line of the log."""

    level: Literal["info", "warning", "error"]
    text: str
    fields: dict[str, str | int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Exit:
    """The job is over and stored: end the process."""


ToTaskExecutor: TypeAlias = (
    AnswerSlots
    | FreeSlots
    | ReleasePartitions
    | AnalyzeJob
    | DeployTasks
    | CancelTasks
    | SendOperatorMessage
    | TriggerCheckpoint
    | DrainTasks
    | AdoptTasks
    | NotifyCheckpoint
    | DismissTaskExecutor
)
Command: TypeAlias = (
    ToTaskExecutor
    | DeclareRequirements
    | ProbeTaskExecutor
    | ReportTaskExecutorLost
    | ListPaths
    | BeginResults
    | SpoolChunk
    | StoreCheckpoint
    | AnswerRequest
    | DropCheckpoint
    | DropCheckpointFiles
    | SweepSharedFiles
    | DropAllCheckpoints
    | ReportStatus
    | ReportProgress
    | Log
    | Exit
)
