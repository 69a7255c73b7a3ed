"""Decides whether a failed job restarts, and after which delay (restart-strategy.type).

A strategy decides once per failure of a job that had its slots: waiting for slots uses no attempt
(invariant 21). Its counters are its `history`, which the job's next JobMaster continues. Times are
in seconds since 1970."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol, TypeAlias

from firesteel.errors import ErrorInfo


@dataclass(frozen=True, slots=True, kw_only=True)
class RestartHistory:
    """The counters of strategies; each strategy uses some of them."""

    used: int = 0  # attempts, since the delay was last reset
    restarts_at: float | None = None  # when the last restart was due
    failed_at: tuple[float, ...] = ()  # the most recent failures that the strategy needs


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """Decides on a job whose tasks are being ended because of a failure, or to be moved
    elsewhere.
    """

    error: ErrorInfo | None  # the last failure
    delay_s: float | None  # until it restarts; None: it ends FAILED


class RestartStrategy(Protocol):
    history: RestartHistory

    def delay_s(self, now: float) -> float | None:
        """Returns the seconds to wait before restarting a job that failed at `now`, or None for no
        restart. Uses up an attempt.
        """
        ...


class NoRestart:
    history = RestartHistory()

    def delay_s(self, now: float) -> float | None:
        return None


class FixedDelayRestart:
    """Allows a number of restarts, with the same delay before each."""

    def __init__(self, settings: FixedDelay, history: RestartHistory) -> None:
        self._settings = settings
        self.history = history

    def delay_s(self, now: float) -> float | None:
        used = self.history.used
        if used >= self._settings.attempts:
            return None
        self.history = replace(self.history, used=used + 1)
        return self._settings.delay_s


@dataclass(frozen=True, slots=True, kw_only=True)
class ExponentialDelay:
    """Defaults are those of firesteel.common.config.options."""

    initial_s: float = 1.0
    max_s: float = 60.0
    multiplier: float = 1.5
    reset_after_s: float = 3600.0
    jitter: float = 0.1  # a delay varies by up to this fraction
    attempts: int | None = None  # before the delay is reset; None: unlimited


class ExponentialDelayRestart:
    """Increases each delay until the job has run long enough without a failure: then the delay and
    the number of attempts are reset.
    """

    def __init__(
        self, settings: ExponentialDelay, uniform: Callable[[], float], history: RestartHistory
    ) -> None:
        """`uniform` returns random numbers from 0 to 1."""
        self._settings = settings
        self._uniform = uniform
        self.history = history

    def delay_s(self, now: float) -> float | None:
        settings, used, restarts_at = self._settings, self.history.used, self.history.restarts_at
        if restarts_at is not None and now - restarts_at >= settings.reset_after_s:
            used = 0
        if settings.attempts is not None and used >= settings.attempts:
            return None
        base_s = self._base_s(used)
        spread_s = base_s * settings.jitter * (2 * self._uniform() - 1)
        delay_s = min(settings.max_s, max(settings.initial_s, base_s + spread_s))
        self.history = replace(self.history, used=used + 1, restarts_at=now + delay_s)
        return delay_s

    def _base_s(self, used: int) -> float:
        settings = self._settings
        base_s = settings.initial_s
        for _ in range(used):
            if base_s >= settings.max_s:
                break
            base_s *= settings.multiplier
        return min(settings.max_s, base_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class FailureRate:
    """Defaults are those of firesteel.common.config.options."""

    max_failures: int = 1
    interval_s: float = 60.0
    delay_s: float = 1.0


class FailureRateRestart:
    """Allows restarts as long as the number of failures within an interval is limited."""

    def __init__(self, settings: FailureRate, history: RestartHistory) -> None:
        self._settings = settings
        self.history = history

    def delay_s(self, now: float) -> float | None:
        settings = self._settings
        failed_at = (*self.history.failed_at, now)[-settings.max_failures - 1 :]
        self.history = replace(self.history, failed_at=failed_at)
        full = len(failed_at) > settings.max_failures
        if full and now - failed_at[0] <= settings.interval_s:
            return None
        return settings.delay_s


@dataclass(frozen=True, slots=True, kw_only=True)
class FixedDelay:
    """Defaults are those of firesteel.common.config.options."""

    attempts: int = 1
    delay_s: float = 1.0


# None: a failed job is not restarted.
RestartSettings: TypeAlias = FixedDelay | ExponentialDelay | FailureRate | None


_NONE_SO_FAR = RestartHistory()


def new_strategy(
    settings: RestartSettings,
    uniform: Callable[[], float],
    history: RestartHistory = _NONE_SO_FAR,
) -> RestartStrategy:
    """`uniform` returns random numbers from 0 to 1; `history` comes from earlier JobMasters."""
    match settings:
        case FixedDelay():
            return FixedDelayRestart(settings, history)
        case ExponentialDelay():
            return ExponentialDelayRestart(settings, uniform, history)
        case FailureRate():
            return FailureRateRestart(settings, history)
        case None:
            return NoRestart()
