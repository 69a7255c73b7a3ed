"""The events of JobMasterCore, besides Tick."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import NamedTuple, TypeAlias

from firesteel.common.checkpoints import messages
from firesteel.common.checkpoints.descriptions import StateDescriptions
from firesteel.common.file_parts import ListedFile
from firesteel.common.ids import AllocationId, AttemptId, OperatorId, TaskExecutorId, VertexId
from firesteel.common.inspections import Inspection
from firesteel.common.job_graph import ResultPartitionId
from firesteel.common.operator_messages import HeldSplit, OperatorMessage
from firesteel.common.states import ExecutionState
from firesteel.errors import ErrorInfo
from jobmaster.core.coordinators.base import Json
from jobmaster.core.slots.slot import SlotOffer


class TaskUpdate(NamedTuple):
    """One task's new state. A tuple, not a dataclass, because there are tens of thousands."""

    attempt_id: AttemptId
    state: ExecutionState
    error: ErrorInfo | None = None  # FAILED only
    unreadable: ResultPartitionId | None = None  # FAILED only: the partition that could not be read


class TaskPlace(NamedTuple):
    """The subtask that an attempt runs, and its slot."""

    vertex_id: VertexId
    subtask: int
    attempt: int
    allocation_id: AllocationId
    # The splits that its source has read; only for finished tasks, without checkpoints.
    splits: Mapping[OperatorId, Sequence[HeldSplit]] = MappingProxyType({})


class FinishedTask(NamedTuple):
    """A finished task, which need not run again while its results can be read."""

    task_executor_id: TaskExecutorId  # may store its results
    host: str
    slot_index: int
    splits: Mapping[OperatorId, Sequence[int]]  # the places of the splits that its source has read


class ListedTask(NamedTuple):
    """A started task, as described to another JobMaster."""

    vertex_id: VertexId
    subtask: int
    attempt: int
    attempt_id: AttemptId
    finished: FinishedTask | None  # None: it has not finished


class OperatorAnalysis(NamedTuple):
    operator_id: OperatorId
    schema: bytes  # Arrow IPC schema of its output; empty for sinks
    plan: str  # for display; may be empty
    side_schemas: Mapping[str, bytes] = MappingProxyType({})  # of its side outputs, by tag
    states: StateDescriptions | None = None  # None: unknown until it runs
    repeatable: bool = True  # another attempt produces the same rows from the same input


@dataclass(frozen=True, slots=True, kw_only=True)
class JobStarted:
    """Starts the job; the shell is ready."""

    # The analysis of an earlier JobMaster; the job's tasks may run, and are then adopted.
    adopts: tuple[OperatorAnalysis, ...] | None = None
    # The listings of sources whose list is not in the latest checkpoint.
    found: Mapping[OperatorId, Json] = field(default_factory=dict)
    listed: tuple[ListedTask, ...] = ()  # started tasks; only for jobs without checkpoints
    cancels: bool = False  # the user has cancelled the job under that JobMaster


@dataclass(frozen=True, slots=True, kw_only=True)
class CancelRequested:
    pass


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskExecutorConnected:
    """A TaskExecutor has opened its stream (again), and lists all that it holds for the job."""

    task_executor_id: TaskExecutorId
    connection: int  # increasing; a newer one supersedes
    host: str
    slots: tuple[SlotOffer, ...]
    tasks: tuple[TaskUpdate, ...]
    address: str = ""  # of its server, which keeps its port for life; empty: not known
    places: Mapping[AttemptId, TaskPlace] = field(default_factory=dict)  # of its tasks
    data_address: str = ""  # serves partitions of BLOCKING results
    partitions: tuple[ResultPartitionId, ...] = ()  # the partitions that it stores


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskExecutorDisconnected:
    task_executor_id: TaskExecutorId
    connection: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskExecutorGone:
    """This connection broke, and the TaskExecutor's machine reports that its address has no
    listener.
    """

    task_executor_id: TaskExecutorId
    connection: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskExecutorSeen:
    """A heartbeat, or another message that only shows that the TaskExecutor is alive."""

    task_executor_id: TaskExecutorId


