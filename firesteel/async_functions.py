"""Functions that await other systems, and strategies that retry failed calls: for
`DataStream.map_async`.

Names are those of PyFlink (`pyflink.datastream.functions.AsyncFunction`, `async_retry_strategies`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from firesteel.durations import Duration, duration_us, positive_us
from firesteel.errors import InvalidProgram

if TYPE_CHECKING:
    from pyspark.sql import Row

    from firesteel.operator import Counter, TaskInfo

__all__ = [
    "AsyncContext",
    "AsyncFunction",
    "AsyncRetryStrategy",
    "ExponentialBackoffDelayRetryStrategy",
    "FixedDelayRetryStrategy",
]


class AsyncContext(Protocol):
    """The argument of `AsyncFunction.open`."""

    @property
    def task(self) -> TaskInfo:
        """The task that runs the function."""

    def counter(self, name: str) -> Counter:
        """Returns a counter, exposed as flink_taskmanager_job_task_operator_<name>."""


class AsyncFunction:
    """Calls another system for each row: PyFlink's AsyncFunction, with Rows.

    Each subtask unpickles its own copy. All methods run on the event loop of the subtask, so a
    session that `open` creates, such as an aiohttp.ClientSession, belongs to the loop of the calls.
    `open`, `timeout` and `close` may also be coroutine functions (`async def`).
    """

    def open(self, context: AsyncContext) -> Any:
        """Called once, before any row: connects to the other system."""

    async def async_invoke(self, value: Row) -> Any:
        """Called for each row. Returns one row, as a function of `map` does, or a list of any
        number of rows.
        """
        raise NotImplementedError

    def timeout(self, value: Row) -> Any:
        """Called for a row whose call was cancelled because it took too long. Returns a result as
        `async_invoke` does. The default raises TimeoutError, which fails the job.
        """
        raise TimeoutError

    def close(self) -> Any:
        """Called once, after the last call has ended, also after a failure."""


class AsyncRetryStrategy:
    """Decides whether a call is retried, and when. Use one of the subclasses.

    Attempts count from 1. The timeout of a row covers all its attempts and the delays between them.
    """

    max_attempts: int
    result_predicate: Callable[[Any], bool] | None
    exception_predicate: Callable[[Exception], bool] | None

    def can_retry(self, current_attempts: int) -> bool:
        """Returns whether another attempt may follow this one."""
        return current_attempts <= self.max_attempts

    def delay_s(self, current_attempts: int) -> float:
        """Returns the delay between this attempt and the next one, in seconds."""
        raise NotImplementedError

    def retries_result(self, result: Any) -> bool:
        """Returns whether a result must be replaced by that of another attempt."""
        return self.result_predicate is not None and bool(self.result_predicate(result))

    def retries_exception(self, error: Exception) -> bool:
        """Returns whether the call is retried after this exception. Without predicates: after
        any.
        """
        if self.exception_predicate is None:
            return self.result_predicate is None
        return bool(self.exception_predicate(error))

    def _check(self, *delays: str) -> None:
        """Raises InvalidProgram for invalid arguments. `delays` names the fields that are
        durations.
        """
        name, attempts = type(self).__name__, self.max_attempts
        if not isinstance(attempts, int) or isinstance(attempts, bool) or attempts < 1:
            raise InvalidProgram(
                f"{name}(max_attempts={attempts!r}): specify the number of retries, 1 or more"
            )
        for field in ("result_predicate", "exception_predicate"):
            given = getattr(self, field)
            if given is not None and not callable(given):
                raise InvalidProgram(f"{name}({field}={given!r}): pass a function of one argument")
        for field in delays:
            positive_us(getattr(self, field), f"{field} of {name}")


@dataclass(frozen=True, kw_only=True)
class FixedDelayRetryStrategy(AsyncRetryStrategy):
    """Retries a call up to `max_attempts` times after the first, with a fixed `delay` ("100 ms").

    `exception_predicate` decides which exceptions are retried, `result_predicate` which results.
    Without either, a call is retried after any exception. The outcome of the last attempt counts.
    """

    max_attempts: int
    delay: Duration
    result_predicate: Callable[[Any], bool] | None = None
    exception_predicate: Callable[[Exception], bool] | None = None

    def __post_init__(self) -> None:
        self._check("delay")

    def delay_s(self, current_attempts: int) -> float:
        """Returns the same delay after each attempt."""
        return _seconds(self.delay)


@dataclass(frozen=True, kw_only=True)
class ExponentialBackoffDelayRetryStrategy(AsyncRetryStrategy):
    """Like `FixedDelayRetryStrategy`, with delays that grow from `initial_delay` by the factor
    `multiplier` up to `max_retry_delay`.
    """

    max_attempts: int
    initial_delay: Duration
    max_retry_delay: Duration
    multiplier: float = 2.0
    result_predicate: Callable[[Any], bool] | None = None
    exception_predicate: Callable[[Exception], bool] | None = None

    def __post_init__(self) -> None:
        self._check("initial_delay", "max_retry_delay")
        factor = self.multiplier
        if not isinstance(factor, (int, float)) or isinstance(factor, bool) or not factor >= 1:
            raise InvalidProgram(
                f"ExponentialBackoffDelayRetryStrategy(multiplier={factor!r}): specify a number of"
                " at least 1"
            )

    def delay_s(self, current_attempts: int) -> float:
        """Returns a delay that grows with each attempt."""
        initial_s, most_s = _seconds(self.initial_delay), _seconds(self.max_retry_delay)
        try:
            return float(min(most_s, initial_s * self.multiplier ** (current_attempts - 1)))
        except OverflowError:
            return most_s


def _seconds(delay: Duration) -> float:
    return duration_us(delay, "delay") / 1e6
