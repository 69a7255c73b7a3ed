"""Whether a failed job is started again, and after how long (restart-strategy.type).

A strategy is asked once per failure of a job that had its slots: waiting for slots uses up no
attempt (invariant 21).
"""

from __future__ import annotations

from typing import Protocol


class RestartStrategy(Protocol):
    def delay_s(self, now: float) -> float | None:
        """The job has failed at `now`: seconds to wait before it is started again; None: do not.
        Uses up an attempt.
        """
        ...


class NoRestart:
    def delay_s(self, now: float) -> float | None:
        return None


class FixedDelayRestart:
    """A number of attempts, with the same pause before each."""

    def __init__(self, *, attempts: int, delay_s: float) -> None:
        self._left = attempts
        self._delay_s = delay_s

    def delay_s(self, now: float) -> float | None:
        if self._left <= 0:
            return None
        self._left -= 1
        return self._delay_s
