"""Aggregations with and without windows.

A splittable aggregation consists of two operators: the partial half groups and aggregates within a
bundle, before the shuffle and on Spark; the keyed half merges the partial results into its state.
Any other aggregation keeps the rows of each window and runs Spark when the window fires.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from firesteel.operators.assigners import WindowSpec
from firesteel.operators.spec import NeededTime, Spec

LATEST = "_latest"  # the column with the latest time of the rows of a partial aggregate


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
class PartialWindowAggregateSpec(Spec):
    """The partial half: assigns panes or sessions, groups and aggregates within a bundle, on Spark.

    Output: key columns, `window_start`, `window_end` (timestamp[us, UTC], only for event-time
    windows), the partial columns, `_rows` (int64), `_latest` if `latest` is a column. For a running
    aggregation of changes: for each row, the key columns, its contributions to the partial columns
    (`of_row`), and `row_kind`; with `whole_rows`: all columns, and the row's contributions.

    With `whole_windows`, a window is a key of a running aggregation, as Spark's `window()` is:
    rows have the start and the end of windows instead of panes, and rows without a time do not
    count.

    A session is divided into parts: by `part_column`, or else by intervals of the gap's length."""

    key_columns: tuple[str, ...]
    window: WindowSpec | None  # None: a running aggregation
    time_column: str  # empty if event time is not used
    aggregates: tuple[AggregateExpression, ...]
    # Added to event time: -1 if the column holds the (exclusive) end of an upstream window.
    time_shift_us: int = 0
    whole_rows: bool = False
    whole_windows: bool = False
    latest: str = ""  # a column of timestamps, whose latest value in each group is `_latest`
    part_column: str = ""  # see SessionParts
    observes: bool = False  # its input as it is: an update of a key is a row
    # The one group, of a constant key, also exists without rows: a bundle of which no row is left
    # has a partial row.
    without_groups: bool = False

    uses_pandas = False
    runs_on_spark = True

    @property
    def counts_rows(self) -> bool:
        return not self.observes

    @property
    def sees_each_update(self) -> bool:
        return self.observes

    @property
    def merges(self) -> dict[str, str]:
        """How two values of each column merge, except keys, times and `_rows`."""
        merges = {name: how for item in self.aggregates for name, how in item.merge.items()}
        return merges | ({LATEST: "max"} if self.latest else {})

    @property
    def in_event_time(self) -> bool:
        return self.window is not None and not self.window.processing_time

    @property
    def applies_changes(self) -> bool:
        return self.window is None

    @property
    def needed_times(self) -> list[NeededTime]:
        if not self.in_event_time or self.whole_windows:
            return []
        return [NeededTime(0, self.time_column)]


def aggregate_of(specs: Sequence[Spec]) -> PartialWindowAggregateSpec | None:
    """Returns the last operator of a Spark plan if it aggregates; only the last one can."""
    last = specs[-1] if specs else None
    return last if isinstance(last, PartialWindowAggregateSpec) else None
