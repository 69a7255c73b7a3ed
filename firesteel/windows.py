"""Time, as a program states it: watermarks and windows. Durations are texts such as "1 day", "90
s", or timedeltas.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from firesteel.common.units import parse_duration_s
from firesteel.errors import InvalidProgram
from firesteel.plan.specs import (
    AssignWatermarksSpec,
    SessionSpec,
    SlidingSpec,
    TumblingSpec,
    WatermarkAlignmentSpec,
    WatermarkSpec,
)

if TYPE_CHECKING:
    import pyarrow as pa

Duration = str | timedelta


def duration_us(duration: Duration, what: str) -> int:
    """A duration in microseconds; InvalidProgram names `what` if it is none."""
    if isinstance(duration, timedelta):
        return duration // timedelta(microseconds=1)
    try:
        return round(parse_duration_s(duration) * 1_000_000)
    except (ValueError, TypeError):
        raise InvalidProgram(
            f"{what} is {duration!r}; give a duration such as '1 day', '90 s' or '250 ms', or a timedelta"
        ) from None


@dataclass(frozen=True, slots=True)
class Watermarks:
    """How a stream tells how far event time has come. Each subtask tells it for itself; whoever
    reads several waits for the last.

    Event time advances when nothing that a subtask has been given is left behind it: of a
    FileSource with each file, which a subtask reads one by one, in order; of a PythonSource with
    the partitions of each `partitions(start, end)`, all of them, and of a simple one with each
    batch. What nobody has been given yet holds nothing back.
    """

    column: str  # "": none is known
    max_out_of_orderness_us: int = 0
    function: Callable[[pa.RecordBatch], Any] | None = None  # instead of the column
    idle_us: int | None = None
    alignment: WatermarkAlignmentSpec | None = None

    @classmethod
    def bounded(cls, column: str, *, max_out_of_orderness: Duration = "0 s") -> Watermarks:
        """Records are at most `max_out_of_orderness` behind the latest `column` (a timestamp) seen
        by their subtask.
        """
        delay_us = duration_us(max_out_of_orderness, "max_out_of_orderness")
        if delay_us < 0:
            raise InvalidProgram(
                f"max_out_of_orderness is {max_out_of_orderness!r}; it cannot be negative"
            )
        return cls(column, delay_us)

    @classmethod
    def custom(cls, function: Callable[[pa.RecordBatch], Any], *, column: str = "") -> Watermarks:
        """`function(batch)`, called with each batch of a subtask in turn, gives the time before
        which none will follow in it.

        It returns a datetime (without zone: UTC), a pyarrow timestamp, or None where it cannot say;
        times that go back are passed over. It may be an object with `__call__` and a memory: each
        subtask has a copy. `column` is the event-time column of windows that do not name one.
        """
        if not callable(function):
            raise InvalidProgram(
                f"Watermarks.custom() takes a function, not {type(function).__name__} {function!r}"
            )
        return cls(column, function=function)

    def with_idleness(self, idle: Duration) -> Watermarks:
        """A subtask without a record for this long is idle: others do not wait for its event time,
        until it has records again.

        A FileSource that watches a directory is idle as soon as it has read all there is, with or
        without this.
        """
        idle_us = duration_us(idle, "with_idleness()")
        if idle_us < 1000:
            raise InvalidProgram(f"with_idleness() is {idle!r}; it must be at least 1 ms")
        return replace(self, idle_us=idle_us)

    def with_alignment(
        self, group: str, *, max_drift: Duration, update_interval: Duration = "1 s"
    ) -> Watermarks:
        """A source stops while it is more than `max_drift` of event time ahead of the slowest
        source of its group.

        All sources of a program that name the same group are in it, with all their subtasks. Those
        that are idle or have ended hold nobody back; one that has no event time yet does: the
        others stop behind their first watermark. A split that is being read is read to its end.
        Subtasks tell each other how far they are once per `update_interval`, and at once when they
        have come a good part of the drift further, stop or may go on.
        """
        if not isinstance(group, str) or not group:
            raise InvalidProgram(f"with_alignment() takes the name of a group, not {group!r}")
        max_drift_us = _positive_us(max_drift, "max_drift of with_alignment()")
        update_interval_us = duration_us(update_interval, "update_interval of with_alignment()")
        if update_interval_us < 1000:
            raise InvalidProgram(
                f"update_interval of with_alignment() is {update_interval!r}; it must be at least 1 ms"
            )
        return replace(
            self,
            alignment=WatermarkAlignmentSpec(
                group=group, max_drift_us=max_drift_us, update_interval_us=update_interval_us
            ),
        )

    def spec(self) -> WatermarkSpec:
        """What a source does itself: bounded out-of-orderness."""
        return WatermarkSpec(
            column=self.column, max_out_of_orderness_us=self.max_out_of_orderness_us
        )

    def assigner_spec(self, *, held: bool = False) -> AssignWatermarksSpec:
        """All of it, as an operator."""
        return AssignWatermarksSpec(
            column=self.column,
            max_out_of_orderness_us=self.max_out_of_orderness_us,
            function=self.function,
            idle_us=self.idle_us,
            held=held,
            watermark_alignment=self.alignment,
        )


@dataclass(frozen=True, slots=True)
class Tumbling:
    """Windows of a fixed size, side by side, aligned to the epoch (UTC) plus `offset`.

    In event time, `on` names the timestamp column; without it, the column of the source's
    watermarks. With `processing_time=True`, records belong to the window in which they arrive, by
    the machine's clock.
    """

    size: Duration
    offset: Duration = "0 s"
    on: str | None = None
    processing_time: bool = False

    def spec(self) -> TumblingSpec:
        _check_time(self)
        size_us = _positive_us(self.size, "the size of a Tumbling window")
        offset_us = duration_us(self.offset, "the offset of a Tumbling window") % size_us
        return TumblingSpec(
            size_us=size_us, offset_us=offset_us, processing_time=self.processing_time
        )

    def __str__(self) -> str:
        return f"Tumbling {self.size}"


@dataclass(frozen=True, slots=True)
class Sliding:
    """Windows of a fixed size that begin every `slide`, aligned to the epoch (UTC) plus `offset`.

    A record is in `size / slide` windows. `on` and `processing_time` as for Tumbling.
    """

    size: Duration
    slide: Duration
    offset: Duration = "0 s"
    on: str | None = None
    processing_time: bool = False

    def spec(self) -> SlidingSpec:
        _check_time(self)
        size_us = _positive_us(self.size, "the size of a Sliding window")
        slide_us = _positive_us(self.slide, "the slide of a Sliding window")
        offset_us = duration_us(self.offset, "the offset of a Sliding window") % slide_us
        spec = SlidingSpec(
            size_us=size_us,
            slide_us=slide_us,
            offset_us=offset_us,
            processing_time=self.processing_time,
        )
        if size_us // spec.pane_us > _MOST_PANES:
            raise InvalidProgram(
                f"a Sliding window of {self.size!r} every {self.slide!r} is cut into {size_us // spec.pane_us:,} panes, and "
                f"{_MOST_PANES:,} are allowed; make the size a multiple of the slide, or slide further"
            )
        return spec

    def __str__(self) -> str:
        return f"Sliding {self.size} every {self.slide}"


@dataclass(frozen=True, slots=True)
class Session:
    """A window per burst of activity of a key: it ends once no record has come for `gap`.

    Records `gap` apart are still of one session, as Spark's `session_window` has it. `on` and
    `processing_time` as for Tumbling.
    """

    gap: Duration
    on: str | None = None
    processing_time: bool = False

    def spec(self) -> SessionSpec:
        _check_time(self)
        return SessionSpec(
            gap_us=_positive_us(self.gap, "the gap of a Session window"),
            processing_time=self.processing_time,
        )

    def __str__(self) -> str:
        return f"Session {self.gap}"


Window = Tumbling | Sliding | Session

_MOST_PANES = 10_000


def _positive_us(duration: Duration, what: str) -> int:
    value_us = duration_us(duration, what)
    if value_us <= 0:
        raise InvalidProgram(f"{what} is {duration!r}; it must be positive")
    return value_us


def _check_time(window: Window) -> None:
    if window.processing_time and window.on is not None:
        raise InvalidProgram(
            f"{type(window).__name__}(on={window.on!r}, processing_time=True): processing time is a clock, not a column"
        )
