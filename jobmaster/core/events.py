"""What can happen to a job: all events of JobMasterCore, besides Tick."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import NamedTuple, TypeAlias

from firesteel.common.checkpoints.descriptions import StateDescriptions
from firesteel.common.file_parts import ListedFile
from firesteel.common.ids import AllocationId, AttemptId, OperatorId, TaskExecutorId, VertexId
from firesteel.common.operator_messages import HeldSplit, OperatorMessage
from firesteel.common.results import ResultPartitionId
from firesteel.common.states import ExecutionState
from firesteel.errors import ErrorInfo
from jobmaster.core.checkpoints.checkpoint import Snapshot
from jobmaster.core.coordinators.base import Json
from jobmaster.core.slots.slot import SlotOffer


class TaskUpdate(NamedTuple):
    """One task's new state. A tuple, not a dataclass: there are tens of thousands."""

    attempt_id: AttemptId
    state: ExecutionState
    error: ErrorInfo | None = None  # FAILED only
    unreadable: ResultPartitionId | None = None  # FAILED only: because of this partition


class TaskPlace(NamedTuple):
    """Which subtask an attempt runs, and in which slot."""

    vertex_id: VertexId
    subtask: int
    attempt: int
    allocation_id: AllocationId
    # That its source has read; of one that has finished, without checkpoints.
    splits: Mapping[OperatorId, Sequence[HeldSplit]] = MappingProxyType({})


class FinishedTask(NamedTuple):
    """It need not run again as long as its results can be read."""

    task_executor_id: TaskExecutorId  # which may keep them
    host: str
    slot_index: int
    splits: Mapping[OperatorId, Sequence[int]]  # the places of those that its source has read


class ListedTask(NamedTuple):
    """What another JobMaster has to know of a task that has begun."""

    vertex_id: VertexId
    subtask: int
    attempt: int
    attempt_id: AttemptId
    finished: FinishedTask | None  # None: it has not


class OperatorAnalysis(NamedTuple):
    operator_id: OperatorId
    schema: bytes  # Arrow IPC schema of its output; empty for sinks
    plan: str  # to show; may be empty
    side_schemas: Mapping[str, bytes] = MappingProxyType({})  # of its side outputs, by tag
    states: StateDescriptions | None = None  # None: they are not known before it runs
    repeatable: bool = True  # another attempt produces the same rows of the same input


@dataclass(frozen=True, slots=True, kw_only=True)
class JobStarted:
    """The shell is up: begin."""

    # What an earlier JobMaster's analysis found; the job's tasks may run, and are adopted then.
    adopts: tuple[OperatorAnalysis, ...] | None = None
    # What its sources had found to read; of those whose list is not in the latest checkpoint.
    found: Mapping[OperatorId, Json] = field(default_factory=dict)
    listed: tuple[ListedTask, ...] = ()  # tasks that have begun, if no checkpoint tells
    cancels: bool = False  # the job's user has cancelled it under that JobMaster


