"""Aggregations with and without windows.

A splittable aggregation consists of two operators: the partial half groups and aggregates within a
bundle, before the shuffle and on Spark; the keyed half merges the partial results into its state.
Any other aggregation keeps the rows of each window and runs Spark when the window fires.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from firesteel.plan.specs.windows import CountSpec, GlobalSpec, SessionSpec, WindowSpec
from firesteel.triggers import (
    EventTimeTrigger,
    ProcessingTimeTrigger,
    PurgingTrigger,
    Trigger,
)


@dataclass(frozen=True, slots=True)
class RowPartial:
    """The contribution of a single row to a partial column: null if it does not count."""

    value: str  # Spark SQL; for a list, the element
    condition: str = ""  # Spark SQL; empty if every row counts
    otherwise: str = "NULL"  # Spark SQL: the contribution of a row that does not meet the condition


@dataclass(frozen=True, slots=True, kw_only=True)
class AggregateExpression:
    """One item of `aggregate(...)`, parsed and split by firesteel.plan.aggregates."""

    sql: str  # original text
    name: str  # of the output column
    # Partial column -> Spark SQL over the rows, such as {"_p0_sum": "sum(d)"}.
    partial: dict[str, str]
    # Partial column -> how two values merge: "sum", "min", "set", "first:<other column>", ...
    # (firesteel.plan.aggregates.split).
    merge: dict[str, str]
    # SQL over the merged partial columns, evaluated when the window fires
    # (firesteel.plan.aggregates.finals).
    final: str
    # Average columns are sums of doubles. These are the exact sums, for decimals and intervals.
    exact: dict[str, str] = field(default_factory=dict)
    # Partial column -> the same for a single row. Some columns have no entry.
    of_row: dict[str, RowPartial] = field(default_factory=dict)
    # Spark SQL over the rows, for expressions that are not split: `sql` without its alias; first
    # and last by time are min_by and max_by.
    whole: str = ""

    @property
    def splittable(self) -> bool:
        """False if `partial`, `merge` and `final` are empty; rows are then kept until the window
        fires.
        """
        return bool(self.final)


@dataclass(frozen=True, slots=True, kw_only=True)
class PartialWindowAggregateSpec:
    """The partial half: assigns panes or sessions, groups and aggregates within a bundle, on Spark.

    Output: key columns, `window_start`, `window_end` (timestamp[us, UTC], only for event-time
    windows), the partial columns, `_rows` (int64). For a running aggregation of changes: for each
    row, the key columns, its contributions to the partial columns (`of_row`), and `row_kind`; with
    `whole_rows`: all columns, and the row's contributions."""

    key_columns: tuple[str, ...]
    window: WindowSpec | None  # None: a running aggregation
    time_column: str  # empty if event time is not used
    aggregates: tuple[AggregateExpression, ...]
    # Added to event time: -1 if the column holds the (exclusive) end of an upstream window.
    time_shift_us: int = 0
    whole_rows: bool = False

    @property
    def in_event_time(self) -> bool:
        return self.window is not None and not self.window.processing_time


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowAggregateSpec:
    """The keyed half: merges partial results per key and window, and emits a window when the
    watermark, or the clock in processing time, passes its end.

    Output: key columns, `window_start`, `window_end`, one column per aggregate, `row_kind` if its
    rows may be retracted."""

    key_columns: tuple[str, ...]
    window: WindowSpec
    aggregates: tuple[AggregateExpression, ...]
    allowed_lateness_us: int = 0

    @property
    def retracts(self) -> bool:
        """Whether rows may be retracted: late records change a session's start and end."""
        return self.allowed_lateness_us > 0 and isinstance(self.window, SessionSpec)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningAggregateSpec:
    """The keyed half without windows: emits the new values of the changed keys, as an upsert
    stream.

    Output: key columns, one column per aggregate, and `row_kind` if its rows are `changes`, or
    those of its input are.
    """

    key_columns: tuple[str, ...]
    aggregates: tuple[AggregateExpression, ...]
    changes: bool = False  # a key's earlier values are retracted before the new ones are emitted


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowTopNSpec:
    """Keeps the first `n` rows of each key and window in the order of the columns `by`.

    Input: the rows. Output: the rows, with `window_start`, `window_end`, `rank` (int32, from 1) and
    `row_kind` if they may be retracted.
    """

    key_columns: tuple[str, ...]
    window: WindowSpec
    n: int
    by: tuple[str, ...]
    ascending: tuple[bool, ...]  # per column
    time_column: str
    time_shift_us: int = 0
    allowed_lateness_us: int = 0
    late_tag: str = ""

    @property
    def retracts(self) -> bool:
        """Whether rows may be retracted: a late record replaces another."""
        return self.allowed_lateness_us > 0


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowApplySpec:
    """Keeps the rows of each window and, when it fires, runs `function` or the aggregates on them.

    Input: the rows. Output: the result of `function` (and `row_kind`), or as for
    WindowAggregateSpec. The side output `late_tag` gets the late rows unchanged.
    """

    key_columns: tuple[str, ...]
    window: WindowSpec | CountSpec | GlobalSpec
    time_column: str
    time_shift_us: int = 0
    allowed_lateness_us: int = 0
    trigger: Trigger | None = None  # None: the window fires when it is complete
    at_end: bool = False  # processing-time timers wait for the end of the input, as in batch mode
    function: Callable[[Any], Any] | None = None
    across_keys: bool = False  # `function` may relate rows of different keys
    aggregates: tuple[AggregateExpression, ...] = ()
    late_tag: str = ""

    @property
    def fires_repeatedly(self) -> bool:
        """Whether later results may replace earlier ones."""
        once = EventTimeTrigger | ProcessingTimeTrigger | PurgingTrigger | None
        return not isinstance(self.trigger, once)

    @property
    def window_columns(self) -> tuple[str, ...]:
        """The additional columns of a window's rows, equal for all rows."""
        if isinstance(self.window, CountSpec | GlobalSpec):
            return ("window_id",)
        return ("window_start", "window_end")

    @property
    def retracts(self) -> bool:
        """Whether rows may be retracted: those of a session, or any row that the function
        returned.
        """
        return self.allowed_lateness_us > 0 and (
            self.function is not None or isinstance(self.window, SessionSpec)
        )
