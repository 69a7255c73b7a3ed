"""Timers of a task, in event time and in processing time (spec 000).

Each operator has an `OperatorTimers`; a task has one `TaskTimers` over them. There is no timer
thread: event-time timers fire when the operator's watermark advances, processing-time timers when
the task's loop looks at the clock (it sleeps no longer than until the next one). So a timer never
runs concurrently with the rest of its task, and "await the running timers" holds by construction.

    RUNNING ──quiesce──▶ QUIESCED ──shut_down──▶ SHUT_DOWN
       └───────────────shut_down──────────────────▲

QUIESCED: pending timers are cleared and new ones dropped, so that `finish` cannot start anything
new.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator
from enum import Enum
from typing import Any, NamedTuple, Protocol

from firesteel.elements import MIN_TIMESTAMP_US


class TimerServiceState(Enum):
    RUNNING = 0
    QUIESCED = 1
    SHUT_DOWN = 2


_S = TimerServiceState
TRANSITIONS: dict[TimerServiceState, frozenset[TimerServiceState]] = {
    # quiesced when all input is processed; shut down when cancelled or failed
    _S.RUNNING: frozenset({_S.QUIESCED, _S.SHUT_DOWN}),
    # operators are closed, or it failed after all
    _S.QUIESCED: frozenset({_S.SHUT_DOWN}),
    _S.SHUT_DOWN: frozenset(),
}


class Timer(NamedTuple):
    """`timestamp` is in microseconds (event time) or milliseconds (processing time)."""

    timestamp: int
    key: Any
    namespace: Any


class Timers(Protocol):
    """Timers of one time domain, each once, in the order of time. Those with a key are part of
    keyed state, and kept by its backend.
    """

    def __contains__(self, timer: Timer) -> bool: ...

    def add(self, timer: Timer) -> None: ...

    def remove(self, timer: Timer) -> None: ...

    def next_timestamp(self) -> int | None: ...

    def pop_due(self, now: int) -> Timer | None:
        """Removes and returns the first timer with timestamp <= now."""

    def clear(self) -> None: ...


class TimerQueue:
    """All in memory, each once, ordered by time and, for equal times, by registration (pure)."""

    __slots__ = ("_count", "_heap", "_live")

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, Timer]] = []
        self._live: dict[Timer, int] = {}  # deleted timers stay in the heap until their time comes
        self._count = 0

    def __len__(self) -> int:
        return len(self._live)

    def __contains__(self, timer: Timer) -> bool:
        return timer in self._live

    def add(self, timer: Timer) -> None:
        if timer not in self._live:
            self._count += 1
            self._live[timer] = self._count
            heapq.heappush(self._heap, (timer.timestamp, self._count, timer))

    def remove(self, timer: Timer) -> None:
        self._live.pop(timer, None)

    def next_timestamp(self) -> int | None:
        while self._heap and self._live.get(self._heap[0][2]) != self._heap[0][1]:
            heapq.heappop(self._heap)
        return self._heap[0][0] if self._heap else None

    def pop_due(self, now: int) -> Timer | None:
        due = self.next_timestamp()
        if due is None or due > now:
            return None
        timer = heapq.heappop(self._heap)[2]
        del self._live[timer]
        return timer

    def clear(self) -> None:
        self._heap.clear()
        self._live.clear()

    def pending(self) -> dict[Timer, int]:
        """A copy of all pending timers, with numbers in the order of which equal times fire;
        `add` in that order restores them.
        """
        return self._live.copy()


class TaskTimers:
    """The timer service of a task; it drives those of its operators."""

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
        """Fires due timers, operator by operator. One registered meanwhile waits for the next
        call.
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
    """The `firesteel.operator.TimerService` of one operator."""

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
        self._firing_ms: int | None = None  # processing time, while timers up to it fire
        self._again: dict[Timer, None] = {}  # those for the past that they have registered

    def keep_in(self, event_time: Timers, processing_time: Timers) -> None:
        """The backend's, which may have some of an earlier attempt."""
        assert self.event_time.next_timestamp() is self.processing_time.next_timestamp() is None
        self.event_time, self.processing_time = event_time, processing_time
        self._wake(processing_time.next_timestamp())

    def stop(self, state: TimerServiceState) -> None:
        self._again.clear()
        if state is TimerServiceState.QUIESCED:
            self.event_time.clear()
            self.processing_time.clear()
        else:  # the backend's are no more
            self.event_time, self.processing_time = TimerQueue(), TimerQueue()

    @property
    def current_watermark_us(self) -> int:
        return self._watermark_us

    def register_event_time(
        self, timestamp_us: int, key: Any = None, namespace: Any = None
    ) -> None:
        if self._task.state is TimerServiceState.RUNNING:
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
        """Before the operator opens: event time had advanced, and nothing fires."""
        self._watermark_us = timestamp_us

    def advance_watermark(self, timestamp_us: int) -> None:
        """Event time advances: fires every timer up to it, those too that a firing timer
        registers.
        """
        self._watermark_us = timestamp_us
        due_us = self.event_time.next_timestamp()
        if due_us is not None and due_us <= timestamp_us:
            self._on_event_times(self._due(timestamp_us))

    def _due(self, timestamp_us: int) -> Iterator[Timer]:
        while (timer := self.event_time.pop_due(timestamp_us)) is not None:
            yield timer

    def fire_processing_time(self, now_ms: int) -> None:
        """Those too that firing timers register for the past wait for the next call: one that
        registers itself must not stop the task's loop.
        """
        self._firing_ms = now_ms
        while (timer := self.processing_time.pop_due(now_ms)) is not None:
            self._on_processing_time(timer.timestamp, timer.key, timer.namespace)
        self._firing_ms = None
        again, self._again = self._again, {}
        for timer in again:
            self.processing_time.add(timer)
