"""Which times rows must have to join, and how long they are kept. Pure arithmetic on each row's
time, whose meaning depends on the kind of bounds.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import numpy as np
import pyarrow as pa

from firesteel.operators import AsOfSpec, IntervalSpec, JoinSpec, SameWindowSpec, TimeToLiveSpec
from taskexecutor.executor.columnar.grouping.grouping import Ints
from taskexecutor.executor.operators.columns import event_times

_LEAST, _MOST = -(2**63), 2**63 - 1

Flags = np.ndarray[tuple[int], np.dtype[np.bool_]]


class TimeBounds(Protocol):
    """`side` is 0 for rows of the left stream, 1 for those of the right one."""

    in_event_time: bool

    def times(self, side: int, rows: pa.RecordBatch, what: str) -> Ints:
        """Returns the time of each row. `what` is the operator's name, for errors."""

    def reach(self, side: int, times: Ints) -> tuple[Ints, Ints]:
        """Returns the least and the greatest time of the other side's rows that rows of this side
        join.
        """

    def horizon(self, side: int, watermark_us: int) -> int:
        """Returns the least time of a row of this side that a future row may join. Earlier rows are
        removed.
        """

    def passed(self, times: Ints, watermark_us: int) -> Flags:
        """Returns which arriving rows the watermark has passed."""

    def late(self, side: int, rows: pa.RecordBatch, passed: Flags, watermark_us: int) -> Flags:
        """Returns which arriving rows are late."""

    def delay_us(self, side: int) -> int:
        """Returns how far a row of this side may be behind the watermark when its time is over."""


class Unbounded:
    """Rows have no time."""

    in_event_time = False

    def times(self, side: int, rows: pa.RecordBatch, what: str) -> Ints:
        return np.zeros(rows.num_rows, np.int64)

    def reach(self, side: int, times: Ints) -> tuple[Ints, Ints]:
        return times, times

    def horizon(self, side: int, watermark_us: int) -> int:
        return _LEAST

    def passed(self, times: Ints, watermark_us: int) -> Flags:
        return np.zeros(len(times), np.bool_)

    def late(self, side: int, rows: pa.RecordBatch, passed: Flags, watermark_us: int) -> Flags:
        return passed

    def delay_us(self, side: int) -> int:
        return 0


class WithinTimeToLive(Unbounded):
    """The time is the arrival time, in milliseconds of the machine's clock."""

    def __init__(self, spec: TimeToLiveSpec, now_ms: Callable[[], int]) -> None:
        self._ttl_ms = spec.ttl_ms
        self._now_ms = now_ms

    def times(self, side: int, rows: pa.RecordBatch, what: str) -> Ints:
        return np.full(rows.num_rows, self._now_ms(), np.int64)

    def reach(self, side: int, times: Ints) -> tuple[Ints, Ints]:
        return times - self._ttl_ms + 1, np.full(len(times), _MOST, np.int64)

    def horizon(self, side: int, watermark_us: int) -> int:
        return self._now_ms() - self._ttl_ms + 1


class WithinInterval:
    """The time is event time, in microseconds."""

    in_event_time = True

    def __init__(self, spec: IntervalSpec) -> None:
        self._times = spec.times
        self._kept_us = spec.kept_us
        self._late_by = spec.late_by
        # The distance of the other side's rows from a row of each side.
        self._reach = (spec.lower_us, spec.upper_us), (-spec.upper_us, -spec.lower_us)

    def times(self, side: int, rows: pa.RecordBatch, what: str) -> Ints:
        times = event_times(rows, self._times.columns[side], what)
        return times + self._times.shifts_us[side]

    def reach(self, side: int, times: Ints) -> tuple[Ints, Ints]:
        lower_us, upper_us = self._reach[side]
        return times + lower_us, times + upper_us

    def horizon(self, side: int, watermark_us: int) -> int:
        horizon_us = watermark_us + 1 - self._reach[side][1] - self._kept_us[side]
        return min(max(horizon_us, _LEAST), _MOST)

    def passed(self, times: Ints, watermark_us: int) -> Flags:
        return times <= watermark_us

    def late(self, side: int, rows: pa.RecordBatch, passed: Flags, watermark_us: int) -> Flags:
        if self._late_by is None:
            return passed
        if not (column := self._late_by[side]):
            return np.zeros_like(passed)
        return event_times(rows, column, "") <= watermark_us

    def delay_us(self, side: int) -> int:
        return max(self._reach[side][1] + self._kept_us[side], 0)


class WithinWindow(WithinInterval):
    """The time is the start of the row's window."""

    def __init__(self, spec: SameWindowSpec) -> None:
        super().__init__(IntervalSpec(times=spec.times, lower_us=0, upper_us=0))
        self._window = spec.window

    def times(self, side: int, rows: pa.RecordBatch, what: str) -> Ints:
        times = super().times(side, rows, what)
        return times - (times - self._window.offset_us) % self._window.size_us

    def horizon(self, side: int, watermark_us: int) -> int:
        return min(max(watermark_us + 2 - self._window.size_us, _LEAST), _MOST)

    def passed(self, times: Ints, watermark_us: int) -> Flags:
        return times < self.horizon(0, watermark_us)


def time_bounds(spec: JoinSpec, now_ms: Callable[[], int]) -> TimeBounds:
    match spec.within:
        case IntervalSpec():
            return WithinInterval(spec.within)
        case SameWindowSpec():
            return WithinWindow(spec.within)
        case TimeToLiveSpec():
            return WithinTimeToLive(spec.within, now_ms)
        case AsOfSpec():
            raise ValueError("an as-of join has no time bounds")
        case None:
            return Unbounded()
