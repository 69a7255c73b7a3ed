"""Operators on windows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Self

from firesteel.operators.aggregates import AggregateExpression
from firesteel.operators.assigners import CountSpec, GlobalSpec, SessionSpec, WindowSpec
from firesteel.operators.spec import NeededTime, Spec
from firesteel.triggers import EventTimeTrigger, ProcessingTimeTrigger, PurgingTrigger, Trigger


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowAggregateSpec(Spec):
    """The keyed half: merges partial results per key and window, and emits a window when the
    watermark, or the clock in processing time, passes its end.

    Output: key columns, `window_start`, `window_end`, one column per aggregate, `row_kind` if its
    rows may be retracted."""

    key_columns: tuple[str, ...]
    window: WindowSpec
    aggregates: tuple[AggregateExpression, ...]
    allowed_lateness_us: int = 0

    uses_pandas = False
    state_in_columns = True
    sets_times = True

    @property
    def begins_event_time(self) -> bool:
        return not self.window.processing_time

    @property
    def retracts(self) -> bool:
        """Whether rows may be retracted: late records change a session's start and end."""
        return self.allowed_lateness_us > 0 and isinstance(self.window, SessionSpec)


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowTopNSpec(Spec):
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

    uses_pandas = False
    counts_rows = True
    state_in_columns = True
    sets_times = True

    @property
    def side_output_tags(self) -> frozenset[str]:
        return frozenset({self.late_tag} - {""})

    @property
    def begins_event_time(self) -> bool:
        return not self.window.processing_time

    @property
    def needed_times(self) -> list[NeededTime]:
        return [NeededTime(0, self.time_column)] if self.begins_event_time else []

    @property
    def retracts(self) -> bool:
        """Whether rows may be retracted: a late record replaces another."""
        return self.allowed_lateness_us > 0


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowApplySpec(Spec):
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

    counts_rows = True
    state_in_columns = True
    sets_times = True

    @property
    def side_output_tags(self) -> frozenset[str]:
        return frozenset({self.late_tag} - {""})

    @property
    def begins_event_time(self) -> bool:
        return not self.window.processing_time

    @property
    def needed_times(self) -> list[NeededTime]:
        return [NeededTime(0, self.time_column)] if self.begins_event_time else []

    def in_batch(self) -> Self:
        return replace(self, at_end=self.trigger is not None)

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
