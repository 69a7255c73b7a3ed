"""Jobs and clusters in the form that `firesteel.Client` and the command line show."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from firesteel._proto import (
    common_pb2,
    dispatcher_pb2,
    job_logs_pb2,
    job_master_pb2,
    resource_manager_pb2,
)
from firesteel.common.rpc.mapping import Codec, Wire
from firesteel.common.states import ExecutionState, JobStatus
from firesteel.errors import ErrorInfo

_NO_WATERMARK = -(2**63)


@dataclass(frozen=True, slots=True, kw_only=True)
class JobOverview:
    job_id: str
    name: str
    status: JobStatus
    start_ms: int
    end_ms: int  # 0: not ended
    tasks_by_state: dict[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class LogLine:
    """A line of a job in the log of one of the cluster's processes, or a notice about missing
    lines.
    """

    text: str  # as in the log, without the prefix of printed lines
    time_us: int = 0  # since 1970; for a line without a time, that of the previous line
    process: str = ""  # for example, "slot-0[4711]"
    task_executor_id: str = ""  # empty: another kind of process
    is_notice: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskMetrics:
    """Metrics of an attempt since its start; times are in milliseconds."""

    records_in: int = 0
    records_out: int = 0
    bytes_in: int = 0
    bytes_out: int = 0
    watermark_us: int | None = None  # None: none yet
    busy_ms: float = 0.0
    idle_ms: float = 0.0
    back_pressured_ms: float = 0.0
    spark_ms: float = 0.0
    python_ms: float = 0.0
    exchange_ms: float = 0.0
    late_records_dropped: int = 0
    bundles: int = 0  # runs of plans on Spark
    bundle_records: int = 0  # in all bundles
    last_bundle_records: int = 0
    spark_planning_ms: float = 0.0  # part of spark_ms, as are the next two
    spark_converting_ms: float = 0.0
    spark_reading_ms: float = 0.0  # reading files by Arrow
    plans_made: int = 0
    cached_runs: int = 0  # bundles that a cached plan ran
    aligning_ms: float = 0.0  # the part of idle_ms spent in watermark alignment

    @property
    def spark_running_ms(self) -> float:
        parts_ms = self.spark_planning_ms + self.spark_converting_ms + self.spark_reading_ms
        return max(0.0, self.spark_ms - parts_ms)

    def __add__(self, other: TaskMetrics) -> TaskMetrics:
        """Adds amounts; takes the lower watermark and the larger last bundle."""
        watermarks = [m.watermark_us for m in (self, other) if m.watermark_us is not None]
        amounts = {name: getattr(self, name) + getattr(other, name) for name in _AMOUNTS}
        amounts["last_bundle_records"] = max(self.last_bundle_records, other.last_bundle_records)
        return TaskMetrics(watermark_us=min(watermarks, default=None), **amounts)


_AMOUNTS = tuple(name for name in TaskMetrics.__dataclass_fields__ if name != "watermark_us")


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


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorDetails:
    operator_id: str
    uid: str
    name: str
    kind: str
    runs_on_spark: bool
    plan: str
    group: int = 0  # operators of a vertex with the same number share one plan on Spark


@dataclass(frozen=True, slots=True, kw_only=True)
class Vertex:
    vertex_id: str
    name: str
    parallelism: int
    max_parallelism: int
    slot_sharing_group: str
    operators: tuple[OperatorDetails, ...]
    subtasks: tuple[Subtask, ...]
    input_vertex_ids: tuple[str, ...]

    @property
    def states(self) -> Counter[ExecutionState]:
        return Counter(s.current.state for s in self.subtasks if s.current is not None)

    @property
    def metrics(self) -> TaskMetrics:
        """The sum over the current attempts of all subtasks."""
        return sum(
            (s.current.metrics for s in self.subtasks if s.current is not None), TaskMetrics()
        )


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
    task_executors: tuple[TaskExecutorOverview, ...] = field(default=())


@dataclass(frozen=True, slots=True, kw_only=True)
class StopProgress:
    """The slots and results for which a TaskExecutor waits before it stops."""

    slots: Mapping[str, int]  # by job: slots that it still holds there
    stored_partitions: int  # of blocking results, which jobs may still read
    missing: int  # slots that these jobs still lack elsewhere
    explanation: str  # why they are missing


# ---- from messages


STOP_PROGRESS = Wire(StopProgress, resource_manager_pb2.StopTaskExecutorProgress)
JOB_OVERVIEW = Wire(JobOverview, dispatcher_pb2.JobOverview)
JOB_DETAILS = Wire(JobDetails, job_master_pb2.JobDetails)
Wire(
    Attempt,
    job_master_pb2.ExecutionDetails,
    unmapped=("allocation_id",),
    codecs={
        "entered_ms": Codec(
            lambda entered: [{"state": s.value, "timestamp_ms": ms} for s, ms in entered.items()],
            lambda changes: {ExecutionState(c.state): c.timestamp_ms for c in changes},
        )
    },
)
Wire(
    TaskMetrics,
    common_pb2.TaskMetrics,
    unmapped=("attempt_id", "plans"),
    codecs={
        "watermark_us": Codec(
            lambda time_us: _NO_WATERMARK if time_us is None else time_us,
            lambda time_us: None if time_us in (0, _NO_WATERMARK) else time_us,
        )
    },
)


def cluster_overview(message: dispatcher_pb2.ClusterOverview) -> ClusterOverview:
    resources = message.resources
    return ClusterOverview(
        version=message.version,
        resource_manager_address=message.resource_manager_address,
        resource_manager_problem=message.resource_manager_problem,
        slots_total=resources.slots_total,
        slots_free=resources.slots_free,
        slots_warm=resources.slots_warm,
        slots_missing=resources.slots_missing,
        jobs_running=message.jobs_running,
        jobs_finished=message.jobs_finished,
        jobs_canceled=message.jobs_canceled,
        jobs_failed=message.jobs_failed,
        task_executors=tuple(map(_task_executor, resources.task_executors)),
    )


def _task_executor(message: resource_manager_pb2.TaskExecutorInfo) -> TaskExecutorOverview:
    return TaskExecutorOverview(
        task_executor_id=message.task_executor_id,
        address=message.address,
        host=message.host,
        pid=message.pid,
        slots=len(message.slots),
        slots_free=sum(not slot.allocation_id for slot in message.slots),
        slots_warm=sum(slot.warm for slot in message.slots),
        stored_bytes=message.stored_bytes,
        stops=message.stops,
        slot_problem=next((slot.problem for slot in message.slots if slot.problem), ""),
    )


def log_line(line: job_logs_pb2.JobLogLine) -> LogLine:
    return LogLine(
        text=line.text,
        time_us=line.time_us,
        process=line.process,
        task_executor_id=line.origin,
    )
