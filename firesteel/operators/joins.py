"""Joins of two streams."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Literal, Self

from firesteel.operators.assigners import TumblingSpec
from firesteel.operators.spec import NeededTime, Spec

How = Literal["inner", "left", "right", "full", "semi"]


@dataclass(frozen=True, slots=True, kw_only=True)
class EventTimes:
    """The event-time columns of the two streams, and the offsets to add to their values: -1 for the
    (exclusive) end of a window.
    """

    columns: tuple[str, str]
    shifts_us: tuple[int, int] = (0, 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class IntervalSpec:
    """A row of the right stream joins one of the left if it is from `lower_us` to `upper_us` after
    it, both inclusive. Left and right rows are kept for `kept_us` after the watermark has passed
    their matches. Rows are late by the columns `late_by`, instead of by their times: none if the
    name is empty. A row that is not late, but whose matches are over, is one without a match.
    """

    times: EventTimes
    lower_us: int
    upper_us: int
    kept_us: tuple[int, int] = field(default=(0, 0), repr=False)
    late_by: tuple[str, str] | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class SameWindowSpec:
    """Rows join those in the same window of event time."""

    times: EventTimes
    window: TumblingSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class AsOfSpec:
    """A row of the left stream joins one of the right: the latest whose event time is not after its
    own, unless that is more than `tolerance_us` before it or deletes its key.
    """

    times: EventTimes
    tolerance_us: int | None = None  # None: unlimited


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeToLiveSpec:
    """Rows join those that arrived less than `ttl_ms` before them, by the machine's clock."""

    ttl_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinSpec(Spec):
    """Joins the rows of two streams whose keys are equal and not null, unless `holds_null_keys`.

    Output: keys that have the same name in both, the other columns of the left and of the right
    stream, `window_start` and `window_end` if there are windows, and `row_kind` unless it is an
    inner join of rows that are not retracted: a row without a match is retracted when it gets one.
    In event time, such a row is emitted when no match can arrive, and is not retracted: there is no
    `row_kind`. A semi join emits each row of the left stream once, at its first match, and has its
    columns only.
    """

    left_keys: tuple[str, ...]
    right_keys: tuple[str, ...]  # the same number
    how: How = "inner"
    # None: whenever rows arrive
    within: IntervalSpec | SameWindowSpec | AsOfSpec | TimeToLiveSpec | None = None
    # In batch mode: emits the pairs of all rows, and rows without a match, once each. No row is
    # late.
    whole: bool = False
    # In a stream: the minimum delay of the watermark that downstream operators see.
    held_us: int = 0
    # As in Spark's joins of streams: outer joins hold rows whose key has a null like other rows
    # without a match, and a full join matches such keys if they are equal, null by null.
    holds_null_keys: bool = field(default=False, repr=False)
    # Boolean columns of the two streams, or empty. A row for which its column is not true has no
    # match: outer joins emit it on arrival.
    conditions: tuple[str, str] = field(default=("", ""), repr=False)

    uses_pandas = False
    counts_rows = True
    state_in_columns = True

    @property
    def keeps(self) -> tuple[bool, bool]:
        """Whether rows of the left and of the right stream are emitted without a match."""
        return self.how in ("left", "full"), self.how in ("right", "full")

    @property
    def retracts(self) -> bool:
        return any(self.keeps) and (self.within is None or isinstance(self.within, TimeToLiveSpec))

    @property
    def applies_changes(self) -> bool:
        return self.within is None and self.how != "semi"

    def instead_of_changes(self, input_index: int) -> str:
        if input_index == 1 and isinstance(self.within, AsOfSpec):
            return "join the rows upstream of it: as_of_join finds the latest of them itself"
        return ""

    @property
    def needed_times(self) -> list[NeededTime]:
        if not isinstance(self.within, IntervalSpec | SameWindowSpec | AsOfSpec):
            return []
        return [NeededTime(side, column) for side, column in enumerate(self.within.times.columns)]

    @property
    def waits_for_watermarks(self) -> str:
        if isinstance(self.within, AsOfSpec):
            return "its rows"
        timed = isinstance(self.within, IntervalSpec | SameWindowSpec)
        return "its rows without a match" if timed and any(self.keeps) else ""

    @property
    def keeps_until_watermark(self) -> bool:
        return isinstance(self.within, IntervalSpec | SameWindowSpec | AsOfSpec)

    @property
    def instead_of_growing(self) -> str:
        if self.within is not None:
            return ""
        return (
            'join(..., ttl="1 day"), or join rows that are close in time:'
            " interval_join(...), window_join(...)"
        )

    @property
    def result_times(self) -> tuple[str, ...] | None:
        """For an interval join, the column of the stream whose rows are all in the result,
        otherwise the later one of each pair, if that is always the same one.
        """
        if isinstance(self.within, SameWindowSpec):
            return ("window_end",)
        if not isinstance(self.within, IntervalSpec):
            return None
        times = self.within.times
        if any(times.shifts_us) or self.how == "full":
            return ()
        if any(self.keeps) or self.how == "semi":
            return times.columns[1:] if self.how == "right" else times.columns[:1]
        if self.within.upper_us <= 0:
            return times.columns[:1]
        return times.columns[1:] if self.within.lower_us >= 0 else ()

    def with_delayed_watermark(self) -> Self:
        """The delay is that of the earlier row of a pair."""
        if isinstance(self.within, SameWindowSpec):
            return replace(self, held_us=self.within.window.size_us)
        assert isinstance(self.within, IntervalSpec)
        left_us, right_us = self.within.kept_us
        held_us = max(self.within.upper_us + left_us, right_us - self.within.lower_us, 0)
        return replace(self, held_us=held_us)

    def in_batch(self) -> Self:
        within = None if isinstance(self.within, TimeToLiveSpec) else self.within
        return replace(self, within=within, whole=True)
