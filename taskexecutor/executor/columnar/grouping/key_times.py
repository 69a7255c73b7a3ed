"""The event times at which numbered keys expire."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from firesteel.elements import MAX_TIMESTAMP_US, MIN_TIMESTAMP_US
from firesteel.operator import ColumnMemory
from taskexecutor.executor.columnar.grouping.grouping import Ints
from taskexecutor.executor.numbers import as_numpy

NEVER_US = MAX_TIMESTAMP_US
FEWEST = 65_536  # rebuilding the state is not worth while for fewer expired keys


def instants(times: pa.Array, null_us: int = NEVER_US) -> Ints:
    """Returns the times in microseconds since the epoch."""
    whole = times.cast(pa.timestamp("us", times.type.tz)).cast(pa.int64())
    values: Ints = as_numpy(pc.fill_null(whole, null_us) if whole.null_count else whole)
    return values


class KeyTimes:
    """A key is live until `expire` passes its time, or until it is set again."""

    def __init__(self, memory: ColumnMemory) -> None:
        self._memory = memory
        self._times = np.empty(0, np.int64)  # by key number
        self._count = 0
        self._next_us = NEVER_US  # no live key expires before
        self._until_us = MIN_TIMESTAMP_US
        self.expired = 0

    @property
    def wasteful(self) -> bool:
        """Whether most keys have expired: their state should be rebuilt without them. So each
        key is copied at most once for each key that expires.
        """
        return self.expired > max(FEWEST, self._count - self.expired)

    def live(self, numbers: Ints | slice = slice(None)) -> np.ndarray[Any, np.dtype[np.bool_]]:
        """Returns whether these keys, or all, are live."""
        live: np.ndarray[Any, np.dtype[np.bool_]] = (
            self._times[: self._count][numbers] > self._until_us
        )
        return live

    def of(self, numbers: Ints) -> Ints:
        times: Ints = self._times[numbers]
        return times

    def set(self, numbers: Ints, times_us: Ints) -> None:
        """Sets the times of distinct keys. New ones have the next numbers."""
        if not len(numbers):
            return
        old = numbers[numbers < self._count]
        self.expired -= len(old) - int(np.count_nonzero(self.live(old)))
        self._count = max(self._count, int(numbers.max()) + 1)
        if self._count > len(self._times):
            self._times = self._memory.grown(self._times, self._count)
        self._times[numbers] = times_us
        self.expired += int(np.count_nonzero(times_us <= self._until_us))
        self._next_us = min(self._next_us, int(times_us.min()))

    def expire(self, until_us: int) -> Ints:
        """Returns the numbers of the keys that expire by this time."""
        if until_us < self._next_us or until_us <= self._until_us:
            self._until_us = max(self._until_us, until_us)
            return np.empty(0, np.int64)
        times = self._times[: self._count]
        later = times > until_us
        found = np.flatnonzero(~later & (times > self._until_us))
        self.expired += len(found)
        self._until_us = until_us
        self._next_us = int(times[later].min()) if later.any() else NEVER_US
        return found
