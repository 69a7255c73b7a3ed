"""Functions that wait for other systems, and how failed calls are repeated: for
`DataStream.map_async`.

Names are PyFlink's (`pyflink.datastream.functions.AsyncFunction`, `async_retry_strategies`).
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
        """The task that the function runs in."""

    def counter(self, name: str) -> Counter:
        """A counter, exposed as flink_taskmanager_job_task_operator_<name>."""


class AsyncFunction:
    """Calls another system for each row: PyFlink's AsyncFunction, with Rows.

    Each subtask unpickles its own copy. All methods run on the event loop of the subtask, so a
    session that `open` creates, such as an aiohttp.ClientSession, belongs to the loop of the calls.
    `open`, `timeout` and `close` may also be coroutine functions (`async def`).
    """

    def open(self, context: AsyncContext) -> Any:
        """Called once, before any row: connects to the other system."""

    async def async_invoke(self, value: Row) -> Any:
        """Called for each row: returns one row, as a function of `map` does, or a list of any
        number of rows.
        """
        raise NotImplementedError

    def timeout(self, value: Row) -> Any:
        """Called for a row whose call has been cancelled because it took too long: returns what
        `async_invoke` would return. The default raises TimeoutError, which fails the job.
        """
        raise TimeoutError

    def close(self) -> Any:
        """Called once, after the last call has ended, also after a failure."""


class AsyncRetryStrategy:
    """Decides whether a call is repeated, and when. Use one of the subclasses.

    Attempts count from 1. All attempts of a row, and the delays between them, share its timeout.
    """

    max_attempts: int
    result_predicate: Callable[[Any], bool] | None
    exception_predicate: Callable[[Exception], bool] | None

    def can_retry(self, current_attempts: int) -> bool:
        """Whether another attempt may follow this one."""
        return current_attempts <= self.max_attempts

    def delay_s(self, current_attempts: int) -> float:
        """How many seconds pass between this attempt and the next one."""
        raise NotImplementedError

    def retries_result(self, result: Any) -> bool:
        """Whether what the function returned is to be replaced by another attempt's result."""
        return self.result_predicate is not None and bool(self.result_predicate(result))

    def retries_exception(self, error: Exception) -> bool:
        """Whether the call is repeated after this exception. Without predicates: after any."""
        if self.exception_predicate is None:
            return self.result_predicate is None
        return bool(self.exception_predicate(error))

    def _check(self, *delays: str) -> None:
        """Raises InvalidProgram for bad arguments. `delays`: the fields that are durations."""
        name, attempts = type(self).__name__, self.max_attempts
        if not isinstance(attempts, int) or isinstance(attempts, bool) or attempts < 1:
            raise InvalidProgram(
                f"{name}(max_attempts={attempts!r}): give the number of retries, 1 or more"
            )
        for field in ("result_predicate", "exception_predicate"):
            given = getattr(self, field)
            if given is not None and not callable(given):
                raise InvalidProgram(f"{name}({field}={given!r}): give a function of one argument")
        for field in delays:
            positive_us(getattr(self, field), f"{field} of {name}")


@dataclass(frozen=True, kw_only=True)
class FixedDelayRetryStrategy(AsyncRetryStrategy):
    """Repeats a call up to `max_attempts` times after the first, `delay` apart ("100 ms").

    `exception_predicate` decides which exceptions are worth a retry, `result_predicate` which
    results. Without either, a call is repeated after any exception. What the last attempt returns
    or raises counts.
    """

    max_attempts: int
    delay: Duration
    result_predicate: Callable[[Any], bool] | None = None
    exception_predicate: Callable[[Exception], bool] | None = None

    def __post_init__(self) -> None:
        self._check("delay")

    def delay_s(self, current_attempts: int) -> float:
        """The same after each attempt."""
        return _seconds(self.delay)


@dataclass(frozen=True, kw_only=True)
class ExponentialBackoffDelayRetryStrategy(AsyncRetryStrategy):
    """As `FixedDelayRetryStrategy`, with delays that grow from `initial_delay` by the factor
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
                f"ExponentialBackoffDelayRetryStrategy(multiplier={factor!r}): give a number of at"
                " least 1"
            )

    def delay_s(self, current_attempts: int) -> float:
        """Longer after each attempt."""
        initial_s, most_s = _seconds(self.initial_delay), _seconds(self.max_retry_delay)
        try:
            return float(min(most_s, initial_s * self.multiplier ** (current_attempts - 1)))
        except OverflowError:
            return most_s


def _seconds(delay: Duration) -> float:
    return duration_us(delay, "delay") / 1e6
