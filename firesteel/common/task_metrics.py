"""The metrics of a task, as its slot reports them and clients show them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple


class Choice(NamedTuple):
    """The reader and the computation that were chosen for an operator: Spark, Arrow, Firesteel or
    Python.
    """

    reads: str  # empty: the operator reads no files
    computes: str
    reason: str  # why not the fastest way


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
    aligning_ms: float = 0.0  # the part of idle_ms spent in watermark alignment
    # The last Spark plan of each operator; first subtask only.
    plans: Mapping[str, str] = field(default_factory=dict)
    # By operator; first subtask only.
    choices: Mapping[str, Choice] = field(default_factory=dict)

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


_AMOUNTS = TaskMetrics.__dataclass_fields__.keys() - {
    "attempt_id",
    "watermark_us",
    "plans",
    "choices",
}
