"""Watermarks and windows. Durations are strings such as "1 day" or "90 s", or timedeltas."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from firesteel.durations import Duration, duration_us, positive_us
from firesteel.errors import InvalidProgram
from firesteel.operators import (
    AssignWatermarksSpec,
    CountSpec,
    DynamicSessionSpec,
    GlobalSpec,
    SessionSpec,
    SlidingSpec,
    TumblingSpec,
    WatermarkAlignmentSpec,
    WatermarkSpec,
)

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True, slots=True)
class Watermarks:
    """Defines how event time advances. Each subtask has its own watermark; a consumer of several
    takes the minimum.

    The event time of a source's subtask advances past the data that it has read completely: in a
    FileSource with each file, one after another; in a PythonSource with all partitions of each
    `partitions(start, end)`, in a simple one with each batch. Unassigned splits do not hold it
    back.
    """

    column: str  # empty: unknown
    max_out_of_orderness_us: int = 0
    function: Callable[[pa.RecordBatch], Any] | None = None  # in place of the column
    idle_us: int | None = None
    alignment: WatermarkAlignmentSpec | None = None

    @classmethod
    def bounded(cls, column: str, *, max_out_of_orderness: Duration = "0 s") -> Watermarks:
        """Watermarks that trail the latest timestamp in `column` that the subtask has seen by
        `max_out_of_orderness`.
        """
        _check_column("Watermarks.bounded()", column)
        delay_us = duration_us(max_out_of_orderness, "max_out_of_orderness")
        if delay_us < 0:
            raise InvalidProgram(
                f"max_out_of_orderness is {max_out_of_orderness!r}; it cannot be negative"
            )
        return cls(column, delay_us)

    @classmethod
    def custom(cls, function: Callable[[pa.RecordBatch], Any], *, column: str = "") -> Watermarks:
        """Watermarks computed by `function(batch)`, which is called with each batch of a subtask
        and returns the time before which no more records follow.

        It returns a datetime (without zone: UTC), a pyarrow timestamp, or None if the batch has
        none; times before an earlier result are ignored. It may be an object with `__call__` and
        state: each subtask has a copy. `column` is the default event-time column of windows.
        """
        if not callable(function):
            raise InvalidProgram(
                f"Watermarks.custom() takes a function, not {type(function).__name__} {function!r}"
            )
        return cls(column, function=function)

    def with_idleness(self, idle: Duration) -> Watermarks:
        """Marks a subtask without records for this long as idle: consumers do not wait for its
        event time until it has records again.

        A FileSource that watches a directory is idle whenever it has read all files, with or
        without this setting.
        """
        idle_us = duration_us(idle, "with_idleness()")
        if idle_us < 1000:
            raise InvalidProgram(f"with_idleness() is {idle!r}; it must be at least 1 ms")
        return replace(self, idle_us=idle_us)

    def with_alignment(
        self, group: str, *, max_drift: Duration, update_interval: Duration = "1 s"
    ) -> Watermarks:
        """Enables watermark alignment: a source pauses while its event time is more than
        `max_drift` ahead of the slowest source of its group.

        All sources of a program that name the same group belong to it, with all their subtasks.
        Idle and finished subtasks do not hold back others; a subtask without event time yet does:
        the others pause after their first watermark. A split that is being read is read to its end.
        Subtasks report their watermarks once per `update_interval`, and immediately after a large
        part of the drift, or when they pause or resume.
        """
        if not isinstance(group, str) or not group:
            raise InvalidProgram(f"with_alignment() takes the name of a group, not {group!r}")
        max_drift_us = positive_us(max_drift, "max_drift of with_alignment()")
        update_interval_us = duration_us(update_interval, "update_interval of with_alignment()")
        if update_interval_us < 1000:
            raise InvalidProgram(
                f"update_interval of with_alignment() is {update_interval!r};"
                " it must be at least 1 ms"
            )
        return replace(
            self,
            alignment=WatermarkAlignmentSpec(
                group=group, max_drift_us=max_drift_us, update_interval_us=update_interval_us
            ),
        )

    def spec(self) -> WatermarkSpec:
        """Returns the spec for a source that derives event time itself."""
        return WatermarkSpec(
            column=self.column,
            max_out_of_orderness_us=self.max_out_of_orderness_us,
            idle_us=self.idle_us,
        )

    def assigner_spec(self, *, held: bool = False) -> AssignWatermarksSpec:
        """Returns the spec of the operator that assigns these watermarks."""
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
    """Consecutive windows of a fixed size that start at the epoch (UTC) plus `offset`.

    In event time, `on` names the timestamp column; the default is the column of the source's
    watermarks. With `processing_time=True`, a record belongs to the window in which it arrives, by
    the machine's clock.
    """

    size: Duration
    offset: Duration = "0 s"
    on: str | None = None
    processing_time: bool = False

    def spec(self) -> TumblingSpec:
        """Returns the operator's spec. Raises InvalidProgram for invalid durations."""
        _check_time(self)
        size_us = positive_us(self.size, "the size of a Tumbling window")
        offset_us = duration_us(self.offset, "the offset of a Tumbling window") % size_us
        return TumblingSpec(
            size_us=size_us, offset_us=offset_us, processing_time=self.processing_time
        )

    def __str__(self) -> str:
        return f"Tumbling {self.size}"


