"""The metrics of a task, as its slot reports them and clients show them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

# A task may read thousands of partitions, and reports them every second.
MAX_PARTITIONS_SHOWN = 100


class Choice(NamedTuple):
    """The reader and the computation that were chosen for an operator: Spark, Arrow, Firesteel or
    Python.
    """

    reads: str  # empty: the operator reads no files
    computes: str
    reason: str  # why not the fastest way


class PartitionProgress(NamedTuple):
    """How far an operator has read a partition of a topic."""

    topic: str
    partition: int
    current_offset: int  # of the next record
    committed_offset: int | None = None  # of the consumer group; None: none known
    end_offset: int | None = None  # after the last record that may be read; None: not yet known
    paused: bool = False

    @property
    def lag(self) -> int | None:
        """The number of records from the next one to the end. Offsets of transactions and of
        compacted records count as records, as in Kafka's tools.
        """
        return None if self.end_offset is None else max(0, self.end_offset - self.current_offset)


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicProgress:
    """The progress of an operator that reads or writes topics, in one task or in several."""

    assigned_partitions: int = 0
    paused_partitions: int = 0  # until downstream operators have caught up
    pending_records: int = 0  # the lag of all partitions
    largest_lag: int = 0  # of a partition
    failed_commits: int = 0  # of offsets
    throttle_ms: float = 0.0  # by which brokers currently delay the task's requests, by quota
    # At most MAX_PARTITIONS_SHOWN, those with the largest lags, in order.
    partitions: tuple[PartitionProgress, ...] = ()

    @classmethod
    def of(
        cls,
        partitions: Iterable[PartitionProgress],
        *,
        waiting_records: int = 0,
        failed_commits: int = 0,
        throttle_ms: float = 0.0,
    ) -> TopicProgress:
        """`waiting_records` are those of ranges that the task reads later."""
        partitions = list(partitions)
        lags = [partition.lag or 0 for partition in partitions]
        return cls(
            assigned_partitions=len(partitions),
            paused_partitions=sum(partition.paused for partition in partitions),
            pending_records=sum(lags) + waiting_records,
            largest_lag=max(lags, default=0),
            failed_commits=failed_commits,
            throttle_ms=throttle_ms,
            partitions=_shown(partitions),
        )

    def __add__(self, other: TopicProgress) -> TopicProgress:
        """Adds amounts; takes the larger lag and the longer delay."""
        return TopicProgress(
            assigned_partitions=self.assigned_partitions + other.assigned_partitions,
            paused_partitions=self.paused_partitions + other.paused_partitions,
            pending_records=self.pending_records + other.pending_records,
            largest_lag=max(self.largest_lag, other.largest_lag),
            failed_commits=self.failed_commits + other.failed_commits,
            throttle_ms=max(self.throttle_ms, other.throttle_ms),
            partitions=_shown([*self.partitions, *other.partitions]),
        )


def _shown(partitions: list[PartitionProgress]) -> tuple[PartitionProgress, ...]:
    if len(partitions) > MAX_PARTITIONS_SHOWN:
        partitions = sorted(partitions, key=lambda each: -(each.lag or 0))[:MAX_PARTITIONS_SHOWN]
    return tuple(sorted(partitions))


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskMetrics:
    """Metrics of an attempt since its start. Busy, idle and back-pressured times add up to its
    lifetime.
    """

    attempt_id: str = ""
    records_in: int = 0
    records_out: int = 0
    bytes_in: int = 0
    bytes_out: int = 0
    watermark_us: int | None = None  # of the input; None: none yet
    busy_ms: float = 0.0
    idle_ms: float = 0.0
    back_pressured_ms: float = 0.0
    # Parts of the times above.
    spark_ms: float = 0.0
    python_ms: float = 0.0
    exchange_ms: float = 0.0  # writing batches to result partitions, without waiting for credit
    late_records_dropped: int = 0
    bundles: int = 0  # runs of plans on Spark
    bundle_records: int = 0  # in all bundles
    last_bundle_records: int = 0
    spark_planning_ms: float = 0.0  # part of spark_ms, as are the next two
    spark_converting_ms: float = 0.0
    spark_reading_ms: float = 0.0  # reading files by Arrow
    plans_made: int = 0
    cached_runs: int = 0  # bundles that a cached plan ran
    gc_ms: float = 0.0  # of its slot's JVM, in garbage collection; in any of the times above
    aligning_ms: float = 0.0  # the part of idle_ms spent in watermark alignment
    # How often its source has emitted everything that was available. It also counts if there was
    # nothing new: with each listing of a watched directory, and otherwise at least every second.
    caught_up: int = 0
    records_read: int = 0  # by its source, before filters
    # The last Spark plan of each operator; first subtask only.
    plans: Mapping[str, str] = field(default_factory=dict)
    # By operator; first subtask only.
    choices: Mapping[str, Choice] = field(default_factory=dict)
    topics: Mapping[str, TopicProgress] = field(default_factory=dict)  # by operator

    @property
    def spark_running_ms(self) -> float:
        parts_ms = self.spark_planning_ms + self.spark_converting_ms + self.spark_reading_ms
        return max(0.0, self.spark_ms - parts_ms)

    def __add__(self, other: TaskMetrics) -> TaskMetrics:
        """Adds amounts and progress; takes the lower watermark and the larger last bundle."""
        watermarks = [m.watermark_us for m in (self, other) if m.watermark_us is not None]
        amounts = {name: getattr(self, name) + getattr(other, name) for name in AMOUNTS}
        amounts["last_bundle_records"] = max(self.last_bundle_records, other.last_bundle_records)
        topics = {
            operator: self.topics.get(operator, TopicProgress())
            + other.topics.get(operator, TopicProgress())
            for operator in sorted({*self.topics, *other.topics})
        }
        return TaskMetrics(watermark_us=min(watermarks, default=None), topics=topics, **amounts)


AMOUNTS = TaskMetrics.__dataclass_fields__.keys() - {
    "attempt_id",
    "watermark_us",
    "plans",
    "choices",
    "topics",
}
