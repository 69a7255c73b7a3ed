"""What a task tells of itself: counters, rates and where its time goes, under the names of
conventions.md.

Counters are plain integers written by the task's thread. Everything derived is computed when
somebody asks (`TaskMeters` belongs to the asker), so a batch costs a few additions.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from firesteel._proto import common_pb2
from firesteel.elements import MIN_TIMESTAMP_US
from firesteel.operator import TaskInfo
from taskexecutor.executor.task.config import InputGate, ResultPartition
from taskexecutor.executor.timing.clock import TaskClock, TimeKind
from taskexecutor.executor.timing.watermark_alignment import Alignment

TASK_PREFIX = "flink_taskmanager_job_task_"
OPERATOR_PREFIX = "flink_taskmanager_job_task_operator_"
LATE_RECORDS = "numLateRecordsDropped"
RECORDS_READ = (
    "numRecordsIn"  # a source counts what it reads: nothing comes in that the task could count
)
RATE_WINDOW_S = 5.0
PLAN_EVERY_S = (
    10.0  # how often an operator's plan on Spark is looked at: it costs a few calls into the JVM
)
# The first three add up to the time that the task has lived, the others are parts of it.
TIMES = {
    "Busy": "busy_ms",
    "Idle": "idle_ms",
    "BackPressured": "back_pressured_ms",
    "Spark": "spark_ms",
    "Python": "python_ms",
    "Exchange": "exchange_ms",
}
BACK_PRESSURED_FROM_MS = 500.0  # per second: isBackPressured, also between two waits


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
    bundles: int = 0
    bundle_records: int = 0
    last_bundle_records: int = 0
    plan: str = ""  # the last one that was looked at, for people
    plan_looked_at_s: float = -PLAN_EVERY_S
    alignment: Alignment | None = None

    def counter(self, name: str) -> OperatorCounter:
        return self.counters.setdefault(name, OperatorCounter())

    @property
    def records_taken(self) -> int:
        """In from other operators, or read by a source."""
        return self.records_in + (
            self.counters[RECORDS_READ].value if RECORDS_READ in self.counters else 0
        )


class TaskMetricGroup:
    """All that is counted for one task."""

    def __init__(self, info: TaskInfo, clock: TaskClock) -> None:
        self.info = info
        self.clock = clock
        self.operators: list[OperatorMetrics] = []
        self.partitions: list[ResultPartition] = []
        self.gates: list[InputGate] = []
        self.records_in = 0
        self.watermark_us: Callable[[], int] = lambda: MIN_TIMESTAMP_US

    def operator(self, operator_id: str, operator_name: str) -> OperatorMetrics:
        metrics = OperatorMetrics(operator_id, operator_name)
        self.operators.append(metrics)
        return metrics

    @property
    def blocked(self) -> bool:
        """The task can do nothing now: no credit, or no answer from a coordinator."""
        return self.clock.kind is TimeKind.BLOCKED or any(
            partition.blocked for partition in self.partitions
        )

    def read(self) -> common_pb2.TaskMetrics:
        """Cumulative since the task was made. Safe from any thread."""
        spent_ns = self.clock.read_ns()
        # Waiting for credit happens inside handing over; the partitions know how much of it that
        # was.
        no_credit_ns = min(
            sum(partition.blocked_ns for partition in self.partitions), spent_ns[TimeKind.EXCHANGE]
        )
        blocked_ns = no_credit_ns + spent_ns[TimeKind.BLOCKED]
        busy_ns = sum(spent_ns) - spent_ns[TimeKind.IDLE] - blocked_ns
        return common_pb2.TaskMetrics(
            attempt_id=self.info.attempt_id,
            records_in=self.records_in
            + sum(
                o.counters[RECORDS_READ].value for o in self.operators if RECORDS_READ in o.counters
            ),
            records_out=sum(partition.records_out for partition in self.partitions),
            bytes_in=sum(gate.bytes_in for gate in self.gates),
            bytes_out=sum(partition.bytes_out for partition in self.partitions),
            watermark_us=self.watermark_us(),
            busy_ms=busy_ns / 1e6,
            idle_ms=spent_ns[TimeKind.IDLE] / 1e6,
            back_pressured_ms=blocked_ns / 1e6,
            spark_ms=spent_ns[TimeKind.SPARK] / 1e6,
            python_ms=spent_ns[TimeKind.PYTHON] / 1e6,
            exchange_ms=(spent_ns[TimeKind.EXCHANGE] - no_credit_ns) / 1e6,
            bundles=sum(o.bundles for o in self.operators),
            bundle_records=sum(o.bundle_records for o in self.operators),
            last_bundle_records=max((o.last_bundle_records for o in self.operators), default=0),
            plans={o.operator_id: o.plan for o in self.operators if o.plan}
            if self.info.subtask == 0
            else {},
            aligning_ms=sum(
                o.alignment.stopped_ms for o in self.operators if o.alignment is not None
            ),
            late_records_dropped=sum(
                o.counters[LATE_RECORDS].value for o in self.operators if LATE_RECORDS in o.counters
            ),
        )


class TaskMeters:
    """Turns the counters into Prometheus samples; rates are over the last few seconds. One asker,
    any thread.
    """

    def __init__(self, group: TaskMetricGroup, now_s: Callable[[], float] = time.monotonic) -> None:
        self._group = group
        self._now_s = now_s
        self._history: deque[tuple[float, dict[str, float]]] = deque()
        info = group.info
        self._labels = {
            "job_id": info.job_id,
            "job_name": info.job_name,
            "task_id": info.vertex_id,
            "task_name": info.task_name,
            "task_attempt_id": info.attempt_id,
            "task_attempt_num": str(info.attempt),
            "subtask_index": str(info.subtask),
        }

    def samples(self) -> list[common_pb2.MetricSample]:
        group = self._group
        metrics = group.read()
        cumulative = _cumulative(metrics, group.operators)
        rates = self._rates(cumulative)
        samples: list[common_pb2.MetricSample] = []

        def task(name: str, value: float) -> None:
            samples.append(
                common_pb2.MetricSample(name=TASK_PREFIX + name, labels=self._labels, value=value)
            )

        task("numRecordsIn", metrics.records_in)
        task("numRecordsOut", metrics.records_out)
        task("numRecordsInPerSecond", rates["records_in"])
        task("numRecordsOutPerSecond", rates["records_out"])
        task("numBytesIn", metrics.bytes_in)
        task("numBytesOut", metrics.bytes_out)
        task("numBytesInPerSecond", rates["bytes_in"])
        task("numBytesOutPerSecond", rates["bytes_out"])
        for name, field_name in TIMES.items():
            task(f"{name[0].lower()}{name[1:]}TimeMsPerSecond", rates[field_name])
            task(f"accumulate{name}TimeMs", cumulative[field_name])
        task(
            "isBackPressured",
            float(group.blocked or rates["back_pressured_ms"] >= BACK_PRESSURED_FROM_MS),
        )
        task(
            "currentInputWatermark",
            MIN_TIMESTAMP_US
            if metrics.watermark_us == MIN_TIMESTAMP_US
            else metrics.watermark_us // 1000,
        )
        task(
            "Shuffle_Netty_Input_Buffers_inPoolUsage",
            _highest(gate.in_pool_usage for gate in group.gates),
        )
        task(
            "Shuffle_Netty_Output_Buffers_outPoolUsage",
            _highest(p.out_pool_usage for p in group.partitions),
        )
        for operator in group.operators:
            samples.extend(self._operator_samples(operator, rates))
        return samples

    def _operator_samples(
        self, operator: OperatorMetrics, rates: dict[str, float]
    ) -> Iterable[common_pb2.MetricSample]:
        labels = {
            **self._labels,
            "operator_id": operator.operator_id,
            "operator_name": operator.operator_name,
        }
        values: dict[str, float] = {
            "numRecordsIn": operator.records_taken,
            "numRecordsOut": operator.records_out,
            "numRecordsInPerSecond": rates[f"in {operator.operator_id}"],
            "numRecordsOutPerSecond": rates[f"out {operator.operator_id}"],
        }
        if operator.bundles:
            values["numBundles"] = operator.bundles
            values["lastBundleRecords"] = operator.last_bundle_records
            values["meanBundleRecords"] = operator.bundle_records / operator.bundles
        if operator.alignment is not None:
            values["watermarkAlignmentDrift"] = operator.alignment.drift_ms
            values["pausedTimeMsPerSecond"] = rates["aligning_ms"]
            values["accumulatedPausedTimeMs"] = operator.alignment.stopped_ms
        values.update(
            {name: c.value for name, c in list(operator.counters.items()) if name != RECORDS_READ}
        )
        for name, value in values.items():
            yield common_pb2.MetricSample(name=OPERATOR_PREFIX + name, labels=labels, value=value)

    def _rates(self, cumulative: dict[str, float]) -> dict[str, float]:
        """Per second, since the oldest reading within the window (0 at the first)."""
        now_s = self._now_s()
        while len(self._history) > 1 and now_s - self._history[1][0] >= RATE_WINDOW_S:
            self._history.popleft()
        self._history.append((now_s, cumulative))
        then_s, then = self._history[0]
        elapsed_s = now_s - then_s
        if elapsed_s <= 0:
            return dict.fromkeys(cumulative, 0.0)
        return {
            name: max(0.0, value - then.get(name, 0.0)) / elapsed_s
            for name, value in cumulative.items()
        }


def _cumulative(
    metrics: common_pb2.TaskMetrics, operators: Sequence[OperatorMetrics]
) -> dict[str, float]:
    values: dict[str, float] = {
        "records_in": metrics.records_in,
        "records_out": metrics.records_out,
        "bytes_in": metrics.bytes_in,
        "bytes_out": metrics.bytes_out,
        "aligning_ms": metrics.aligning_ms,
        **{field_name: getattr(metrics, field_name) for field_name in TIMES.values()},
    }
    for operator in operators:
        values[f"in {operator.operator_id}"] = operator.records_taken
        values[f"out {operator.operator_id}"] = operator.records_out
    return values


def _highest(values: Iterable[float]) -> float:
    return max(values, default=0.0)
