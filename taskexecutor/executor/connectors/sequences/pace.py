"""Limits how many rows a rate-limited source may emit, and when. Pure: time is an argument, in
seconds.
"""

from __future__ import annotations

INTERVAL_S = 0.01  # between groups of rows: low latency without a busy loop
MAX_BEHIND_S = 1.0  # longer delays, caused by back-pressure, are not caught up


class Pace:
    def __init__(self, rows_per_s: float, now: float) -> None:
        self._rows_per_s = rows_per_s
        self._begin = now
        self._emitted = 0
        self._not_before = now

    def due(self, now: float) -> int:
        """Returns how many rows may be emitted now."""
        if now < self._not_before:
            return 0
        due = int((now - self._begin) * self._rows_per_s) - self._emitted
        most = max(1, int(MAX_BEHIND_S * self._rows_per_s))
        if due > most:
            self._begin, self._emitted, due = now - most / self._rows_per_s, 0, most
        return due

    def emitted(self, rows: int, now: float) -> None:
        self._emitted += rows
        if self.due(now) < 1:  # with more due, it continues immediately
            self._not_before = now + INTERVAL_S

    def wait_s(self, now: float) -> float:
        """Returns how long until rows are due."""
        next_row = self._begin + (self._emitted + 1) / self._rows_per_s
        return (
            max(0.0, self._not_before - now, next_row - now) + 1e-4
        )  # the clock must have passed it
