"""Decides how long a source reads before it runs the task's mails. Pure: times are arguments, in
seconds.

Rows that are passed on one by one are read until reading takes `TARGET_S` together with the
downstream operators. Aggregates cost most at the end of a bundle, where they emit one row per key,
so they read for longer, especially with many keys.

Operators of the same task may call functions of the program, which may be slow. In front of them
(`chained`), a `BundleLimit` decides.
"""

from __future__ import annotations

from firesteel.common.units import KIB, MIB

TARGET_S = 0.05
AGGREGATED_S = 0.1
MOST_S = 0.25
LEAST_S = 0.001
MOST_BYTES = 16 * MIB
LEAST_BYTES = 256 * KIB
AGGREGATED_BYTES = 2 * MIB  # at least: each run of an aggregate costs milliseconds
MOST_ROWS = 65_536
FIRST_ROWS = 16
_FIRST_CHAINED_BYTES = 4 * KIB
_LEAST_CHAINED_S = 1e-5
_FLUSH_SHARE = 4  # reading takes at least this many times as long as emitting, up to MOST_S
_FIXED_SHARE = 4  # a bundle takes at least this many times as long as an empty one would
_GROWTH = 8
_APART = 1.5  # sizes whose times show what an empty bundle would take
_TRIES = 16  # bundles until a larger one is tried
_TRIED = 4  # times as large


class BundleLimit:
    """The size of bundles: small at first, then such that each takes `target_s`.

    A bundle takes a fixed time, as for a call of a function per batch, and a time in proportion to
    its size. If the fixed time is long, small bundles would only make the job slow.
    """

    def __init__(
        self, *, first: float, least: float, most: float, target_s: float = TARGET_S
    ) -> None:
        self.size = first
        self._least = least
        self._most = most
        self._target_s = target_s
        self._fixed_s = 0.0
        self._compared: tuple[float, float] | None = None  # a bundle's size, and its time
        self._bundles = 0

    def took(self, busy_s: float, size: float) -> None:
        """Adjusts to the time that a bundle of this size took, including downstream operators and
        excluding waits for consumers.
        """
        if size <= 0:
            return
        self._compare(busy_s, size)
        target_s = max(self._target_s, _FIXED_SHARE * self._fixed_s)
        wanted = size * (target_s - self._fixed_s) / max(busy_s - self._fixed_s, 1e-9)
        if busy_s <= target_s:
            wanted = max(wanted, self.size)
        self._bundles += 1
        if self._bundles % _TRIES == 0 and busy_s <= _FIXED_SHARE * self._target_s:
            wanted = max(wanted, _TRIED * size)  # times of about the same sizes show little
        self.size = min(self._most, max(self._least, min(wanted, _GROWTH * self.size)))

    def _compare(self, busy_s: float, size: float) -> None:
        if self._compared is None:
            self._compared = size, busy_s
            return
        (small, small_s), (large, large_s) = sorted((self._compared, (size, busy_s)))
        if large >= _APART * small:
            fixed_s = (small_s * large - large_s * small) / (large - small)
            self._fixed_s = min(max(0.0, fixed_s), small_s, large_s)
            self._compared = size, busy_s


class BundleTime:
    """How long a source reads, in seconds."""

    def __init__(self, *, aggregated: bool, chained: bool = False) -> None:
        self._aggregated = aggregated
        self._limit: BundleLimit | None = None
        self.read_s = AGGREGATED_S if aggregated else TARGET_S
        if chained and not aggregated:
            self._limit = BundleLimit(first=LEAST_S, least=_LEAST_CHAINED_S, most=TARGET_S)
            self.read_s = self._limit.size

    def took(self, busy_s: float) -> None:
        """Adjusts to the time that the last bundle took, including downstream operators and
        excluding waits for consumers.
        """
        if self._limit is not None:
            self._limit.took(busy_s, self.read_s)
            self.read_s = self._limit.size
        elif self._aggregated:
            flush_s = max(0.0, busy_s - self.read_s)
            self.read_s = min(MOST_S, max(AGGREGATED_S, _FLUSH_SHARE * flush_s))
        else:
            factor = min(2.0, TARGET_S / max(busy_s, 1e-9))
            self.read_s = min(TARGET_S, max(LEAST_S, self.read_s * factor))


class BundleSize:
    """The limit in bytes, for readers that read a number of bytes of columns at a time."""

    def __init__(self, *, aggregated: bool, chained: bool = False) -> None:
        self._target_s = MOST_S if aggregated else TARGET_S
        self._least_bytes = min(MOST_BYTES, AGGREGATED_BYTES if aggregated else LEAST_BYTES)
        self._limit: BundleLimit | None = None
        self.limit_bytes = MOST_BYTES if aggregated else MOST_BYTES // 4
        if chained and not aggregated:
            first = min(_FIRST_CHAINED_BYTES, MOST_BYTES)
            self._limit = BundleLimit(first=first, least=1, most=MOST_BYTES)
            self.limit_bytes = first

    def took(self, busy_s: float, size_bytes: int) -> None:
        """Adjusts to the time that the last bundle took, as for `BundleTime`, and to its size."""
        if self._limit is not None:
            self._limit.took(busy_s, size_bytes)
            self.limit_bytes = int(self._limit.size)
            return
        wanted = size_bytes * self._target_s / max(busy_s, 1e-9)
        wanted = min(wanted, 2 * self.limit_bytes)
        self.limit_bytes = int(min(MOST_BYTES, max(self._least_bytes, wanted)))


def row_limit(*, chained: bool) -> BundleLimit | None:
    """Returns the limit in rows, for rows that are there already; None: MOST_ROWS."""
    return BundleLimit(first=FIRST_ROWS, least=1, most=MOST_ROWS) if chained else None
