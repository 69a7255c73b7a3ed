"""Timers of a task, in event time and in processing time (spec 000).

Each operator has an `OperatorTimers`; a task has one `TaskTimers` over them. There is no timer
thread: event-time timers fire when the operator's watermark advances, processing-time timers when
the task's loop reads the clock (it sleeps no longer than until the next timer). Therefore a timer
never runs concurrently with the rest of its task, and "await the running timers" holds by
construction.

    RUNNING ──quiesce──▶ QUIESCED ──shut_down──▶ SHUT_DOWN
       └───────────────shut_down──────────────────▲

QUIESCED: pending timers are cleared and new ones dropped, so that `finish` cannot start new work.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator
from enum import Enum
from typing import Any, NamedTuple, Protocol, TypeAlias

from firesteel.elements import MIN_TIMESTAMP_US


class TimerServiceState(Enum):
    RUNNING = 0
    QUIESCED = 1
    SHUT_DOWN = 2


_S = TimerServiceState
_RUNNING = TimerServiceState.RUNNING  # looked up for each timer
TRANSITIONS: dict[TimerServiceState, frozenset[TimerServiceState]] = {
    # quiesced when all input is processed; shut down when cancelled or failed
    _S.RUNNING: frozenset({_S.QUIESCED, _S.SHUT_DOWN}),
    # operators are closed, or the task failed after quiescing
    _S.QUIESCED: frozenset({_S.SHUT_DOWN}),
    _S.SHUT_DOWN: frozenset(),
}


class Timer(NamedTuple):
    """`timestamp` is in microseconds (event time) or milliseconds (processing time)."""

    timestamp: int
    key: Any
    namespace: Any


_Numbered: TypeAlias = tuple[int, int, Timer]  # timestamp, registration number
_LARGE_PART = 8  # new timers are merged into the sorted list from 1/8 of its length on


class Timers(Protocol):
    """The distinct timers of one time domain, in order of time. Timers with a key are part of keyed
    state and stored by its backend.
    """

    def __contains__(self, timer: Timer) -> bool: ...

    def add(self, timer: Timer) -> None: ...

    def remove(self, timer: Timer) -> None: ...

    def next_timestamp(self) -> int | None: ...

    def pop_due(self, now: int) -> Timer | None:
        """Removes and returns the first timer with timestamp <= now."""

    def due(self, now: int) -> Iterator[Timer]:
        """Yields and removes due timers. Timers may be added and removed in between."""

    def clear(self) -> None: ...


class TimerQueue:
    """Distinct timers in memory, ordered by time and, for equal times, by registration (pure).

    New timers are sorted when some may be due. They arrive in large numbers and mostly in order, so
    that sorting costs a small part of a heap's time. The few that are added while others fire go to
    a heap.
    """

    __slots__ = ("_count", "_heap", "_live", "_new", "_sorted")

    def __init__(self) -> None:
        self._new: list[_Numbered] = []
        self._heap: list[_Numbered] = []
        self._sorted: list[_Numbered] = []  # the first timer is at the end
        # Registration number of each timer. Deleted timers stay in the lists for a while.
        self._live: dict[Timer, int] = {}
        self._count = 0

    def __len__(self) -> int:
        return len(self._live)

    def __contains__(self, timer: Timer) -> bool:
        return timer in self._live

    def add(self, timer: Timer) -> None:
        self._count = count = self._count + 1
        if self._live.setdefault(timer, count) == count:
            self._new.append((timer[0], count, timer))

    def remove(self, timer: Timer) -> None:
        self._live.pop(timer, None)

    def next_timestamp(self) -> int | None:
        first = self._first()
        return None if first is None else first[0]

    def pop_due(self, now: int) -> Timer | None:
        return next(self.due(now), None)

    def due(self, now: int) -> Iterator[Timer]:
        live, ordered = self._live, self._sorted
        while (first := self._first()) is not None and first[0] <= now:
            if ordered and ordered[-1] is first:
                ordered.pop()
            else:
                heapq.heappop(self._heap)
            del live[first[2]]
            yield first[2]
            while ordered and not self._new and not self._heap and ordered[-1][0] <= now:
                _, number, timer = ordered.pop()
                now_live = live.pop(timer, 0)
                if now_live == number:
                    yield timer
                elif now_live:  # deleted, and registered again
                    live[timer] = now_live

    def clear(self) -> None:
        for each in (self._new, self._heap, self._sorted, self._live):
            each.clear()

    def pending(self) -> dict[Timer, int]:
        """Returns a copy of all pending timers, with numbers that order equal times; `add` in that
        order restores them.
        """
        return self._live.copy()

    def _first(self) -> _Numbered | None:
        """Returns the first timer that was not deleted."""
        if self._new:
            self._settle()
        heap, ordered = self._heap, self._sorted
        while heap or ordered:
            in_heap = not ordered or (bool(heap) and heap[0] < ordered[-1])
            first = heap[0] if in_heap else ordered[-1]
            if self._live.get(first[2]) == first[1]:
                return first
            if in_heap:
                heapq.heappop(heap)
            else:
                ordered.pop()
        return None

    def _settle(self) -> None:
        """Sorts new timers if they are a large part of all; otherwise adds them to the heap."""
        new, heap, ordered = self._new, self._heap, self._sorted
        if len(new) * _LARGE_PART < len(ordered):
            for numbered in new:
                heapq.heappush(heap, numbered)
        else:
            ordered += heap
            ordered += new
            heap.clear()
            if len(ordered) > 2 * len(self._live):
                live = self._live
                ordered[:] = [each for each in ordered if live.get(each[2]) == each[1]]
            ordered.sort(reverse=True)
        new.clear()


class TaskTimers:
    """The timer service of a task, which drives those of its operators."""

    __slots__ = ("_operators", "next_due_ms", "state")

    def __init__(self) -> None:
        self.state = TimerServiceState.RUNNING
        self.next_due_ms: int | None = None  # no processing-time timer is due before this
        self._operators: list[OperatorTimers] = []

    def for_operator(
        self,
        on_event_times: Callable[[Iterator[Timer]], None],
        on_processing_time: Callable[[int, Any, Any], None],
    ) -> OperatorTimers:
        timers = OperatorTimers(self, on_event_times, on_processing_time)
        self._operators.append(timers)
        return timers

    def fire_processing_time(self, now_ms: int) -> None:
        """Fires due timers, operator by operator. A timer registered during the call waits for the
        next one.
        """
        if self.next_due_ms is None or now_ms < self.next_due_ms:
            return
        self.next_due_ms = None
        for operator in self._operators:
            operator.fire_processing_time(now_ms)
        dues = [
            due
            for operator in self._operators
            if (due := operator.processing_time.next_timestamp()) is not None
        ]
        self.next_due_ms = min(dues, default=None)

    def quiesce(self) -> None:
        if self.state is TimerServiceState.RUNNING:
            self._stop(TimerServiceState.QUIESCED)

    def shut_down(self) -> None:
        if self.state is not TimerServiceState.SHUT_DOWN:
            self._stop(TimerServiceState.SHUT_DOWN)

    def _stop(self, state: TimerServiceState) -> None:
        assert state in TRANSITIONS[self.state], f"timer service: {self.state.name} -> {state.name}"
        self.state = state
        self.next_due_ms = None
        for operator in self._operators:
            operator.stop(state)


class OperatorTimers:
    """Implements `firesteel.operator.TimerService` for one operator."""

    __slots__ = (
        "_again",
        "_firing_ms",
        "_on_event_times",
        "_on_processing_time",
        "_task",
        "_watermark_us",
        "event_time",
        "processing_time",
    )

    def __init__(
        self,
        task: TaskTimers,
        on_event_times: Callable[[Iterator[Timer]], None],
        on_processing_time: Callable[[int, Any, Any], None],
    ) -> None:
        self._task = task
        self._on_event_times = on_event_times
        self._on_processing_time = on_processing_time
        self._watermark_us = MIN_TIMESTAMP_US
        self.event_time: Timers = TimerQueue()
        self.processing_time: Timers = TimerQueue()
        self._firing_ms: int | None = None  # while timers up to this processing time fire
        self._again: dict[Timer, None] = {}  # timers for the past, registered by firing timers

    def keep_in(self, event_time: Timers, processing_time: Timers) -> None:
        """Uses the backend's timers, which may include those of an earlier attempt."""
        assert self.event_time.next_timestamp() is self.processing_time.next_timestamp() is None
        self.event_time, self.processing_time = event_time, processing_time
        self._wake(processing_time.next_timestamp())

    def stop(self, state: TimerServiceState) -> None:
        self._again.clear()
        if state is TimerServiceState.QUIESCED:
            self.event_time.clear()
            self.processing_time.clear()
        else:  # the backend has closed its timers
            self.event_time, self.processing_time = TimerQueue(), TimerQueue()

    @property
    def current_watermark_us(self) -> int:
        return self._watermark_us

    def register_event_time(
        self, timestamp_us: int, key: Any = None, namespace: Any = None
    ) -> None:
        if self._task.state is _RUNNING:
            self.event_time.add(Timer(timestamp_us, key, namespace))

    def delete_event_time(self, timestamp_us: int, key: Any = None, namespace: Any = None) -> None:
        self.event_time.remove(Timer(timestamp_us, key, namespace))

    def register_processing_time(
        self, timestamp_ms: int, key: Any = None, namespace: Any = None
    ) -> None:
        if self._task.state is not TimerServiceState.RUNNING:
            return
        timer = Timer(timestamp_ms, key, namespace)
        firing_ms = self._firing_ms
        if firing_ms is None or timestamp_ms > firing_ms or timer in self.processing_time:
            self.processing_time.add(timer)
        else:
            self._again[timer] = None
        self._wake(timestamp_ms)

    def delete_processing_time(
        self, timestamp_ms: int, key: Any = None, namespace: Any = None
    ) -> None:
        timer = Timer(timestamp_ms, key, namespace)
        self.processing_time.remove(timer)
        self._again.pop(timer, None)

    def _wake(self, timestamp_ms: int | None) -> None:
        due_ms = self._task.next_due_ms
        if timestamp_ms is not None:
            self._task.next_due_ms = timestamp_ms if due_ms is None else min(due_ms, timestamp_ms)

    def restore_watermark(self, timestamp_us: int) -> None:
        """Restores event time before the operator opens, without firing timers."""
        self._watermark_us = timestamp_us

    def advance_watermark(self, timestamp_us: int) -> None:
        """Advances event time and fires every timer up to it, including those that firing timers
        register.
        """
        self._watermark_us = timestamp_us
        due_us = self.event_time.next_timestamp()
        if due_us is not None and due_us <= timestamp_us:
            self._on_event_times(self.event_time.due(timestamp_us))

    def fire_processing_time(self, now_ms: int) -> None:
        """Fires due timers. Timers that firing timers register for the past wait for the next call:
        a timer that re-registers itself must not block the task's loop.
        """
        self._firing_ms = now_ms
        while (timer := self.processing_time.pop_due(now_ms)) is not None:
            self._on_processing_time(timer.timestamp, timer.key, timer.namespace)
        self._firing_ms = None
        again, self._again = self._again, {}
        for timer in again:
            self.processing_time.add(timer)
