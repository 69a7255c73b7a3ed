"""The commands of JobMasterCore. The shell carries them out in order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
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
from firesteel.common.inspections import Inspection
from firesteel.common.job_graph import ResultPartitionId
from firesteel.common.operator_messages import OperatorMessage
from firesteel.common.states import JobStatus
from jobmaster.core.slots.slot import Requirement


class TaskToDeploy(NamedTuple):
    """A tuple, not a dataclass, because there are tens of thousands."""

    attempt_id: AttemptId
    vertex_id: VertexId
    subtask: int
    attempt: int
    allocation_id: AllocationId
    restored: tuple[OperatorSnapshot, ...] | None = None  # None: it starts without state


class OutputOf(NamedTuple):
    """One of an operator's outputs."""

    operator_id: OperatorId
    side_output_tag: str = ""  # empty: the main output


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ResultLocations:
    """The locations of one result's partitions. All commands share one object per result, which is
    serialised once.
    """

    result_id: ResultId
    addresses: tuple[str, ...]  # distinct Flight addresses
    address_index: Sequence[int]  # by producer subtask: index into addresses
    attempts: Sequence[int]  # by producer subtask
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
    """Releases partitions of BLOCKING results that no task will read."""

    task_executor_id: TaskExecutorId
    partitions: tuple[ResultPartitionId, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class AnalyzeJob:
    task_executor_id: TaskExecutorId
    allocation_id: AllocationId


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class DeployTasks:
    """Deploys all tasks that start now on one TaskExecutor."""

    task_executor_id: TaskExecutorId
    tasks: tuple[TaskToDeploy, ...]
    vertices: tuple[VertexId, ...]  # the vertices that occur in tasks
    locations: tuple[ResultLocations, ...]  # of every input of these vertices
    schemas: dict[OutputOf, bytes] = field(repr=False)  # the job's, shared by all commands
    # The base directory of the paths of restored state; empty: the job's directory.
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
    """Triggers a checkpoint in these tasks; barriers carry it to the others."""

    task_executor_id: TaskExecutorId
    checkpoint_id: int
    timestamp_ms: int
    savepoint: bool
    unaligned: bool
    aligned_timeout_ms: int | None
    at_least_once: bool
    attempt_ids: tuple[AttemptId, ...]
    splits: dict[AttemptId, int]  # the number of splits assigned to each source
    # Incremental: the complete checkpoint whose files it may refer to, or 0. None: it refers only
    # to its own files.
    base: int | None = None
    stops: bool = False  # sources produce nothing after it, unless it is abandoned
    savepoint_path: str = ""  # with `stops`: the savepoint's path, for the next JobMaster


@dataclass(frozen=True, slots=True, kw_only=True)
class DrainTasks:
    """Ends the sources among these tasks as if they had reached the end of their input. Tasks that
    have processed all their data report it again.
    """

    task_executor_id: TaskExecutorId
    attempt_ids: tuple[AttemptId, ...]
    savepoint_path: str = ""  # the path of the savepoint that follows, for the next JobMaster


@dataclass(frozen=True, slots=True, kw_only=True)
class AdoptTasks:
    """Requests these tasks to report what they hold. Each answers with TaskHeld."""

    task_executor_id: TaskExecutorId
    attempt_ids: tuple[AttemptId, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class InspectTask:
    """Inspects the task, which answers with InspectionEnded."""

    task_executor_id: TaskExecutorId
    attempt_ids: tuple[AttemptId, ...]  # one
    inspection_id: str
    inspection: Inspection


@dataclass(frozen=True, slots=True, kw_only=True)
class NotifyCheckpoint:
    """Notifies these tasks of a checkpoint's outcome."""

    task_executor_id: TaskExecutorId
    checkpoint_id: int
    completed: bool
    attempt_ids: tuple[AttemptId, ...]
    stops: bool = False  # the tasks end now


@dataclass(frozen=True, slots=True, kw_only=True)
class DismissTaskExecutor:
    """Sends a Goodbye and closes the stream: the job has nothing left on this TaskExecutor."""

    task_executor_id: TaskExecutorId
    cause: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeTaskExecutor:
    """Checks whether the process of a TaskExecutor whose stream broke has ended. If so, the shell
    posts TaskExecutorGone.
    """

    task_executor_id: TaskExecutorId
    connection: int  # the one that broke
    address: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportTaskExecutorLost:
    """Reports to the ResourceManager that this JobMaster has found a TaskExecutor dead."""

    task_executor_id: TaskExecutorId
    cause: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ListPaths:
    """Lists the files that match these paths and globs. Results in PathsListed or PathsMissing."""

    operator_id: OperatorId
    paths: tuple[str, ...]
    watched: bool = False  # listed repeatedly: files may be missing, but not their directories


@dataclass(frozen=True, slots=True, kw_only=True)
class BeginResults:
    """Starts these operators from the beginning: the rows that they collect from now on replace
    earlier rows.
    """

    restart: int  # the number of restarts so far
    operator_ids: tuple[OperatorId, ...]  # includes operators that collect no rows


@dataclass(frozen=True, slots=True, kw_only=True)
class SpoolChunk:
    """Appends one chunk of collected rows. Results in ChunkSpooled or ChunkNotSpooled."""

    operator_id: OperatorId
    attempt_id: AttemptId
    sequence: int
    ipc_stream: bytes = field(repr=False)  # empty: publishes the chunks of `group`
    group: str = ""  # the chunk is hidden until its group is published; empty: it is not hidden


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreCheckpoint:
    """Writes the checkpoint's metadata, then commits its row in place of those that it subsumes.
    Results in CheckpointStored, CheckpointNotStored or Superseded, also after an ambiguous answer
    of the database: the store reads the row back (invariant 5).
    """

    metadata: CheckpointMetadata = field(repr=False)
    size_bytes: int
    subsumed: tuple[int, ...]
    savepoint_path: str = ""  # of a savepoint: all its files are copied into this directory
    # Once it is complete, directories of older failed checkpoints are deleted, including files of
    # processes that died; excludes these, which may yet complete. None: none has failed.
    unsettled: frozenset[int] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreParallelism:
    """Stores the parallelism that the job has from its next restart on. Results in
    ParallelismStored, ParallelismNotStored or Superseded.
    """

    version: int
    by_vertex: Mapping[VertexId, int]
    lower: Mapping[VertexId, int]
    upper: Mapping[VertexId, int]
    must: bool  # repeated until it is stored: there is no alternative


@dataclass(frozen=True, slots=True, kw_only=True)
class UseParallelism:
    """Deployments have this parallelism from now on."""

    by_vertex: Mapping[VertexId, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerRescale:
    """Reports the outcome of a request for a different parallelism."""

    request: str
    before: Mapping[VertexId, int] = field(default_factory=dict)
    after: Mapping[VertexId, int] = field(default_factory=dict)
    problem: str = ""  # why the parallelism is unchanged; empty: all tasks run with the new one
    invalid: bool = False  # the request has no meaning for this job
    tasks: int = 0  # of a dry run: that would restart
    missing_slots: int = 0  # of a dry run


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerRequest:
    """Reports the outcome of a requested checkpoint or savepoint."""

    request: str
    checkpoint_id: int = 0
    problem: str = ""  # empty: it is complete


class InspectionRefusal(Enum):
    """Why an inspection has no result."""

    NOT_FOUND = auto()  # there is no such task
    NOT_RUNNING = auto()
    BUSY = auto()  # another inspection runs in the slot
    FAILED = auto()  # the slot cannot carry it out
    LOST = auto()  # no answer has arrived in time


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerInspection:
    inspection_id: str
    result: bytes = field(default=b"", repr=False)
    refusal: InspectionRefusal | None = None  # None: there is a result
    problem: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class DropCheckpoint:
    """Deletes a complete checkpoint that is no longer retained."""

    checkpoint_id: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DropAllCheckpoints:
    """Deletes the job's checkpoints at its end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DropCheckpointFiles:
    """Deletes files that belong to no checkpoint."""

    paths: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepSharedFiles:
    """Deletes shared files that checkpoints before this one have written, except those kept:
    attempts that died before they acknowledged, and earlier masters, have left them.
    """

    before: int
    kept: frozenset[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportStatus:
    """Reports a new status, or a finished analysis, to the Dispatcher immediately. A terminal
    status includes the final details.
    """

    status: JobStatus
    timestamp_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportProgress:
    """Reports changed task states to the Dispatcher soon; the status did not change. Several
    reports may be combined.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class Log:
    """Writes a line to the log."""

    level: Literal["info", "warning", "error"]
    text: str
    fields: dict[str, str | int] = field(default_factory=dict)


def log(level: Literal["info", "warning", "error"], text: str, **fields: str | int) -> Log:
    return Log(level=level, text=text, fields=fields)


@dataclass(frozen=True, slots=True, kw_only=True)
class Exit:
    """Ends the process: the job is over and stored."""


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
    | InspectTask
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
    | StoreParallelism
    | UseParallelism
    | AnswerRescale
    | AnswerRequest
    | AnswerInspection
    | DropCheckpoint
    | DropCheckpointFiles
    | SweepSharedFiles
    | DropAllCheckpoints
    | ReportStatus
    | ReportProgress
    | Log
    | Exit
)