@dataclass(frozen=True, slots=True, kw_only=True)
class LossExplained:
    """The reason why a TaskExecutor was lost, or its log, from the driver, after the verdict."""

    task_executor_id: TaskExecutorId
    cause: str = ""
    log: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskExecutorLost:
    """The ResourceManager's verdict that a TaskExecutor is dead."""

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
    problem: str  # names the path and the remedy


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
    problem: str  # for example, a full disk


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointAcknowledged(messages.CheckpointAcknowledged):
    task_executor_id: TaskExecutorId


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointDeclined(messages.CheckpointDeclined):
    task_executor_id: TaskExecutorId


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskDataEnded(messages.DataEnded):
    task_executor_id: TaskExecutorId


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskHeld(messages.TaskHeld):
    task_executor_id: TaskExecutorId


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointStored:
    """The checkpoint is complete."""

    checkpoint_id: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointNotStored:
    checkpoint_id: int
    problem: str
    store_away: bool = False  # the job store cannot be written, which is not the job's fault


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointRequested:
    """A caller requests a checkpoint or a savepoint. Results in AnswerRequest."""

    request: str  # identifies the request; the answer repeats it
    savepoint_path: str = ""  # the directory to create for a savepoint; empty: a checkpoint
    stops: bool = False  # the job ends with the savepoint
    drains: bool = False  # with `stops`: sources end first, so that it is the last checkpoint
    full: bool = False  # refers to no file of an earlier checkpoint
    # The job restarts from it with a different parallelism: it has no rows in flight, and no other
    # checkpoint follows it until `CheckpointCoordinator.release`.
    rescales: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class RescaleRequested:
    """A caller requests a different parallelism. Results in AnswerRescale."""

    request: str
    parallelism: int = 0  # of all vertices whose parallelism the program does not set; 0: unchanged
    by_vertex: Mapping[str, int] = field(default_factory=dict)  # names or ids of vertices
    # As `by_vertex`. If set, that has upper bounds, between which the slots decide.
    lower_bounds: Mapping[str, int] = field(default_factory=dict)
    timeout_s: float = 0.0  # how long to wait for additional slots; 0: slot.request.timeout
    reason: str = ""  # of the autoscaler, in words for users
    dry_run: bool = False  # the answer says what would change


@dataclass(frozen=True, slots=True, kw_only=True)
class ParallelismStored:
    """The outcome of StoreParallelism."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ParallelismNotStored:
    """The outcome of StoreParallelism: nothing was stored."""

    problem: str


@dataclass(frozen=True, slots=True, kw_only=True)
class InspectionRequested:
    """A caller requests an inspection of a task. Results in AnswerInspection."""

    inspection_id: str
    vertex_id: VertexId
    subtask: int
    inspection: Inspection


@dataclass(frozen=True, slots=True, kw_only=True)
class InspectionEnded:
    """The slot has carried out an inspection, or cannot."""

    task_executor_id: TaskExecutorId
    inspection_id: str
    result: bytes = field(repr=False)
    problem: str  # empty: there is a result
    busy: bool  # the problem is another inspection in the slot


@dataclass(frozen=True, slots=True, kw_only=True)
class Superseded:
    """Another JobMaster has the job, or the job is over: this JobMaster stops acting on it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ResourceManagerConnected:
    """The stream to the ResourceManager is open (again): it needs the job's requirements."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotHoldersKnown:
    """All TaskExecutors with slots or results of the job that the ResourceManager knows."""

    task_executor_ids: tuple[TaskExecutorId, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class VacateRequested:
    """This TaskExecutor is to stop: tasks are moved away, and it gets no new ones."""

    task_executor_id: TaskExecutorId
    forced: bool = False  # even if rows are repeated or slots are missing
    without_slots: bool = False  # even if slots are missing


@dataclass(frozen=True, slots=True, kw_only=True)
class VacateWithdrawn:
    """The TaskExecutor is no longer to stop."""

    task_executor_id: TaskExecutorId


@dataclass(frozen=True, slots=True, kw_only=True)
class ResourcesShort:
    """The ResourceManager cannot meet the requirements with existing slots."""

    sequence: int  # of the declaration that was matched
    missing: int
    growing: int  # slots that a driver is starting
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
    | LossExplained
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
    | RescaleRequested
    | ParallelismStored
    | ParallelismNotStored
    | InspectionRequested
    | InspectionEnded
    | Superseded
    | ResourceManagerConnected
    | SlotHoldersKnown
    | VacateRequested
    | VacateWithdrawn
    | ResourcesShort
    | TerminalStatusStored
)
