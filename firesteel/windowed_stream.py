"""Aggregations of keyed streams, in windows or running."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Generic, Protocol, Self, TypeVar

from firesteel.column_names import same
from firesteel.durations import Duration, duration_us
from firesteel.errors import InvalidProgram
from firesteel.missing_methods import no_such_member
from firesteel.operators import (
    AggregateExpression,
    CountSpec,
    DynamicSessionSpec,
    GlobalSpec,
    PartialWindowAggregateSpec,
    RunningAggregateSpec,
    Spec,
    WindowAggregateSpec,
    WindowApplySpec,
    WindowTopNSpec,
)
from firesteel.operators.assigners import WINDOW_END, WINDOW_START
from firesteel.row_kind import ROW_KIND
from firesteel.triggers import ContinuousEventTimeTrigger, PurgingTrigger, Trigger
from firesteel.windows import Count, Global, Session, Sliding, Tumbling, Window

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

# DataStream is defined above this module: only the members that it needs are declared here.
Stream = TypeVar("Stream", bound="_Timed")
Stream_co = TypeVar("Stream_co", bound="_Timed", covariant=True)

# The event time of a window's result is its last microsecond, just before this column's time.
_WINDOW_COLUMNS = (WINDOW_START, WINDOW_END)  # of the results of time windows
_WINDOW_ID = "window_id"  # of the results of other windows


class _Timed(Protocol):
    def _with_time_columns(self, *columns: str) -> Self:
        """Sets the event-time columns of the stream."""


class KeyedRows(Protocol[Stream_co]):
    """The members of KeyedStream that an aggregation needs."""

    key_columns: tuple[str, ...]
    _time_columns: frozenset[str]

    def _add(self, name: str, spec: Spec, *, uid: str = "") -> Stream_co: ...

    def _with_session_gap(self, gap: str) -> KeyedRows[Stream_co]:
        """Adds a column with the gap of each row."""

    def _add_in_two_halves(
        self, title: str, partial: Spec, final: Spec, *, uid: str
    ) -> Stream_co: ...


class WindowedStream(Generic[Stream]):
    """The records of each key, or all records, in windows."""

    def __init__(
        self, keyed: KeyedRows[Stream], window: Window | Count, allowed_lateness: Duration
    ) -> None:
        if not isinstance(window, (Tumbling, Sliding, Session, Global, Count)):
            raise InvalidProgram(
                "window() takes a Tumbling, Sliding, Session or Global window, not"
                f" {type(window).__name__}"
            )
        self._keyed = keyed
        self._window = window
        self._spec = window.spec()
        self._trigger: Trigger | None = None
        _check_keys(keyed.key_columns, self._window_columns)
        self._late_tag = ""
        self._allowed_lateness_us = duration_us(allowed_lateness, "allowed_lateness")
        if self._allowed_lateness_us < 0:
            raise InvalidProgram(f"allowed_lateness is {allowed_lateness!r}; it cannot be negative")
        if window.processing_time and self._allowed_lateness_us:
            raise InvalidProgram(
                "allowed_lateness has no meaning in processing time: nothing is ever late"
            )
        if isinstance(window, Count | Global) and self._allowed_lateness_us:
            raise InvalidProgram(
                f"allowed_lateness has no meaning for {window} windows: nothing is ever late"
            )
        self._time_column, self._time_shift_us = _event_time(keyed, window)

    if not TYPE_CHECKING:  # a type checker knows the members

        def __getattr__(self, name: str) -> Any:
            no_such_member(type(self), name)

    def side_output_late(self, tag: str) -> Self:
        """Sends late records unchanged to the side output `tag` of the result instead of dropping
        them:

            windows = stream.key_by("k").window(Tumbling("1 hour")).side_output_late("late")
            result = windows.aggregate("count(*) AS n")
            late = result.side_output("late")

        The windows then keep their rows, and aggregate them when they fire.
        """
        if not isinstance(tag, str) or not tag:
            raise InvalidProgram(f"side_output_late() takes the name of a side output, not {tag!r}")
        if self._window.processing_time or isinstance(self._window, Count | Global):
            what = "in processing time" if self._window.processing_time else f"for {self._window}"
            raise InvalidProgram(f"side_output_late() has no meaning {what}: nothing is ever late")
        self._late_tag = tag
        return self

    def trigger(self, trigger: Trigger) -> Self:
        """Sets when windows emit results, instead of at their ends:

            early = windows.trigger(ContinuousProcessingTimeTrigger.of("10 s")).aggregate(...)

        The triggers of `firesteel.triggers` are Flink's, and a program may define a subclass of
        `Trigger`. Windows with a trigger keep their rows. A window that fires repeatedly emits the
        results of all of its rows each time, which replace the earlier ones; with
        `PurgingTrigger.of(trigger)`, it drops its rows when it fires. In batch mode,
        processing-time timers fire once, when the input has ended.
        """
        if not isinstance(trigger, Trigger):
            raise InvalidProgram(
                f"trigger() takes a Trigger, such as CountTrigger.of(100), not"
                f" {type(trigger).__name__} {trigger!r}"
            )
        if isinstance(self._window, Count):
            raise InvalidProgram(
                "count_window() fires when a window is complete; for another trigger, use"
                " window(Global()).trigger(...)"
            )
        if self._allowed_lateness_us:
            raise InvalidProgram(
                "trigger() cannot be combined with allowed_lateness; omit one of them"
            )
        if isinstance(self._window, Session) and not trigger.can_merge():
            raise InvalidProgram(
                f"{type(trigger).__name__} cannot be the trigger of sessions, which merge:"
                " implement can_merge() and on_merge()"
            )
        nested = trigger.nested if isinstance(trigger, PurgingTrigger) else trigger
        if isinstance(nested, ContinuousEventTimeTrigger) and not self._time_column:
            raise InvalidProgram(
                "ContinuousEventTimeTrigger needs event time: give the source"
                " watermarks=Watermarks.bounded(...), and omit processing_time"
            )
        self._trigger = trigger
        return self

    def aggregate(
        self, *expressions: str | Column, name: str | None = None, uid: str = ""
    ) -> Stream:
        """Computes one row per key and window: the key columns, `window_start` and `window_end`
        (`window_id` for count windows and `Global`), and one column per expression: SQL text, or a
        Column such as F.sum("x").alias("s").

        Each expression consists of Spark's aggregate functions and has a name: "count(*) AS
        flights", "avg(dep_delay) AS avg_delay". `first(x)` and `last(x)` are by event time. Types,
        nulls and errors are Spark's.

        count, sum, min, max, avg, stddev, variance (and their variants), min_by, max_by, first,
        last, any_value, bool_and, bool_or, bit_and, bit_or, bit_xor, collect_list, collect_set,
        count(DISTINCT x), approx_count_distinct and count_if, each with FILTER (WHERE ...), and + -
        * / between them, are partially computed before the shuffle, in the same Spark plan as the
        operators before them. For all others, windows keep their rows, and Spark aggregates them
        when they fire.

        Allowed late records can merge sessions whose rows have been emitted. So sessions with
        `allowed_lateness` have an additional column, `row_kind`: "insert", or "delete" for a row
        that is no longer valid.

        Raises InvalidProgram for syntax errors, unknown functions and columns outside of
        aggregates; unknown columns are found before data flows.
        """
        from firesteel.plan.aggregates.parse import parse_aggregates, unsplittable  # the SQL parser

        aggregates = parse_aggregates(expressions, time_column=self._time_column)
        _check_names(aggregates, (*self._keyed.key_columns, *self._window_columns))
        if self._allowed_lateness_us and isinstance(self._window, Session):
            _check_row_kind(self._keyed.key_columns, aggregates)
        title = name or f"Window({self._window})"
        # Partial results in processing time do not contain the gaps of their rows.
        gaps = isinstance(self._spec, DynamicSessionSpec) and self._window.processing_time
        if (
            self._late_tag
            or unsplittable(aggregates)
            or gaps
            or self._trigger is not None
            or isinstance(self._spec, CountSpec | GlobalSpec)
        ):
            return self._keep_rows(title, None, aggregates, uid)
        partial = PartialWindowAggregateSpec(
            key_columns=self._keyed.key_columns,
            window=self._spec,
            time_column=self._time_column,
            time_shift_us=self._time_shift_us,
            aggregates=aggregates,
        )
        final = WindowAggregateSpec(
            key_columns=self._keyed.key_columns,
            window=self._spec,
            aggregates=aggregates,
            allowed_lateness_us=self._allowed_lateness_us,
        )
        return self._of_windows(self._keyed._add_in_two_halves(title, partial, final, uid=uid))

    def apply(
        self,
        function: Callable[[DataFrame], DataFrame],
        *,
        across_keys: bool = False,
        name: str | None = None,
        uid: str = "",
    ) -> Stream:
        """Applies a DataFrame to DataFrame function on Spark when windows fire.

        The DataFrame has the windows' rows of all keys of the subtask, with `window_start` and
        `window_end` as additional columns: group by the key columns and these two. If its plan
        relates only rows with the same `window_start` or `window_end`, one run computes all windows
        that fire at the same time; otherwise, each window has a separate run. With
        `allowed_lateness`, late rows cause a run over the rows of their keys, and a run over those
        rows as they were before, whose results are emitted again as deleted. So the results have
        the additional column `row_kind`: "insert" or "delete".

        A function that relates rows of different keys, whose result would depend on the
        parallelism, is refused before data flows. `across_keys=True` allows it.
        """
        if not callable(function):
            raise InvalidProgram(
                f"apply() takes a function, not {type(function).__name__} {function!r}"
            )
        title = name or f"WindowApply({self._window})"
        return self._keep_rows(title, function, (), uid, across_keys=across_keys)

    def top_n(
        self,
        n: int,
        *,
        by: str | Sequence[str],
        ascending: bool | Sequence[bool] = False,
        name: str | None = None,
        uid: str = "",
    ) -> Stream:
        """Returns the first `n` records of each key and window in the order of the columns `by`,
        the largest first: unchanged, with the additional columns `window_start`, `window_end` and
        `rank` (1 for the first).

        `ascending`, for all columns or one each, puts the smallest first. The order is Spark's:
        nulls are the smallest, NaN the largest. Among records that are equal in all these columns,
        those that arrived first are taken. After `window_all`, these are the first records of the
        whole window.

        With `allowed_lateness`, results have an additional column, `row_kind`: "insert", or
        "delete" for a row that is no longer valid.
        """
        columns, directions = checked_order(n, by, ascending)
        if self._trigger is not None or isinstance(self._spec, CountSpec | GlobalSpec):
            raise InvalidProgram(
                "top_n() is not available for windows with a trigger, count windows and global"
                " windows: use apply(...) with a window function, such as F.row_number()"
            )
        spec = WindowTopNSpec(
            key_columns=self._keyed.key_columns,
            window=self._spec,
            n=n,
            by=columns,
            ascending=directions,
            time_column=self._time_column,
            time_shift_us=self._time_shift_us,
            allowed_lateness_us=self._allowed_lateness_us,
            late_tag=self._late_tag,
        )
        title = name or f"TopN({n} by {', '.join(columns)}, {self._window})"
        return self._of_windows(self._rows._add(title, spec, uid=uid))

    # -- inside

    def _keep_rows(
        self,
        title: str,
        function: Callable[[Any], Any] | None,
        aggregates: tuple[AggregateExpression, ...],
        uid: str,
        across_keys: bool = False,
    ) -> Stream:
        if isinstance(self._window, Global) and self._trigger is None:
            raise InvalidProgram(
                "a Global window never ends; set when it emits results:"
                " window(Global()).trigger(CountTrigger.of(100))"
            )
        spec = WindowApplySpec(
            key_columns=self._keyed.key_columns,
            window=self._spec,
            trigger=self._trigger,
            time_column=self._time_column if self._needs_time else "",
            time_shift_us=self._time_shift_us,
            allowed_lateness_us=self._allowed_lateness_us,
            function=function,
            across_keys=across_keys,
            aggregates=aggregates,
            late_tag=self._late_tag,
        )
        return self._of_windows(self._rows._add(title, spec, uid=uid))

    @property
    def _rows(self) -> KeyedRows[Stream]:
        """The input of windows that keep rows. It contains the gaps of dynamic sessions."""
        if isinstance(self._spec, DynamicSessionSpec):
            return self._keyed._with_session_gap(self._spec.gap)
        return self._keyed

    @property
    def _needs_time(self) -> bool:
        if not isinstance(self._window, Count | Global) or self._window.on is not None:
            return True
        trigger = self._trigger
        nested = trigger.nested if isinstance(trigger, PurgingTrigger) else trigger
        by_time = isinstance(nested, ContinuousEventTimeTrigger)
        return by_time or (nested is not None and nested.reads_elements)

    @property
    def _window_columns(self) -> tuple[str, ...]:
        without_times = isinstance(self._window, Count | Global)
        return (_WINDOW_ID,) if without_times else _WINDOW_COLUMNS

    def _of_windows(self, stream: Stream) -> Stream:
        timed = WINDOW_END in self._window_columns and not self._window.processing_time
        return stream._with_time_columns(*((WINDOW_END,) if timed else ()))


def running_aggregate(
    keyed: KeyedRows[Stream],
    expressions: tuple[str | Column, ...],
    *,
    changes: bool,
    name: str | None,
    uid: str,
) -> Stream:
    aggregates = parsed_without_windows(keyed, expressions)
    partial = PartialWindowAggregateSpec(
        key_columns=keyed.key_columns, window=None, time_column="", aggregates=aggregates
    )
    if changes:
        _check_row_kind(keyed.key_columns, aggregates)
    final = RunningAggregateSpec(
        key_columns=keyed.key_columns, aggregates=aggregates, changes=changes
    )
    return keyed._add_in_two_halves(name or "Aggregate", partial, final, uid=uid)


def parsed_without_windows(
    keyed: KeyedRows[Stream], expressions: tuple[str | Column, ...]
) -> tuple[AggregateExpression, ...]:
    from firesteel.plan.aggregates.parse import parse_aggregates, unsplittable  # the SQL parser

    columns = keyed._time_columns
    time_column = next(iter(columns)) if len(columns) == 1 else ""
    aggregates = parse_aggregates(expressions, time_column=time_column)
    _check_names(aggregates, keyed.key_columns)
    for item in unsplittable(aggregates):
        raise InvalidProgram(
            f"aggregate({item.sql!r}): without a window this would keep all rows of each key"
            " forever; use window(...) before it, or functions whose results can be updated"
            " (count, sum, min, max, avg, stddev, collect_set, ...)"
        )
    return aggregates


def checked_order(
    n: int, by: str | Sequence[str], ascending: bool | Sequence[bool]
) -> tuple[tuple[str, ...], tuple[bool, ...]]:
    """Returns the columns that `top_n` orders by, and whether each is ascending. Raises
    InvalidProgram.
    """
    if not isinstance(n, int) or isinstance(n, bool) or n < 1:
        raise InvalidProgram(
            f'top_n({n!r}): it takes a number of rows, at least 1, as in top_n(3, by="price")'
        )
    return order_of("top_n", by, ascending)


def order_of(
    what: str, by: str | Sequence[str], ascending: bool | Sequence[bool]
) -> tuple[tuple[str, ...], tuple[bool, ...]]:
    """Like `checked_order`, for the method `what`."""
    columns = (by,) if isinstance(by, str) else tuple(by)
    if not columns or not all(isinstance(column, str) and column for column in columns):
        raise InvalidProgram(f"{what}(by={by!r}): name at least one column to order by")
    directions = (ascending,) * len(columns) if isinstance(ascending, bool) else tuple(ascending)
    if len(directions) != len(columns):
        raise InvalidProgram(
            f"{what}(by={by!r}, ascending={ascending!r}): specify one direction, or one per column"
        )
    return columns, directions


def _check_keys(keys: tuple[str, ...], window_columns: tuple[str, ...]) -> None:
    """Checks that no key has the name of a column of the window."""
    for key in keys:
        if key.lower() in window_columns:
            raise InvalidProgram(
                f'key_by("{key}").window(...): its results have a column {key} already; '
                f'use a copy with a different name as key: key_by(F.col("{key}").alias("earlier"))'
            )


def _check_names(aggregates: tuple[AggregateExpression, ...], keys: tuple[str, ...]) -> None:
    for item in aggregates:
        if any(same(item.name, key) for key in keys):
            raise InvalidProgram(
                f"aggregate({item.sql!r}): {item.name!r} is a key column, which the results also"
                " have; choose another name"
            )


def _check_row_kind(keys: tuple[str, ...], aggregates: tuple[AggregateExpression, ...]) -> None:
    if any(same(name, ROW_KIND) for name in (*keys, *(item.name for item in aggregates))):
        raise InvalidProgram(
            f"{ROW_KIND!r} is reserved for results that may be retracted; choose another name"
        )


def _event_time(keyed: KeyedRows[Any], window: Window | Count) -> tuple[str, int]:
    """Returns the event-time column, and an offset to its values in microseconds."""
    if window.processing_time:
        return "", 0
    if window.on is not None:
        return window.on, 0
    if isinstance(window, Count | Global) and len(keyed._time_columns) != 1:
        return "", 0
    return time_column_of(
        keyed._time_columns, "the window", f"{type(window).__name__}(..., on='column')"
    )


def time_column_of(columns: frozenset[str], what: str, naming: str) -> tuple[str, int]:
    """Returns the event-time column of a stream, and an offset to its values in microseconds.
    `naming` shows how a program names a different column.
    """
    if len(columns) != 1:
        reason = (
            "its sources have no watermarks"
            if not columns
            else f"its sources have several: {', '.join(sorted(columns))}"
        )
        raise InvalidProgram(
            f"{what} needs one event-time column, but {reason};"
            " give the source watermarks=Watermarks.bounded(...)"
            f" or name the column with {naming}"
        )
    (column,) = columns
    return column, -1 if column == WINDOW_END else 0
