"""Metrics of tasks under Flink's names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from firesteel.client.job_details import Attempt, JobDetails
from firesteel.common.task_metrics import TaskMetrics

MIN_WATERMARK_MS = -(2**63)  # before the first watermark
_INTERVAL_S = 2.0  # of reports that are compared
_KEPT_S = 60.0
_AMOUNTS = {
    "numRecordsIn": "records_in",
    "numRecordsOut": "records_out",
    "numBytesIn": "bytes_in",
    "numBytesOut": "bytes_out",
}
_TIMES = {
    "busyTimeMsPerSecond": "busy_ms",
    "idleTimeMsPerSecond": "idle_ms",
    "backPressuredTimeMsPerSecond": "back_pressured_ms",
    "sparkTimeMsPerSecond": "spark_ms",
    "pythonTimeMsPerSecond": "python_ms",
    "exchangeTimeMsPerSecond": "exchange_ms",
    "garbageCollectionTimeMsPerSecond": "gc_ms",
}
_PER_SECOND = {f"{name}PerSecond": field for name, field in _AMOUNTS.items()} | _TIMES


class _Report(NamedTuple):
    at_s: float
    metrics: Mapping[str, TaskMetrics]  # by attempt


class Rates:
    """Rates of tasks, from two descriptions of their job that are at least two seconds apart. The
    first description of a job has rates since the start of each task.
    """

    def __init__(self) -> None:
        self._jobs: dict[str, tuple[_Report | None, _Report]] = {}  # the last two reports

    def of(self, details: JobDetails, now_s: float) -> dict[str, dict[str, float]]:
        """Returns rates per second by Flink's names, by attempt. Ended tasks have none."""
        attempts = [s.current for v in details.vertices for s in v.subtasks if s.current]
        previous, last = self._jobs.get(details.job_id, (None, None))
        if last is None or now_s - last.at_s >= _INTERVAL_S:
            report = _Report(now_s, {a.attempt_id: a.metrics for a in attempts})
            self._jobs = {
                job_id: reports
                for job_id, reports in self._jobs.items()
                if now_s - reports[1].at_s < _KEPT_S
            }
            self._jobs[details.job_id] = (last, report)
            previous = last
        rates = {}
        for attempt in attempts:
            before = previous.metrics.get(attempt.attempt_id) if previous else None
            if previous is not None and before is not None and not attempt.state.terminal:
                rates[attempt.attempt_id] = _rates(attempt.metrics, before, now_s - previous.at_s)
            else:
                rates[attempt.attempt_id] = _rates(attempt.metrics, TaskMetrics(), _age_s(attempt))
        return rates


def _age_s(attempt: Attempt) -> float:
    """Returns the time that the attempt has reported; infinite if it has ended."""
    if attempt.state.terminal:
        return float("inf")
    metrics = attempt.metrics
    return (metrics.busy_ms + metrics.idle_ms + metrics.back_pressured_ms) / 1000


def _rates(now: TaskMetrics, before: TaskMetrics, seconds: float) -> dict[str, float]:
    rates = {
        name: max(0.0, getattr(now, field) - getattr(before, field)) / seconds if seconds else 0.0
        for name, field in _PER_SECOND.items()
    }
    for name in _TIMES:
        rates[name] = min(rates[name], 1000.0)
    return rates


def task_metrics(attempt: Attempt, rates: Mapping[str, float]) -> dict[str, float]:
    metrics = attempt.metrics
    return {
        **{name: getattr(metrics, field) for name, field in _AMOUNTS.items()},
        **rates,
        "accumulateBusyTimeMs": metrics.busy_ms,
        "accumulateIdleTimeMs": metrics.idle_ms,
        "accumulateBackPressuredTimeMs": metrics.back_pressured_ms,
        "isBackPressured": float(rates.get("backPressuredTimeMsPerSecond", 0.0) > 0),
        "numLateRecordsDropped": metrics.late_records_dropped,
        "currentInputWatermark": watermark_ms(metrics),
    }


def watermark_ms(metrics: TaskMetrics) -> int:
    if metrics.watermark_us is None:
        return MIN_WATERMARK_MS
    return metrics.watermark_us // 1000