@dataclass(frozen=True, slots=True, kw_only=True)
class CancelRequested:
    pass


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskExecutorConnected:
    """A TaskExecutor has opened its stream (again), and names all that it holds for the job."""

    task_executor_id: TaskExecutorId
    connection: int  # increasing; a newer one supersedes
    host: str
    slots: tuple[SlotOffer, ...]
    tasks: tuple[TaskUpdate, ...]
    address: str = ""  # of its own server, whose port it has for life; empty: not known
    places: Mapping[AttemptId, TaskPlace] = field(default_factory=dict)  # of its tasks
    data_address: str = ""  # where it serves partitions of BLOCKING results
    partitions: tuple[ResultPartitionId, ...] = ()  # those that it keeps


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskExecutorDisconnected:
    task_executor_id: TaskExecutorId
    connection: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskExecutorGone:
    """After this connection broke: nothing listens at its address any more, says its machine."""

    task_executor_id: TaskExecutorId
    connection: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskExecutorSeen:
    """A heartbeat, or another message that only shows that it is alive."""

    task_executor_id: TaskExecutorId


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskExecutorLost:
    """The ResourceManager's verdict: it is dead."""

    task_executor_id: TaskExecutorId
    cause: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotsOffered:
    task_executor_id: TaskExecutorId
    slots: tuple[SlotOffer, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotLost:
    task_executor_id: TaskExecutorId
    allocation_id: AllocationId
    error: ErrorInfo


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskStatesReported:
    task_executor_id: TaskExecutorId
    updates: tuple[TaskUpdate, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorMessageReceived:
    task_executor_id: TaskExecutorId
    operator_id: OperatorId
    attempt_id: AttemptId
    message: OperatorMessage


@dataclass(frozen=True, slots=True, kw_only=True)
class JobAnalyzed:
    task_executor_id: TaskExecutorId
    operators: tuple[OperatorAnalysis, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class AnalysisFailed:
    """The plan cannot run: an unknown column, a user function that raises, ..."""

    task_executor_id: TaskExecutorId
    error: ErrorInfo


@dataclass(frozen=True, slots=True, kw_only=True)
class PathsListed:
    operator_id: OperatorId
    files: tuple[ListedFile, ...]  # in the order in which to read them
    skipped: tuple[str, ...] = ()  # paths that are not regular files, each with its kind


@dataclass(frozen=True, slots=True, kw_only=True)
class PathsMissing:
    """A source path matches nothing, or could not be listed."""

    operator_id: OperatorId
    problem: str  # names the path and what to do


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkSpooled:
    operator_id: OperatorId
    attempt_id: AttemptId
    sequence: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkNotSpooled:
    operator_id: OperatorId
    attempt_id: AttemptId
    sequence: int
    problem: str  # e.g. a full disk


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointAcknowledged:
    """A task's part of a checkpoint is written."""

    task_executor_id: TaskExecutorId
    attempt_id: AttemptId
    checkpoint_id: int
    snapshot: Snapshot


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointDeclined:
    task_executor_id: TaskExecutorId
    attempt_id: AttemptId
    checkpoint_id: int
    cause: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskDataEnded:
    """The task has processed all its data, and only waits for a checkpoint that holds that."""

    task_executor_id: TaskExecutorId
    attempt_id: AttemptId


class Stopping(NamedTuple):
    """The job is to end with a savepoint."""

    path: str  # where that is to be
    drains: bool  # its sources end first


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskHeld:
    """What an adopted task has from earlier JobMasters, all of whose messages it has read."""

    task_executor_id: TaskExecutorId
    attempt_id: AttemptId
    splits: Mapping[OperatorId, Sequence[HeldSplit]]  # by source: all that it was assigned
    open_checkpoints: tuple[int, ...]  # that it takes part in, and does not know the end of
    stops_with: int | None  # its source waits for the end of this savepoint
    data_ended: bool
    stops: Stopping | None = None  # None: the job is not being stopped, as far as the task knows


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointStored:
    """It is complete."""

    checkpoint_id: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointNotStored:
    checkpoint_id: int
    problem: str
    store_away: bool = False  # the job store cannot be written: no fault of the job's


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointRequested:
    """Somebody asks for a checkpoint or a savepoint. Results in AnswerRequest."""

    request: str
    savepoint_path: str = ""  # of the directory to make for it; empty: a checkpoint
    stops: bool = False  # the job ends with the savepoint
    drains: bool = False  # stops: its sources end first
    full: bool = False  # it refers to no file of an earlier checkpoint


@dataclass(frozen=True, slots=True, kw_only=True)
class Superseded:
    """Another JobMaster has the job, or it is over: this one changes nothing any more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ResourceManagerConnected:
    """The stream to the ResourceManager is open (again): it needs to know what the job requires."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotHoldersKnown:
    """The TaskExecutors with slots or results of the job: all, as the ResourceManager knows."""

    task_executor_ids: tuple[TaskExecutorId, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class VacateRequested:
    """This TaskExecutor is to stop: tasks are moved away, and it gets no others."""

    task_executor_id: TaskExecutorId
    forced: bool = False  # also if rows are repeated, or slots are missing


@dataclass(frozen=True, slots=True, kw_only=True)
class VacateWithdrawn:
    """It does not stop."""

    task_executor_id: TaskExecutorId


@dataclass(frozen=True, slots=True, kw_only=True)
class ResourcesShort:
    """The ResourceManager cannot meet the requirements with what exists."""

    sequence: int  # of the declaration judged
    missing: int
    growing: int  # slots a driver is bringing up
    explanation: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TerminalStatusStored:
    """The Dispatcher has stored the terminal status: this process may end."""


Event: TypeAlias = (
    JobStarted
    | CancelRequested
    | TaskExecutorConnected
    | TaskExecutorDisconnected
    | TaskExecutorGone
    | TaskExecutorSeen
    | TaskExecutorLost
    | SlotsOffered
    | SlotLost
    | TaskStatesReported
    | OperatorMessageReceived
    | JobAnalyzed
    | AnalysisFailed
    | PathsListed
    | PathsMissing
    | ChunkSpooled
    | ChunkNotSpooled
    | CheckpointAcknowledged
    | CheckpointDeclined
    | TaskDataEnded
    | TaskHeld
    | CheckpointStored
    | CheckpointNotStored
    | CheckpointRequested
    | Superseded
    | ResourceManagerConnected
    | SlotHoldersKnown
    | VacateRequested
    | VacateWithdrawn
    | ResourcesShort
    | TerminalStatusStored
)
