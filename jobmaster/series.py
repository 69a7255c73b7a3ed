"""The last hour of a job: rates, shares of time and lags of its vertices, sampled every 5 s.

A sample sums up the current attempts of a vertex since the sample before, so that the numbers of
thousands of subtasks cost a few bytes. The time that an attempt's metrics cover is the sum of its
busy, back-pressured and idle times: the moment at which its report arrives does not matter.
"""

from __future__ import annotations

import bisect
import math
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from firesteel._proto import common_pb2, job_master_pb2

STEP_MS = 5_000
KEPT = 720  # samples
DEFAULT_POINTS = 200
UNKNOWN = math.nan
RATES = ("records_in", "records_out", "bytes_in", "bytes_out")
_TIMES = {
    "busy": "busy_ms",
    "back_pressured": "back_pressured_ms",
    "idle": "idle_ms",
    "spark": "spark_ms",
    "python": "python_ms",
    "exchange": "exchange_ms",
    "planning": "spark_planning_ms",
    "gc": "gc_ms",
}
_NO_WATERMARK, _END = -(2**63), 2**63 - 1
_LAST_WATERMARK_US = 253_402_300_800_000_000  # later ones stand for the end of the input

Metrics = common_pb2.TaskMetrics


class Attempt(NamedTuple):
    """The current attempt of a subtask, with its last metrics."""

    subtask: int
    metrics: Metrics


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """The activity of a vertex between two samples. Rates are per second, shares are 0 to 1."""

    values: Mapping[str, float]
    busiest_subtask: int = 0
    busiest: float = UNKNOWN  # its share of busy time
    largest_subtask: int = 0
    largest: float = UNKNOWN  # its share of the records that the vertex received

    def message(self) -> job_master_pb2.Activity:
        return job_master_pb2.Activity(
            **{name: self.values[name] for name in (*RATES, *_TIMES)},
            busiest_subtask=self.busiest_subtask,
            busiest=self.busiest,
            largest_subtask=self.largest_subtask,
            largest=None if math.isnan(self.largest) else self.largest,
        )


def sample(
    attempts: Sequence[Attempt], before: Mapping[str, Metrics], now_ms: float
) -> Sample | None:
    """Returns the activity since the metrics `before`, which are by attempt; None if no attempt has
    reported since.
    """
    covered_ms = 0.0
    rates = dict.fromkeys(RATES, 0.0)
    times_ms = dict.fromkeys(_TIMES, 0.0)
    busiest, largest = (UNKNOWN, 0), (0, 0)
    received = 0
    watermark_us = _END
    for subtask, metrics in attempts:
        old = before.get(metrics.attempt_id, _NOTHING)
        passed = {name: getattr(metrics, f) - getattr(old, f) for name, f in _TIMES.items()}
        attempt_ms = passed["busy"] + passed["back_pressured"] + passed["idle"]
        watermark_us = min(watermark_us, metrics.watermark_us)
        if attempt_ms <= 0:
            continue
        covered_ms += attempt_ms
        for name, part_ms in passed.items():
            times_ms[name] += part_ms
        amounts = {name: getattr(metrics, name) - getattr(old, name) for name in RATES}
        for name, amount in amounts.items():
            rates[name] += amount * 1000 / attempt_ms
        received += amounts["records_in"]
        largest = max(largest, (amounts["records_in"], -subtask))
        share = passed["busy"] / attempt_ms
        if not share <= busiest[0]:
            busiest = (share, subtask)
    if not covered_ms:
        return None
    known = watermark_us != _NO_WATERMARK and abs(watermark_us) < _LAST_WATERMARK_US
    return Sample(
        values={
            **rates,
            **{name: min(1.0, max(0.0, ms / covered_ms)) for name, ms in times_ms.items()},
            "busiest": busiest[0],
            "watermark_lag_ms": max(0.0, now_ms - watermark_us / 1000) if known else UNKNOWN,
        },
        busiest_subtask=busiest[1],
        busiest=busiest[0],
        largest_subtask=-largest[1],
        largest=largest[0] / received if received else UNKNOWN,
    )


_NOTHING = Metrics()


class JobSeries:
    """Keeps the samples of the last hour of all vertices of a job."""

    def __init__(self) -> None:
        self._times_ms: array[float] = array("d")
        self._values: dict[str, dict[str, array[float]]] = {}  # by vertex and name
        self._before: Mapping[str, Metrics] = {}
        self.last: Mapping[str, Sample] = {}  # by vertex

    def add(self, vertices: Mapping[str, Sequence[Attempt]], now_ms: float) -> None:
        """Takes a sample. `vertices` has the current attempts of each that have metrics."""
        samples = {
            vertex_id: taken
            for vertex_id, attempts in vertices.items()
            if (taken := sample(attempts, self._before, now_ms)) is not None
        }
        self._before = {a.metrics.attempt_id: a.metrics for each in vertices.values() for a in each}
        for vertex_id, taken in samples.items():
            rows = self._values.setdefault(vertex_id, {})
            for name in taken.values:
                if name not in rows:
                    rows[name] = array("f", [UNKNOWN]) * len(self._times_ms)
        self._times_ms.append(now_ms)
        for vertex_id, rows in self._values.items():
            values = samples[vertex_id].values if vertex_id in samples else {}
            for name, row in rows.items():
                row.append(values.get(name, UNKNOWN))
        self.last = samples
        if len(self._times_ms) > KEPT:
            del self._times_ms[0]
            for rows in self._values.values():
                for row in rows.values():
                    del row[0]

    def view(self, *, vertex_id: str, since_ms: float, points: int) -> job_master_pb2.JobSeries:
        """Returns at most `points` values per row, each the mean of as many consecutive samples.
        `vertex_id`: empty: of all vertices.
        """
        end = len(self._times_ms)
        start = bisect.bisect_right(self._times_ms, since_ms)
        width = max(1, math.ceil((end - start) / max(1, points)))
        chunks = [range(first, min(first + width, end)) for first in range(start, end, width)]
        return job_master_pb2.JobSeries(
            step_ms=STEP_MS * width,
            times_ms=[round(self._times_ms[chunk[-1]]) for chunk in chunks],
            vertices={
                each: job_master_pb2.VertexSeries(
                    rows={
                        name: job_master_pb2.SeriesRow(values=[_mean(row, c) for c in chunks])
                        for name, row in rows.items()
                    }
                )
                for each, rows in self._values.items()
                if vertex_id in ("", each)
            },
        )


def _mean(row: Sequence[float], indexes: range) -> float:
    """Returns the mean of the known values."""
    known = [row[i] for i in indexes if not math.isnan(row[i])]
    return math.fsum(known) / len(known) if known else UNKNOWN
