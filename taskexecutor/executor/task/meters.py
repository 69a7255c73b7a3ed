"""A task's metrics as Prometheus samples, under the names of conventions.md."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from firesteel.common.task_metrics import TaskMetrics, TopicProgress
from firesteel.elements import MAX_TIMESTAMP_US, MIN_TIMESTAMP_US
from taskexecutor.executor.task.metrics import (
    RECORDS_READ,
    OperatorMetrics,
    TaskMetricGroup,
)
from taskexecutor.executor.timing.clock import wall_clock_ms

TASK_PREFIX = "flink_taskmanager_job_task_"
OPERATOR_PREFIX = "flink_taskmanager_job_task_operator_"
RATE_WINDOW_S = 5.0
# The first three add up to the lifetime of the task; the others are parts of it.
TIMES = {
    "Busy": "busy_ms",
    "Idle": "idle_ms",
    "BackPressured": "back_pressured_ms",
    "Spark": "spark_ms",
    "SparkPlanning": "spark_planning_ms",
    "SparkRunning": "spark_running_ms",
    "SparkConverting": "spark_converting_ms",
    "SparkReading": "spark_reading_ms",
    "Python": "python_ms",
    "Exchange": "exchange_ms",
    "GarbageCollection": "gc_ms",
}
# per second; isBackPressured from this value on, even between two waits
BACK_PRESSURED_FROM_MS = 500.0


class MetricSample(NamedTuple):
    name: str
    labels: Mapping[str, str]
    value: float


class TaskMeters:
    """Converts the counters to Prometheus samples; rates cover the last RATE_WINDOW_S. For one
    reader, in any thread.
    """

    def __init__(
        self,
        group: TaskMetricGroup,
        now_s: Callable[[], float] = time.monotonic,
        wall_clock_ms: Callable[[], int] = wall_clock_ms,
    ) -> None:
        self._group = group
        self._now_s = now_s
        self._wall_clock_ms = wall_clock_ms
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

    def samples(self) -> list[MetricSample]:
        group = self._group
        metrics = group.read()
        cumulative = _cumulative(metrics, group.operators)
        rates = self._rates(cumulative)
        samples: list[MetricSample] = []

        def task(name: str, value: float) -> None:
            samples.append(MetricSample(TASK_PREFIX + name, self._labels, value))

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
        watermark_us = metrics.watermark_us
        task(
            "currentInputWatermark",
            MIN_TIMESTAMP_US if watermark_us is None else watermark_us // 1000,
        )
        lag_ms = None
        if watermark_us is not None and watermark_us != MAX_TIMESTAMP_US:
            lag_ms = self._wall_clock_ms() - watermark_us // 1000
            task("watermarkLag", lag_ms)
        for name, value in _buffers(group):
            task(name, value)
        if (times := group.checkpoint_times) is not None:
            task("checkpointAlignmentTime", times.alignment_ns())  # in nanoseconds, as in Flink
            task("checkpointStartDelayNanos", round(times.start_delay_ms * 1e6))
            if times.size_bytes is not None:
                task("stateSize", times.size_bytes)
        for operator in group.operators:
            topics = metrics.topics.get(operator.operator_id)
            samples.extend(self._operator_samples(operator, rates, topics))
        if lag_ms is not None and not group.gates:  # the first operator is a source
            source = self._operator_labels(group.operators[0])
            samples.append(MetricSample(f"{OPERATOR_PREFIX}watermarkLag", source, lag_ms))
        return samples

    def _operator_samples(
        self, operator: OperatorMetrics, rates: dict[str, float], topics: TopicProgress | None
    ) -> Iterable[MetricSample]:
        labels = self._operator_labels(operator)
        values: dict[str, float] = {
            "numRecordsIn": operator.records_taken,
            "numRecordsOut": operator.records_out,
            "numRecordsInPerSecond": rates[f"in {operator.operator_id}"],
            "numRecordsOutPerSecond": rates[f"out {operator.operator_id}"],
        }
        plans = operator.plan_counts
        if plans.made or plans.cached_runs:  # a plan reused from an earlier job is not made here
            values["numPlansMade"] = plans.made
            values["numCachedPlanRuns"] = plans.cached_runs
        if operator.bundles:
            values["numBundles"] = operator.bundles
            values["lastBundleRecords"] = operator.last_bundle_records
            values["meanBundleRecords"] = operator.bundle_records / operator.bundles
        if (alignment := operator.watermark_alignment) is not None:
            values["watermarkAlignmentDrift"] = alignment.drift_ms
            values["pausedTimeMsPerSecond"] = rates["aligning_ms"]
            values["accumulatedPausedTimeMs"] = alignment.stopped_ms
        values.update(
            {name: c.value for name, c in list(operator.counters.items()) if name != RECORDS_READ}
        )
        values.update({name: read() for name, read in list(operator.gauges.items())})
        values.update(operator.state_statistics())
        if topics is not None and topics.assigned_partitions:
            values.update(_of_topics(topics))
        for name, value in values.items():
            yield MetricSample(OPERATOR_PREFIX + name, labels, value)
        if topics is not None:
            yield from _of_partitions(topics, labels)

    def _operator_labels(self, operator: OperatorMetrics) -> dict[str, str]:
        return {
            **self._labels,
            "operator_id": operator.operator_id,
            "operator_name": operator.operator_name,
        }

    def _rates(self, cumulative: dict[str, float]) -> dict[str, float]:
        """Returns rates per second since the oldest reading within the window; 0 at the first
        reading.
        """
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


def _cumulative(metrics: TaskMetrics, operators: Sequence[OperatorMetrics]) -> dict[str, float]:
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


def _of_topics(topics: TopicProgress) -> dict[str, float]:
    """Returns the metrics of a source of topics under the names of Flink's Kafka source."""
    consumer = "KafkaSourceReader_KafkaConsumer_"
    return {
        "pendingRecords": topics.pending_records,
        f"{consumer}records_lag_max": topics.largest_lag,
        f"{consumer}assigned_partitions": topics.assigned_partitions,
        f"{consumer}fetch_throttle_time_max": topics.throttle_ms,
        "KafkaSourceReader_pausedPartitions": topics.paused_partitions,
    }


def _of_partitions(topics: TopicProgress, labels: Mapping[str, str]) -> Iterator[MetricSample]:
    prefix = f"{OPERATOR_PREFIX}KafkaSourceReader_topic_partition_"
    for each in topics.partitions:
        of = {**labels, "topic": each.topic, "partition": str(each.partition)}
        yield MetricSample(f"{prefix}currentOffset", of, each.current_offset)
        if each.committed_offset is not None:
            yield MetricSample(f"{prefix}committedOffset", of, each.committed_offset)
        if each.lag is not None:
            yield MetricSample(f"{prefix}recordsLag", of, each.lag)


def _buffers(group: TaskMetricGroup) -> Iterator[tuple[str, float]]:
    """Yields the use of buffers under Flink's names, and queue lengths also under the names that
    Flink had before 1.10.
    """
    sides = (
        ("in", "Input", [(gate.in_pool_usage, gate.queue_length) for gate in group.gates]),
        ("out", "Output", [(p.out_pool_usage, p.queue_length) for p in group.partitions]),
    )
    for short, long, buffers in sides:
        length = sum(queue_length for _, queue_length in buffers)
        prefix = f"Shuffle_Netty_{long}_Buffers_"
        yield f"{prefix}{short}PoolUsage", _highest(usage for usage, _ in buffers)
        yield f"{prefix}{short}putQueueLength", length
        yield f"buffers_{short}putQueueLength", length


def _highest(values: Iterable[float]) -> float:
    return max(values, default=0.0)
