"""Parts of the JSON of /firesteel/v1 that several groups of routes share. Times are milliseconds
since 1970, shares are 0 to 1, and null is unknown.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Any, TypeAlias

from firesteel.client.job_details import Activity
from firesteel.common.task_metrics import TaskMetrics
from firesteel.errors import ErrorInfo

Json: TypeAlias = dict[str, Any]

# Watermarks beyond the year 9999 stand for the end of the input.
_LAST_WATERMARK_MS = 253_402_300_800_000
_PARTS = ("busy", "back_pressured", "idle", "spark", "python", "exchange")


def by_name(counts: Mapping[Any, int]) -> dict[str, int]:
    """Counts by state, without states that do not occur."""
    return {
        state.name if isinstance(state, Enum) else state: count
        for state, count in counts.items()
        if count
    }


def watermark_ms(metrics: TaskMetrics) -> int | None:
    """None also at the end of the input."""
    if metrics.watermark_us is None:
        return None
    at_ms = metrics.watermark_us // 1_000
    return at_ms if abs(at_ms) < _LAST_WATERMARK_MS else None


def totals(metrics: TaskMetrics) -> Json:
    return {
        "records_in": metrics.records_in,
        "records_out": metrics.records_out,
        "bytes_in": metrics.bytes_in,
        "bytes_out": metrics.bytes_out,
    }


def rates(activity: Activity | None) -> dict[str, float | None]:
    """Per second, in the last seconds."""
    return {
        name: round(getattr(activity, name), 2) if activity else None
        for name in ("records_in", "records_out", "bytes_in", "bytes_out")
    }


def recent_shares(activity: Activity | None) -> dict[str, float | None] | None:
    """The parts of the last seconds; None if there was no activity."""
    if activity is None:
        return None
    return {part: round(getattr(activity, part), 4) for part in _PARTS}


def shares(metrics: TaskMetrics) -> dict[str, float | None]:
    """The parts of the time that `metrics` cover."""
    times_ms = {part: getattr(metrics, f"{part}_ms") for part in _PARTS}
    all_ms = times_ms["busy"] + times_ms["back_pressured"] + times_ms["idle"]
    return {
        part: round(min(1.0, max(0.0, part_ms / all_ms)), 4) if all_ms > 0 else None
        for part, part_ms in times_ms.items()
    }


def error(info: ErrorInfo) -> Json:
    return {
        "timestamp_ms": info.timestamp_ms,
        "task": info.task_name or None,
        "location": info.location or None,
        "summary": info.summary,
        "user_traceback": info.user_traceback or None,
        "traceback": info.traceback or None,
    }
