"""Whether a failed job is restarted, and after how long (restart-strategy.type).

A strategy decides once per failure of a job that had its slots: waiting for slots uses up no
attempt (invariant 21).
"""

from __future__ import annotations

from typing import Protocol


class RestartStrategy(Protocol):
    def delay_s(self, now: float) -> float | None:
        """The job has failed at `now`: the seconds to wait before its restart, None for no restart.
        Uses up an attempt.
        """
        ...


class NoRestart:
    def delay_s(self, now: float) -> float | None:
        return None


class FixedDelayRestart:
    """A number of restarts, with the same delay before each."""

    def __init__(self, *, attempts: int, delay_s: float) -> None:
        self._left = attempts
        self._delay_s = delay_s

    def delay_s(self, now: float) -> float | None:
        if self._left <= 0:
            return None
        self._left -= 1
        return self._delay_s
