"""Processing time: the machine's clock, since the epoch."""

from __future__ import annotations

import time


def wall_clock_us() -> int:
    return time.time_ns() // 1_000


def wall_clock_ms() -> int:
    return time.time_ns() // 1_000_000
