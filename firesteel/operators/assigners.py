"""Assignment of rows to windows. Times are in microseconds since the epoch."""

from __future__ import annotations

import math
from dataclasses import dataclass

WINDOW_START, WINDOW_END = "window_start", "window_end"  # columns of results, and of panes

# The column with the gaps of rows in microseconds, which dynamic sessions keep. Results omit it.
SESSION_GAP = "_session_gap"


@dataclass(frozen=True, slots=True, kw_only=True)
class TumblingSpec:
    size_us: int
    offset_us: int = 0
    processing_time: bool = False

    @property
    def slide_us(self) -> int:
        return self.size_us

    @property
    def pane_us(self) -> int:
        return self.size_us


@dataclass(frozen=True, slots=True, kw_only=True)
class SlidingSpec:
    """A window of `size_us` starts every `slide_us`, aligned to the epoch plus the offset."""

    size_us: int
    slide_us: int
    offset_us: int = 0
    processing_time: bool = False

    @property
    def pane_us(self) -> int:
        """The length of a pane: every window consists of whole panes, and each row is in one
        pane.
        """
        return math.gcd(self.size_us, self.slide_us)


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionSpec:
    """Rows of a key at most `gap_us` apart; the window ends `gap_us` after the last of them."""

    gap_us: int
    processing_time: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class DynamicSessionSpec(SessionSpec):
    """Sessions in which each row has a gap: a session ends when the gaps of all its rows are
    over.
    """

    gap: str  # Spark SQL over a row: an interval, or its text
    gap_us: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class CountSpec:
    """The rows of a key in order of arrival: window n has `size` of them, starting at row n *
    `slide`.
    """

    size: int
    slide: int

    @property
    def processing_time(self) -> bool:
        return False


@dataclass(frozen=True, slots=True, kw_only=True)
class GlobalSpec:
    """One window per key, which never ends."""

    @property
    def processing_time(self) -> bool:
        return False


WindowSpec = TumblingSpec | SlidingSpec | SessionSpec
