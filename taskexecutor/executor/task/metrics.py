"""A task's counters, and the time it spends in each kind of work.

Counters are plain integers written by the task's thread. Derived values are computed when read, so
a batch costs a few additions.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from firesteel.common.task_metrics import TaskMetrics, TopicProgress
from firesteel.elements import MIN_TIMESTAMP_US
from firesteel.operator import TaskInfo
from taskexecutor.executor.task.interfaces import InputGate, ResultPartition
from taskexecutor.executor.timing.clock import PlanCounts, TaskClock, TimeKind
from taskexecutor.executor.timing.watermark_alignment import WatermarkAlignment

LATE_RECORDS = "numLateRecordsDropped"
# A source counts the records that it reads: none arrive that the task could count.
RECORDS_READ = "numRecordsIn"
# How often an operator's Spark plan is read, which costs a few calls into the JVM.
PLAN_INTERVAL_S = 10.0
_ON_SPARK = (TimeKind.SPARK, TimeKind.PLANNING, TimeKind.CONVERTING, TimeKind.READING)


@dataclass(slots=True)
class CheckpointTimes:
    """Times and size of a task's last checkpoint."""

    start_delay_ms: float = 0.0  # until its first barrier arrived
    alignment_ms: float = 0.0  # from then until the snapshot was due
    size_bytes: int | None = None  # of its part of the last checkpoint that it acknowledged
    aligning_since_s: float | None = None  # by `time.perf_counter`, while barriers are collected

    def alignment_ns(self) -> int:
        """Returns the alignment time so far, if barriers are being collected."""
        since_s = self.aligning_since_s
        if since_s is None:
            return round(self.alignment_ms * 1e6)
        return round((time.perf_counter() - since_s) * 1e9)


class OperatorCounter:
    """A `firesteel.operator.Counter`."""

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value = 0

    def inc(self, count: int = 1) -> None:
        self.value += count


@dataclass(slots=True)
class OperatorMetrics:
    """Counters of one runtime operator."""

    operator_id: str
    operator_name: str
    records_in: int = 0
    records_out: int = 0
    counters: dict[str, OperatorCounter] = field(default_factory=dict)
    gauges: dict[str, Callable[[], float]] = field(default_factory=dict)
    topics: Callable[[], TopicProgress] | None = None  # None: it neither reads nor writes topics
    bundles: int = 0
    bundle_records: int = 0
    last_bundle_records: int = 0
    plan_counts: PlanCounts = field(default_factory=PlanCounts)
    plan: str = ""  # the Spark plan, as last read
    plan_read_at_s: float = -PLAN_INTERVAL_S
    watermark_alignment: WatermarkAlignment | None = None
    state_statistics: Callable[[], Mapping[str, int]] = dict  # of the keyed state's backend

    def counter(self, name: str) -> OperatorCounter:
        return self.counters.setdefault(name, OperatorCounter())

    @property
    def records_taken(self) -> int:
        """Returns the records received from other operators, or read by a source."""
        return self.records_in + (
            self.counters[RECORDS_READ].value if RECORDS_READ in self.counters else 0
        )


class TaskMetricGroup:
    """All counters of one task."""

    def __init__(self, info: TaskInfo, clock: TaskClock) -> None:
        self.info = info
        self.clock = clock
        self.operators: list[OperatorMetrics] = []
        self.partitions: list[ResultPartition] = []
        self.gates: list[InputGate] = []
        self.records_in = 0
        self.gc_ms = 0.0  # of the slot's JVM since the task's first report
        self._gc_before_ms: float | None = None
        self.checkpoint_times: CheckpointTimes | None = None  # None: the job takes no checkpoints
        self.watermark_us: Callable[[], int] = lambda: MIN_TIMESTAMP_US
        self.caught_up: Callable[[], int] = lambda: 0

    def operator(self, operator_id: str, operator_name: str) -> OperatorMetrics:
        metrics = OperatorMetrics(operator_id, operator_name)
        self.operators.append(metrics)
        return metrics

    def records_read(self) -> int | None:
        """Returns the rows that the task's source has read, before filters; None without one."""
        counters = [o.counters[RECORDS_READ] for o in self.operators if RECORDS_READ in o.counters]
        return sum(counter.value for counter in counters) if counters else None

    def collected(self, total_ms: float) -> None:
        """Takes the time that the slot's JVM has spent in garbage collection since it started."""
        if self._gc_before_ms is None:
            self._gc_before_ms = total_ms
        self.gc_ms = total_ms - self._gc_before_ms

    @property
    def blocked(self) -> bool:
        """Returns whether the task is blocked: it has no credit, or awaits a coordinator's
        answer.
        """
        return self.clock.kind is TimeKind.BLOCKED or any(
            partition.blocked for partition in self.partitions
        )

    def read(self) -> TaskMetrics:
        """Returns cumulative values since the task was created. Safe from any thread."""
        spent_ns = self.clock.read_ns()
        # Waiting for credit is part of writing to partitions, which measure the wait.
        no_credit_ns = min(
            sum(partition.blocked_ns for partition in self.partitions), spent_ns[TimeKind.EXCHANGE]
        )
        blocked_ns = no_credit_ns + spent_ns[TimeKind.BLOCKED]
        watermark_us = self.watermark_us()
        busy_ns = sum(spent_ns) - spent_ns[TimeKind.IDLE] - blocked_ns
        shown = self.operators if self.info.subtask == 0 else []
        records_read = self.records_read() or 0
        return TaskMetrics(
            attempt_id=self.info.attempt_id,
            records_in=self.records_in + records_read,
            records_read=records_read,
            records_out=sum(partition.records_out for partition in self.partitions),
            bytes_in=sum(gate.bytes_in for gate in self.gates),
            bytes_out=sum(partition.bytes_out for partition in self.partitions),
            watermark_us=None if watermark_us == MIN_TIMESTAMP_US else watermark_us,
            busy_ms=busy_ns / 1e6,
            idle_ms=spent_ns[TimeKind.IDLE] / 1e6,
            back_pressured_ms=blocked_ns / 1e6,
            spark_ms=sum(spent_ns[kind] for kind in _ON_SPARK) / 1e6,
            spark_planning_ms=spent_ns[TimeKind.PLANNING] / 1e6,
            spark_converting_ms=spent_ns[TimeKind.CONVERTING] / 1e6,
            spark_reading_ms=spent_ns[TimeKind.READING] / 1e6,
            python_ms=spent_ns[TimeKind.PYTHON] / 1e6,
            exchange_ms=(spent_ns[TimeKind.EXCHANGE] - no_credit_ns) / 1e6,
            gc_ms=self.gc_ms,
            caught_up=self.caught_up(),
            bundles=sum(o.bundles for o in self.operators),
            bundle_records=sum(o.bundle_records for o in self.operators),
            last_bundle_records=max((o.last_bundle_records for o in self.operators), default=0),
            plans_made=sum(o.plan_counts.made for o in self.operators),
            cached_runs=sum(o.plan_counts.cached_runs for o in self.operators),
            plans={o.operator_id: o.plan for o in shown if o.plan},
            choices={
                o.operator_id: choice for o in shown if (choice := o.plan_counts.choice) is not None
            },
            topics={o.operator_id: o.topics() for o in self.operators if o.topics is not None},
            aligning_ms=sum(
                o.watermark_alignment.stopped_ms
                for o in self.operators
                if o.watermark_alignment is not None
            ),
            late_records_dropped=sum(
                o.counters[LATE_RECORDS].value for o in self.operators if LATE_RECORDS in o.counters
            ),
        )
