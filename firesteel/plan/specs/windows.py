"""How rows are assigned to windows. Times are in microseconds since the epoch."""

from __future__ import annotations

import math
from dataclasses import dataclass


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
    """A window of `size_us` begins every `slide_us`, aligned to the epoch plus the offset."""

    size_us: int
    slide_us: int
    offset_us: int = 0
    processing_time: bool = False

    @property
    def pane_us(self) -> int:
        """Length of a pane: every window consists of whole panes, and each row is in one pane."""
        return math.gcd(self.size_us, self.slide_us)


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionSpec:
    """Rows of a key at most `gap_us` apart; the window ends `gap_us` after the last of them."""

    gap_us: int
    processing_time: bool = False


WindowSpec = TumblingSpec | SlidingSpec | SessionSpec
