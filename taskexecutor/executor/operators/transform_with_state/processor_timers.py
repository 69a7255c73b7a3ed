"""The timers of a StatefulProcessor."""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from typing import NamedTuple

from pyspark.errors import PySparkValueError

from firesteel.common.checkpoints.key_group_content import (
    EVENT_TIME_TIMERS,
    PROCESSING_TIME_TIMERS,
)
from firesteel.elements import MAX_TIMESTAMP_US
from firesteel.operator import TimerService
from taskexecutor.executor.operators.python_rows.current_key import CurrentKey
from taskexecutor.executor.operators.transform_with_state.grouping import Key
from taskexecutor.executor.state import KeyedState

NONE, PROCESSING_TIME, EVENT_TIME = "none", "processing_time", "event_time"


class Timer(NamedTuple):
    key: Key
    expiry_ms: int


class _Overdue(NamedTuple):
    """Ordered by time, then by registration."""

    expiry_ms: int
    number: int
    key: Key


class ProcessorTimers:
    """Timers of all keys, in milliseconds.

    The set of a key's timers is keyed state, so it is part of snapshots and can be listed; the
    task's timer service holds the same timers in the order of time.
    """

    ENTRY = "timers"

    def __init__(
        self, time_mode: str, current: CurrentKey, backend: KeyedState, service: TimerService
    ) -> None:
        self._time_mode = time_mode
        self._current = current
        self._backend = backend
        self._service = service
        kind = EVENT_TIME_TIMERS if time_mode == EVENT_TIME else PROCESSING_TIME_TIMERS
        # Whether the backend restored the ordered timers: it has either all of them or none.
        self._scheduled = backend.timers(kind, saved=False).next_timestamp() is not None
        # Event-time timers registered for a past time: they fire after the batch, or at the next
        # watermark. A timer that a firing timer registers fires right after it if it is for a later
        # time, so that a chain of timers catches up. Otherwise it is deferred to the next occasion,
        # because such timers could fire forever.
        self._overdue: list[_Overdue] = []  # a heap
        self._deferred: list[_Overdue] = []
        self._registered = 0
        self._firing_ms: int | None = None
        self._advancing = False  # the timer service is firing, and accepts new timers

    def restore(self) -> None:
        if self._scheduled:
            return
        for entry in self._backend.entries(self.ENTRY):
            for expiry_ms in sorted(entry.value):
                self._add(entry.key, expiry_ms)

    def before_snapshot(self) -> None:
        """Schedules overdue timers, so that a restore finds all timers in the order of time."""
        for timer in (*self._overdue, *self._deferred):
            self._schedule(timer.key, timer.expiry_ms)

    def register(self, expiry_ms: int) -> None:
        key = self._key()
        if self._time_mode == EVENT_TIME and self._service.current_watermark_us >= MAX_TIMESTAMP_US:
            return  # event time has ended
        timers = self._backend.owned(self.ENTRY, key, set)
        if timers is None:
            self._backend.put(self.ENTRY, key, {expiry_ms})
        elif expiry_ms in timers:
            return
        else:
            timers.add(expiry_ms)
        self._add(key, expiry_ms)

    def _add(self, key: Key, expiry_ms: int) -> None:
        if self._time_mode == EVENT_TIME and expiry_ms * 1000 <= self._service.current_watermark_us:
            self._register_overdue(key, expiry_ms)
        else:
            self._schedule(key, expiry_ms)

    def _register_overdue(self, key: Key, expiry_ms: int) -> None:
        self._registered += 1
        timer = _Overdue(expiry_ms, self._registered, key)
        if self._firing_ms is not None and expiry_ms <= self._firing_ms:
            self._deferred.append(timer)
        elif self._advancing:
            self._schedule(key, expiry_ms)
        else:
            heapq.heappush(self._overdue, timer)

    def delete(self, expiry_ms: int) -> None:
        key = self._key()
        self.forget(key, expiry_ms)
        if self._time_mode == EVENT_TIME:
            self._service.delete_event_time(_us(expiry_ms), key)
        else:
            self._service.delete_processing_time(expiry_ms, key)

    def pending(self) -> Iterator[int]:
        """Yields the times of the current key's timers, in order."""
        return iter(sorted(self._backend.get(self.ENTRY, self._key()) or ()))

    def is_pending(self, key: Key, expiry_ms: int) -> bool:
        return expiry_ms in (self._backend.get(self.ENTRY, key) or ())

    def forget(self, key: Key, expiry_ms: int) -> None:
        """Removes a timer that has fired or was deleted."""
        timers = self._backend.owned(self.ENTRY, key, set)
        if timers is not None:
            timers.discard(expiry_ms)
            if not timers:
                self._backend.remove(self.ENTRY, key)

    def begin_firing(self, expiry_ms: int, *, advancing: bool) -> None:
        self._firing_ms, self._advancing = expiry_ms, advancing

    def end_firing(self, key: Key, expiry_ms: int) -> None:
        """Removes a timer after it has fired. As in PySpark, until then it is listed, and cannot be
        registered again.
        """
        self._firing_ms, self._advancing = None, False
        self.forget(key, expiry_ms)

    def next_overdue(self) -> Timer | None:
        """Returns the next overdue timer; None if the rest is deferred to the next occasion."""
        while self._overdue:
            overdue = heapq.heappop(self._overdue)
            if self.is_pending(overdue.key, overdue.expiry_ms):
                return Timer(overdue.key, overdue.expiry_ms)
        self._overdue, self._deferred = sorted(self._deferred), []
        return None

    def _schedule(self, key: Key, expiry_ms: int) -> None:
        if self._time_mode == EVENT_TIME:
            self._service.register_event_time(_us(expiry_ms), key)
        else:
            self._service.register_processing_time(expiry_ms, key)

    def _key(self) -> Key:
        if self._time_mode == NONE:
            raise PySparkValueError(
                errorClass="UNSUPPORTED_OPERATION",
                messageParameters={"operation": "Timers with TimeMode.None"},
            )
        return self._current.of("a timer")


def _us(time_ms: int) -> int:
    return min(time_ms * 1000, MAX_TIMESTAMP_US)
