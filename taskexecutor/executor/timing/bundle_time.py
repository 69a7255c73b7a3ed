"""Decides how long a source reads before it runs the task's mails. Pure: times are arguments, in
seconds.

Rows that are passed on one by one are read until reading takes `TARGET_S` together with the
downstream operators. Aggregates cost most at the end of a bundle, where they emit one row per key,
so they read for longer, especially with many keys.

Operators of the same task may call slow functions of the program for each row. In front of them
(`chained`), the first bundles are small, and so are all if they prove to be slow.
"""

from __future__ import annotations

from firesteel.common.units import KIB, MIB

TARGET_S = 0.05
AGGREGATED_S = 0.1
MOST_S = 0.25
LEAST_S = 0.001
MOST_BYTES = 16 * MIB
LEAST_BYTES = 256 * KIB
LEAST_CHAINED_S = 1e-5
LEAST_CHAINED_BYTES = KIB
MOST_ROWS = 65_536
FIRST_ROWS = 1_024
_GROWTH = 8
AGGREGATED_BYTES = 2 * MIB  # at least: each run of an aggregate costs milliseconds
_FLUSH_SHARE = 4  # reading takes at least this many times as long as emitting, up to MOST_S


class BundleTime:
    def __init__(self, *, aggregated: bool, chained: bool) -> None:
        self._aggregated = aggregated
        self._least_s = LEAST_CHAINED_S if chained else LEAST_S
        self.read_s = AGGREGATED_S if aggregated else LEAST_S if chained else TARGET_S

    def took(self, busy_s: float) -> None:
        """Adjusts to the time that the last bundle took, including downstream operators and
        excluding waits for consumers.
        """
        if self._aggregated:
            flush_s = max(0.0, busy_s - self.read_s)
            self.read_s = min(MOST_S, max(AGGREGATED_S, _FLUSH_SHARE * flush_s))
        else:
            factor = min(2.0, TARGET_S / max(busy_s, 1e-9))
            self.read_s = min(TARGET_S, max(self._least_s, self.read_s * factor))


class BundleSize:
    """The limit in bytes, for readers that read a number of bytes of columns at a time."""

    def __init__(self, *, aggregated: bool, chained: bool) -> None:
        self._target_s = MOST_S if aggregated else TARGET_S
        least = LEAST_CHAINED_BYTES if chained else LEAST_BYTES
        self._least_bytes = min(MOST_BYTES, AGGREGATED_BYTES if aggregated else least)
        self.limit_bytes = MOST_BYTES if aggregated else MOST_BYTES // (256 if chained else 4)

    def took(self, busy_s: float, size_bytes: int) -> None:
        """Adjusts to the time that the last bundle took, as for `BundleTime`, and to its size."""
        wanted = size_bytes * self._target_s / max(busy_s, 1e-9)
        wanted = min(wanted, 2 * self.limit_bytes)
        self.limit_bytes = int(min(MOST_BYTES, max(self._least_bytes, wanted)))


class BundleRows:
    """The limit in rows, for rows that are there already."""

    def __init__(self, *, chained: bool, most: int = MOST_ROWS, target_s: float = TARGET_S) -> None:
        self._most = most
        self._target_s = target_s
        self.rows = FIRST_ROWS if chained else most

    def took(self, busy_s: float, rows: int) -> None:
        """Adjusts to the time that the last bundle took, as for `BundleTime`, and to its rows."""
        wanted = min(rows * self._target_s / max(busy_s, 1e-9), _GROWTH * self.rows)
        self.rows = int(min(self._most, max(1, wanted)))
