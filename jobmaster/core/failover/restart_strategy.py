"""Whether a failed job is restarted, and after how long (restart-strategy.type).

A strategy decides once per failure of a job that had its slots: waiting for slots uses up no
attempt (invariant 21).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, TypeAlias


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


@dataclass(frozen=True, slots=True, kw_only=True)
class ExponentialDelay:
    """Defaults are those of firesteel.common.config.options."""

    initial_s: float = 1.0
    max_s: float = 60.0
    multiplier: float = 1.5
    reset_after_s: float = 3600.0
    jitter: float = 0.1  # a delay is up to this fraction of itself longer or shorter
    attempts: int | None = None  # before the delay is reset; None: without end


class ExponentialDelayRestart:
    """Each delay is longer than the last one, until the job has run long enough without a failure:
    then the next delay is the first one again, and all attempts are left.
    """

    def __init__(self, settings: ExponentialDelay, uniform: Callable[[], float]) -> None:
        """`uniform`: random numbers from 0 to 1."""
        self._settings = settings
        self._uniform = uniform
        self._next_s = settings.initial_s
        self._used = 0
        self._restarts_at: float | None = None  # when the last restart was to begin

    def delay_s(self, now: float) -> float | None:
        settings = self._settings
        if self._restarts_at is not None and now - self._restarts_at >= settings.reset_after_s:
            self._next_s, self._used = settings.initial_s, 0
        if settings.attempts is not None and self._used >= settings.attempts:
            return None
        self._used += 1
        base_s = self._next_s
        self._next_s = min(settings.max_s, base_s * settings.multiplier)
        spread_s = base_s * settings.jitter * (2 * self._uniform() - 1)
        delay_s = min(settings.max_s, max(settings.initial_s, base_s + spread_s))
        self._restarts_at = now + delay_s
        return delay_s


@dataclass(frozen=True, slots=True, kw_only=True)
class FailureRate:
    """Defaults are those of firesteel.common.config.options."""

    max_failures: int = 1
    interval_s: float = 60.0
    delay_s: float = 1.0


class FailureRateRestart:
    """Any number of restarts, as long as no more than so many failures fall into an interval."""

    def __init__(self, settings: FailureRate) -> None:
        self._settings = settings
        self._failed_at: deque[float] = deque(maxlen=settings.max_failures + 1)

    def delay_s(self, now: float) -> float | None:
        settings = self._settings
        self._failed_at.append(now)
        full = len(self._failed_at) > settings.max_failures
        if full and now - self._failed_at[0] <= settings.interval_s:
            return None
        return settings.delay_s


@dataclass(frozen=True, slots=True, kw_only=True)
class FixedDelay:
    """Defaults are those of firesteel.common.config.options."""

    attempts: int = 1
    delay_s: float = 1.0


# None: a failed job is not restarted.
RestartSettings: TypeAlias = FixedDelay | ExponentialDelay | FailureRate | None


def new_strategy(settings: RestartSettings, uniform: Callable[[], float]) -> RestartStrategy:
    """`uniform`: random numbers from 0 to 1."""
    match settings:
        case FixedDelay(attempts=attempts, delay_s=delay_s):
            return FixedDelayRestart(attempts=attempts, delay_s=delay_s)
        case ExponentialDelay():
            return ExponentialDelayRestart(settings, uniform)
        case FailureRate():
            return FailureRateRestart(settings)
        case None:
            return NoRestart()
