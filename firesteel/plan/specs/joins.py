"""Joins of two streams."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from firesteel.plan.specs.windows import TumblingSpec

How = Literal["inner", "left", "right", "full"]


@dataclass(frozen=True, slots=True, kw_only=True)
class EventTimes:
    """The columns that hold the event times of the two streams, and what is added to them (see
    PartialWindowAggregateSpec).
    """

    columns: tuple[str, str]
    shifts_us: tuple[int, int] = (0, 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class IntervalSpec:
    """A row of the right stream joins one of the left if it is from `lower_us` to `upper_us` after
    it, both included.
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
    tolerance_us: int | None = None  # None: however long ago


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeToLiveSpec:
    """Rows join those that have arrived less than `ttl_ms` before them, by the machine's clock."""

    ttl_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinSpec:
    """Joins the rows of two streams whose keys are equal and not null.

    Output: keys that have the same name in both, the other columns of the left and of the right
    stream, `window_start` and `window_end` if there are windows, and `row_kind` unless it is an
    inner join of rows that stay: a row without a match goes when it gets one. Within event time, it
    comes when no match can come any more, and stays: there is no `row_kind`.
    """

    left_keys: tuple[str, ...]
    right_keys: tuple[str, ...]  # as many
    how: How = "inner"
    # None: whenever they come
    within: IntervalSpec | SameWindowSpec | AsOfSpec | TimeToLiveSpec | None = None
    # In a batch: the pairs of all rows, and rows without a match, each once. None is late.
    whole: bool = False
    # In a stream: how far what follows sees its watermark behind, at least.
    held_us: int = 0

    @property
    def keeps(self) -> tuple[bool, bool]:
        """Whether rows of the left, of the right stream are there without a match."""
        return self.how in ("left", "full"), self.how in ("right", "full")

    @property
    def retracts(self) -> bool:
        return any(self.keeps) and (self.within is None or isinstance(self.within, TimeToLiveSpec))