@dataclass(frozen=True, slots=True)
class Sliding:
    """Windows of a fixed size that start every `slide`, from the epoch (UTC) plus `offset`.

    A record is in `size / slide` windows. `on` and `processing_time` are as in Tumbling.
    """

    size: Duration
    slide: Duration
    offset: Duration = "0 s"
    on: str | None = None
    processing_time: bool = False

    def spec(self) -> SlidingSpec:
        """Returns the operator's spec. Raises InvalidProgram for invalid durations."""
        _check_time(self)
        size_us = positive_us(self.size, "the size of a Sliding window")
        slide_us = positive_us(self.slide, "the slide of a Sliding window")
        offset_us = duration_us(self.offset, "the offset of a Sliding window") % slide_us
        spec = SlidingSpec(
            size_us=size_us,
            slide_us=slide_us,
            offset_us=offset_us,
            processing_time=self.processing_time,
        )
        if size_us // spec.pane_us > _MOST_PANES:
            raise InvalidProgram(
                f"a Sliding window of {self.size!r} every {self.slide!r} is divided into"
                f" {size_us // spec.pane_us:,} panes; at most {_MOST_PANES:,} are allowed;"
                " make the size a multiple of the slide, or the slide longer"
            )
        return spec

    def __str__(self) -> str:
        return f"Sliding {self.size} every {self.slide}"


@dataclass(frozen=True, slots=True)
class Session:
    """A window per burst of a key's records: it ends when no record has arrived for `gap`.

    Records exactly `gap` apart belong to one session, as in Spark's `session_window`. `on` and
    `processing_time` are as in Tumbling.
    """

    gap: Duration
    on: str | None = None
    processing_time: bool = False
    dynamic_gap: str = ""  # Spark SQL; see `with_dynamic_gap`

    @classmethod
    def with_dynamic_gap(
        cls, gap: str, *, on: str | None = None, processing_time: bool = False
    ) -> Session:
        """Sessions whose gap depends on the record, as in Flink's
        `EventTimeSessionWindows.with_dynamic_gap`.

        `gap` is a Spark SQL expression over the columns of the stream. It returns an interval, or
        the text of one: `"CASE WHEN device = 'mobile' THEN '5 minutes' ELSE '30 minutes' END"`. A
        session ends when the gaps of all its records are over. A record whose gap is null or not
        longer than 0 fails the job.
        """
        if not isinstance(gap, str) or not gap.strip():
            raise InvalidProgram(
                "Session.with_dynamic_gap() takes a Spark SQL expression such as"
                f' "make_dt_interval(0, 0, minutes)", not {type(gap).__name__} {gap!r};'
                " to compute the gap in Python, add a column with map(...) and name it here"
            )
        return cls("0 s", on=on, processing_time=processing_time, dynamic_gap=gap)

    def spec(self) -> SessionSpec:
        """Returns the operator's spec. Raises InvalidProgram for invalid durations."""
        _check_time(self)
        if self.dynamic_gap:
            return DynamicSessionSpec(gap=self.dynamic_gap, processing_time=self.processing_time)
        return SessionSpec(
            gap_us=positive_us(self.gap, "the gap of a Session window"),
            processing_time=self.processing_time,
        )

    def __str__(self) -> str:
        return f"Session {self.dynamic_gap or self.gap}"


@dataclass(frozen=True, slots=True)
class Global:
    """One window per key that never ends; a trigger decides when it emits results:

        stream.key_by("k").window(Global()).trigger(CountTrigger.of(100)).aggregate(...)

    as in Flink's GlobalWindows. Results have the column `window_id`: the number of the key's
    firing, starting at 0. `on` names the timestamp column for event-time triggers; the default is
    the column of the source's watermarks.
    """

    on: str | None = None

    @property
    def processing_time(self) -> bool:
        """False: the window has no end in either time."""
        return False

    def spec(self) -> GlobalSpec:
        """Returns the operator's spec. Raises InvalidProgram."""
        if self.on is not None:
            _check_column("Global(on=...)", self.on)
        return GlobalSpec()

    def __str__(self) -> str:
        return "Global"


@dataclass(frozen=True, slots=True)
class Count:
    """Windows of `size` records of a key, consecutive or starting every `slide` records:
    `count_window(size, slide)`.
    """

    size: int
    slide: int | None = None

    @property
    def on(self) -> None:
        """None: count windows do not use time."""
        return None

    @property
    def processing_time(self) -> bool:
        """False: count windows do not use time."""
        return False

    def spec(self) -> CountSpec:
        """Returns the operator's spec. Raises InvalidProgram for invalid numbers."""
        slide = self.size if self.slide is None else self.slide
        for name, number in (("size", self.size), ("slide", slide)):
            if not isinstance(number, int) or isinstance(number, bool) or number < 1:
                raise InvalidProgram(
                    f"count_window({name}={number!r}): it takes a number of records, at least 1"
                )
        return CountSpec(size=self.size, slide=slide)

    def __str__(self) -> str:
        every = "" if self.slide is None else f" every {self.slide}"
        return f"Count {self.size}{every}"


Window = Tumbling | Sliding | Session | Global

_MOST_PANES = 10_000


def _check_column(where: str, column: Any) -> None:
    if not isinstance(column, str) or not column:
        raise InvalidProgram(
            f'{where} takes the name of the event-time column, such as "at",'
            f" not {type(column).__name__} {column!r}; with_column(name, ...) adds one"
        )


def _check_time(window: Tumbling | Sliding | Session) -> None:
    if window.on is not None:
        _check_column(f"{type(window).__name__}(on=...)", window.on)
    if window.processing_time and window.on is not None:
        raise InvalidProgram(
            f"{type(window).__name__}(on={window.on!r}, processing_time=True):"
            " processing time is a clock, not a column"
        )
