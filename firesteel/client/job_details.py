"""Jobs and clusters in the form that `firesteel.Client` and the command line show."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple, cast, overload

from firesteel._proto import (
    dispatcher_pb2,
    job_master_pb2,
    resource_manager_pb2,
)
from firesteel.common.machines import MachineUsage
from firesteel.common.rescales import Assessment, Rescale
from firesteel.common.resources import UNKNOWN, ResourceProfile
from firesteel.common.rpc.convert import summed
from firesteel.common.rpc.mapping import Codec, Wire
from firesteel.common.states import ExecutionState, JobStatus
from firesteel.common.task_metrics import Choice, TaskMetrics
from firesteel.errors import ErrorInfo


@dataclass(frozen=True, slots=True, kw_only=True)
class JobOverview:
    job_id: str
    name: str
    status: JobStatus
    start_ms: int
    end_ms: int  # 0: not ended
    tasks_by_state: dict[str, int]
    owner: str = ""  # the name of who submitted it; empty: not known


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """One execution of one subtask."""

    attempt_id: str
    number: int
    state: ExecutionState
    host: str
    task_executor_id: str
    slot_index: int
    entered_ms: dict[ExecutionState, int]  # by state: when it entered it
    metrics: TaskMetrics
    error: ErrorInfo | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Subtask:
    index: int
    attempts: tuple[Attempt, ...]  # the current one is last

    @property
    def current(self) -> Attempt | None:
        return self.attempts[-1] if self.attempts else None


class Subtasks(Sequence[Subtask]):
    """The subtasks of a vertex in messages. Each is decoded when it is read, and sums are those of
    the messages: a vertex may have ten thousand subtasks.
    """

    def __init__(self, messages: Sequence[job_master_pb2.SubtaskDetails]) -> None:
        self._messages = messages
        self._decoded: dict[int, Subtask] = {}
        self._current = [each.attempts[-1] for each in messages if each.attempts]

    def __len__(self) -> int:
        return len(self._messages)

    @overload
    def __getitem__(self, index: int) -> Subtask: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[Subtask, ...]: ...
    def __getitem__(self, index: int | slice) -> Subtask | tuple[Subtask, ...]:
        if isinstance(index, slice):
            return tuple(self[i] for i in range(*index.indices(len(self))))
        place = range(len(self))[index]
        if place not in self._decoded:
            self._decoded[place] = SUBTASK.decode(self._messages[place])
        return self._decoded[place]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and tuple(self) == tuple(other)

    __hash__ = None  # type: ignore[assignment]

    def metrics_of(self, place: int) -> TaskMetrics | None:
        """The metrics of the current attempt, with the amounts and times of TaskMetrics alone."""
        attempts = self._messages[place].attempts
        return cast(TaskMetrics, attempts[-1].metrics) if attempts else None

    @property
    def states(self) -> Counter[ExecutionState]:
        counts = Counter(each.state for each in self._current)
        return Counter({ExecutionState(state): count for state, count in counts.items()})

    @cached_property
    def metrics(self) -> TaskMetrics:
        return summed(each.metrics for each in self._current)


def metrics_of(subtasks: Sequence[Subtask]) -> list[TaskMetrics | None]:
    """The amounts and times of the current attempts, in the order of `subtasks`."""
    if isinstance(subtasks, Subtasks):
        return [subtasks.metrics_of(place) for place in range(len(subtasks))]
    return [each.current.metrics if each.current else None for each in subtasks]


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorDetails:
    operator_id: str
    uid: str
    name: str
    kind: str
    runs_on_spark: bool
    plan: str
    group: int = 0  # operators of a vertex with the same number share one plan on Spark
    choice: Choice | None = None  # of a group, under its last operator; None: not yet known
    state_bytes: int | None = None  # in the last complete checkpoint; None: it has no state there


@dataclass(frozen=True, slots=True, kw_only=True)
class Activity:
    """The activity of a vertex in the last seconds: rates per second, and shares from 0 to 1."""

    records_in: float
    records_out: float
    bytes_in: float
    bytes_out: float
    busy: float
    back_pressured: float
    idle: float
    spark: float
    python: float
    exchange: float
    planning: float  # of Spark's plans; part of `spark`
    gc: float  # the slots' JVMs collect garbage; part of the others
    busiest_subtask: int
    busiest: float  # its busy share
    largest_subtask: int
    largest: float | None  # its share of the records that the vertex received


@dataclass(frozen=True, slots=True, kw_only=True)
class Vertex:
    vertex_id: str
    name: str
    parallelism: int
    max_parallelism: int
    slot_sharing_group: str
    operators: tuple[OperatorDetails, ...]
    subtasks: Sequence[Subtask]
    input_vertex_ids: tuple[str, ...]
    input_partitioners: tuple[str, ...] = ()  # of these inputs: FORWARD, HASH, ...
    activity: Activity | None = None  # None: unknown
    state_bytes: int | None = None  # in the last complete checkpoint
    lower_bound: int = 0  # of its parallelism; 0: unknown
    upper_bound: int = 0

    @property
    def states(self) -> Counter[ExecutionState]:
        if isinstance(self.subtasks, Subtasks):
            return self.subtasks.states
        return Counter(s.current.state for s in self.subtasks if s.current is not None)

    @property
    def metrics(self) -> TaskMetrics:
        """The sum over the current attempts of all subtasks."""
        if isinstance(self.subtasks, Subtasks):
            return self.subtasks.metrics
        return sum(
            (s.current.metrics for s in self.subtasks if s.current is not None), TaskMetrics()
        )


class Rescaled(NamedTuple):
    """The parallelism of a job's vertices before and after a change, by vertex."""

    before: Mapping[str, int]
    after: Mapping[str, int]
    # The rest is known after a dry run.
    tasks: int = 0  # that would restart
    missing_slots: int = 0  # that the job would need in addition
    assessments: tuple[Assessment, ...] = ()  # the autoscaler's
    window_s: float = 0.0  # over which it measures
    autoscaled: bool = False  # it changes the job

    @property
    def changes(self) -> dict[str, tuple[int, int]]:
        before = self.before
        return {v: (before[v], new) for v, new in self.after.items() if before[v] != new}


