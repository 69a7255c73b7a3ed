"""Joins of two streams."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from firesteel.operators.windows import TumblingSpec

How = Literal["inner", "left", "right", "full"]


@dataclass(frozen=True, slots=True, kw_only=True)
class EventTimes:
    """The event-time columns of the two streams, and the offsets to add to their values (see
    PartialWindowAggregateSpec).
    """

    columns: tuple[str, str]
    shifts_us: tuple[int, int] = (0, 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class IntervalSpec:
    """A row of the right stream joins one of the left if it is from `lower_us` to `upper_us` after
    it, both inclusive.
    """

    times: EventTimes
    lower_us: int
    upper_us: int


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
class JoinSpec:
    """Joins the rows of two streams whose keys are equal and not null.

    Output: keys that have the same name in both, the other columns of the left and of the right
    stream, `window_start` and `window_end` if there are windows, and `row_kind` unless it is an
    inner join of rows that are not retracted: a row without a match is retracted when it gets one.
    In event time, such a row is emitted when no match can arrive, and is not retracted: there is no
    `row_kind`."""

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

    @property
    def keeps(self) -> tuple[bool, bool]:
        """Whether rows of the left and of the right stream are emitted without a match."""
        return self.how in ("left", "full"), self.how in ("right", "full")

    @property
    def retracts(self) -> bool:
        return any(self.keeps) and (self.within is None or isinstance(self.within, TimeToLiveSpec))