class StatusChange(NamedTuple):
    status: JobStatus
    timestamp_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SubtaskCheckpoint:
    """A task's part of a checkpoint, once it is written. Times are in milliseconds."""

    task: str
    size_bytes: int
    start_delay_ms: float  # from the trigger to the first barrier
    alignment_ms: float  # from the first barrier to the last
    sync_ms: float  # in the task's thread
    async_ms: float  # writing files
    vertex_id: str = ""
    subtask: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointDetails:
    """A checkpoint or savepoint. Its times, in milliseconds, are those of the slowest task."""

    checkpoint_id: int
    savepoint: bool
    state: str  # COLLECTING, STORING, COMPLETED, FAILED
    triggered_ms: int
    duration_ms: int
    size_bytes: int
    acknowledged: int  # tasks
    tasks: int
    failure: str  # empty unless it FAILED
    start_delay_ms: float
    alignment_ms: float
    sync_ms: float
    async_ms: float
    subtasks: tuple[SubtaskCheckpoint, ...] = ()
    path: str = ""  # of its directory; empty: not complete
    # COMPLETED only: rows that sources have read since the checkpoint that was complete before, by
    # id of their vertex; empty: not known.
    records_read: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class JobDetails:
    job_id: str
    name: str
    status: JobStatus
    start_ms: int
    end_ms: int = 0  # 0: not ended
    entered_ms: tuple[StatusChange, ...] = ()  # in order; a status may occur repeatedly
    vertices: tuple[Vertex, ...] = ()
    exceptions: tuple[ErrorInfo, ...] = ()  # newest first
    waiting_for: str = ""
    checkpoints: tuple[CheckpointDetails, ...] = ()  # the most recent ones, newest first
    warnings: tuple[str, ...] = ()
    owner: str = ""  # the name of who submitted it; empty: not known
    configuration: Mapping[str, str] = field(default_factory=dict)  # its own, without secrets
    scaling: str = ""  # the last decision of its autoscaler; empty: none
    rescales: tuple[Rescale, ...] = ()  # the last changes of its parallelism, newest first
    spark_ui: str = ""  # the UI of its Spark program; empty: none, or not known yet

    @property
    def states(self) -> Counter[ExecutionState]:
        return sum((vertex.states for vertex in self.vertices), Counter[ExecutionState]())


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskExecutorOverview:
    task_executor_id: str
    address: str
    host: str
    pid: int
    slots: int
    slots_free: int
    slots_warm: int
    stored_bytes: int = 0  # of blocking results
    slot_problem: str = ""  # why the process of one of its slots cannot start
    stops: bool = False  # it gets no more slots
    total: ResourceProfile = UNKNOWN
    remaining: ResourceProfile = UNKNOWN  # what its slots do not use
    usage: MachineUsage | None = None  # None: not reported yet


@dataclass(frozen=True, slots=True, kw_only=True)
class MasterOverview:
    """A process that holds an office, or stands by for it."""

    office: str  # dispatcher, resource_manager or job_master
    address: str
    epoch: int  # 0: a standby
    leads: bool
    job_id: str = ""  # of a JobMaster
    job_name: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterOverview:
    version: str
    resource_manager_address: str
    resource_manager_problem: str  # empty if it answers
    slots_total: int
    slots_free: int
    slots_warm: int  # slots whose processes run with a SparkSession
    slots_missing: int
    jobs_running: int
    jobs_finished: int
    jobs_canceled: int
    jobs_failed: int
    rest_url: str = ""  # of the dashboard and the REST API; empty: there are none
    spark_connect_url: str = ""  # sc://HOST:PORT/; empty: it is not served
    task_executors: tuple[TaskExecutorOverview, ...] = field(default=())
    masters: tuple[MasterOverview, ...] = ()  # of JobMasters, the newest ones
    resource_manager_epoch: int = 0  # 0: it does not answer
    # Pods with an earlier configuration, which are replaced one by one; -1: not known yet.
    task_executors_outdated: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class StopProgress:
    """The slots and results for which a TaskExecutor waits before it stops."""

    slots: Mapping[str, int]  # by job: slots that it still holds there
    stored_partitions: int  # of blocking results, which jobs may still read
    missing: int  # slots that these jobs still lack elsewhere
    explanation: str  # why they are missing


# ---- from messages


CLUSTER_OVERVIEW = Wire(ClusterOverview, resource_manager_pb2.ClusterOverview)
STOP_PROGRESS = Wire(StopProgress, resource_manager_pb2.StopTaskExecutorProgress)
JOB_OVERVIEW = Wire(JobOverview, dispatcher_pb2.JobOverview)
SUBTASK = Wire(Subtask, job_master_pb2.SubtaskDetails)
Wire(
    Vertex,
    job_master_pb2.VertexDetails,
    codecs={
        "subtasks": Codec(lambda subtasks: list(map(SUBTASK.encode, subtasks)), Subtasks),
    },
)
JOB_DETAILS = Wire(JobDetails, job_master_pb2.JobDetails)
