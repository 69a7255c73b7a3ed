"""Triggers decide when windows emit their results: `window(...).trigger(...)`.

Names and contract are those of `pyflink.datastream.window`. Times are in milliseconds since the
epoch.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Any, Self

from firesteel.durations import Duration, duration_us
from firesteel.errors import InvalidProgram

MAX_TIMESTAMP_MS = 2**63 - 1

__all__ = [
    "ContinuousEventTimeTrigger",
    "ContinuousProcessingTimeTrigger",
    "CountTrigger",
    "EventTimeTrigger",
    "GlobalWindow",
    "NeverTrigger",
    "ProcessingTimeTrigger",
    "PurgingTrigger",
    "TimeWindow",
    "Trigger",
    "TriggerContext",
    "TriggerResult",
    "TriggerState",
]


class TriggerResult(Enum):
    """What a window does: (whether it emits its results, whether it drops its records).

    A window without records emits nothing.
    """

    CONTINUE = (False, False)
    FIRE = (True, False)
    PURGE = (False, True)
    FIRE_AND_PURGE = (True, True)

    def is_fire(self) -> bool:
        """Returns whether the window emits its results."""
        return self.value[0]

    def is_purge(self) -> bool:
        """Returns whether the window drops its records."""
        return self.value[1]


@dataclass(frozen=True, slots=True)
class TimeWindow:
    """A window from `start` (inclusive) to `end` (exclusive), in milliseconds since the epoch.

    `is_event_time` is False for windows of processing time.
    """

    start: int
    end: int
    is_event_time: bool = True

    def max_timestamp(self) -> int:
        """Returns the last millisecond of the window."""
        return self.end - 1


@dataclass(frozen=True, slots=True)
class GlobalWindow:
    """The only window of a key, which never ends."""

    is_event_time: bool = False

    def max_timestamp(self) -> int:
        """Returns the largest possible time."""
        return MAX_TIMESTAMP_MS


class TriggerState(ABC):
    """Holds a value of one key and window, which is part of checkpoints."""

    @abstractmethod
    def value(self) -> Any:
        """Returns the value, or None if there is none."""

    @abstractmethod
    def update(self, value: Any) -> None:
        """Sets the value, which must be picklable."""

    @abstractmethod
    def clear(self) -> None:
        """Removes the value."""


class TriggerContext(ABC):
    """Provides the timers and the state of a trigger, for one key and window."""

    @abstractmethod
    def get_current_processing_time(self) -> int:
        """Returns the machine's clock, in milliseconds since the epoch."""

    @abstractmethod
    def get_current_watermark(self) -> int:
        """Returns the last millisecond of event time that is complete."""

    @abstractmethod
    def register_processing_time_timer(self, time: int) -> None:
        """Calls `on_processing_time` once the clock reaches `time`."""

    @abstractmethod
    def register_event_time_timer(self, time: int) -> None:
        """Calls `on_event_time` once the watermark has passed `time`."""

    @abstractmethod
    def delete_processing_time_timer(self, time: int) -> None:
        """Deletes the timer, if it exists."""

    @abstractmethod
    def delete_event_time_timer(self, time: int) -> None:
        """Deletes the timer, if it exists."""

    @abstractmethod
    def get_partitioned_state(self, name: Any) -> TriggerState:
        """Returns the state of this name, or of a state descriptor's name."""

    @abstractmethod
    def merge_partitioned_state(self, name: Any, reduce: Callable[[Any, Any], Any]) -> None:
        """Sets the state of the merged window to the states of its windows, reduced by
        `reduce(one, other)`. Call it in `on_merge`.
        """


class Trigger(ABC):
    """Decides when a window emits its results. One object serves all keys and windows, so keep its
    state in `ctx.get_partitioned_state(...)`.

    `element` is the record's Row, and `timestamp` its event time, or None in a stream without event
    time. `window` is a TimeWindow or a GlobalWindow.
    """

    reads_elements = True  # whether `on_element` needs `element`, which is None otherwise

    @abstractmethod
    def on_element(
        self, element: Any, timestamp: int | None, window: Any, ctx: TriggerContext
    ) -> TriggerResult:
        """Called for each record that is added to a window."""

    @abstractmethod
    def on_processing_time(self, time: int, window: Any, ctx: TriggerContext) -> TriggerResult:
        """Called when a timer of processing time is due."""

    @abstractmethod
    def on_event_time(self, time: int, window: Any, ctx: TriggerContext) -> TriggerResult:
        """Called when a timer of event time is due."""

    def can_merge(self) -> bool:
        """Returns whether `on_merge` is implemented, which sessions require."""
        return False

    def on_merge(self, window: Any, ctx: TriggerContext) -> None:
        """Called when sessions have merged into `window`. Their timers are deleted."""
        raise NotImplementedError

    @abstractmethod
    def clear(self, window: Any, ctx: TriggerContext) -> None:
        """Called when a window is over: deletes the trigger's data of it. Its timers and states are
        deleted in any case.
        """


class _BuiltIn(Trigger):
    reads_elements = False

    def on_element(
        self, element: Any, timestamp: int | None, window: Any, ctx: TriggerContext
    ) -> TriggerResult:
        return TriggerResult.CONTINUE

    def on_processing_time(self, time: int, window: Any, ctx: TriggerContext) -> TriggerResult:
        return TriggerResult.CONTINUE

    def on_event_time(self, time: int, window: Any, ctx: TriggerContext) -> TriggerResult:
        return TriggerResult.CONTINUE

    def can_merge(self) -> bool:
        return True

    def on_merge(self, window: Any, ctx: TriggerContext) -> None:
        """Does nothing: there is nothing to merge."""

    def clear(self, window: Any, ctx: TriggerContext) -> None:
        """Does nothing: the window's timers and states are deleted anyway."""


@dataclass(frozen=True)
class NeverTrigger(_BuiltIn):
    """Never fires."""


@dataclass(frozen=True)
class CountTrigger(_BuiltIn):
    """Fires with every `count` records of a key and window. The records stay in the window."""

    count: int

    def __post_init__(self) -> None:
        if not isinstance(self.count, int) or isinstance(self.count, bool) or self.count < 1:
            raise InvalidProgram(
                f"CountTrigger.of({self.count!r}): it takes a number of records, at least 1"
            )

    @classmethod
    def of(cls, count: int) -> CountTrigger:
        """Returns a trigger that fires with every `count` records."""
        return cls(count)

    def on_element(
        self, element: Any, timestamp: int | None, window: Any, ctx: TriggerContext
    ) -> TriggerResult:
        """Counts the record."""
        counted = ctx.get_partitioned_state("count")
        count = (counted.value() or 0) + 1
        if count < self.count:
            counted.update(count)
            return TriggerResult.CONTINUE
        counted.clear()
        return TriggerResult.FIRE

    def on_merge(self, window: Any, ctx: TriggerContext) -> None:
        """Adds the counts."""
        ctx.merge_partitioned_state("count", lambda one, other: one + other)


class _AtEnd(_BuiltIn):
    @classmethod
    def create(cls) -> Self:
        """Returns the trigger."""
        return cls()

    def on_element(
        self, element: Any, timestamp: int | None, window: Any, ctx: TriggerContext
    ) -> TriggerResult:
        """Registers the end of the window."""
        self._register_end(window, ctx)
        return TriggerResult.CONTINUE

    def on_merge(self, window: Any, ctx: TriggerContext) -> None:
        """Registers the end of the merged window."""
        self._register_end(window, ctx)

    @abstractmethod
    def _register_end(self, window: Any, ctx: TriggerContext) -> None: ...


@dataclass(frozen=True)
class EventTimeTrigger(_AtEnd):
    """Fires when the watermark passes the end of the window: the default in event time."""

    def on_event_time(self, time: int, window: Any, ctx: TriggerContext) -> TriggerResult:
        """Fires at the end of the window."""
        return TriggerResult.FIRE if time == window.max_timestamp() else TriggerResult.CONTINUE

    def _register_end(self, window: Any, ctx: TriggerContext) -> None:
        ctx.register_event_time_timer(window.max_timestamp())


@dataclass(frozen=True)
class ProcessingTimeTrigger(_AtEnd):
    """Fires when the clock passes the end of the window: the default in processing time."""

    def on_processing_time(self, time: int, window: Any, ctx: TriggerContext) -> TriggerResult:
        """Fires at the end of the window."""
        return TriggerResult.FIRE

    def _register_end(self, window: Any, ctx: TriggerContext) -> None:
        ctx.register_processing_time_timer(window.max_timestamp())


@dataclass(frozen=True)
class _Continuous(_BuiltIn):
    interval_ms: int

    @classmethod
    def of(cls, interval: Duration) -> Any:
        """Returns a trigger that fires once per `interval`, such as "10 s", counted from the
        epoch.
        """
        interval_us = duration_us(interval, f"{cls.__name__}.of()")
        if interval_us < 1_000 or interval_us % 1_000:
            raise InvalidProgram(
                f"{cls.__name__}.of({interval!r}): it must be at least 1 ms, in whole milliseconds"
            )
        return cls(interval_us // 1_000)

    def _next(self, time: int) -> int:
        """Returns the first multiple of the interval after `time`."""
        return time - time % self.interval_ms + self.interval_ms


class ContinuousEventTimeTrigger(_Continuous):
    """Fires each time the watermark passes a multiple of the interval, starting with the first
    record of the window, and at the end of the window.
    """

    def on_element(
        self, element: Any, timestamp: int | None, window: Any, ctx: TriggerContext
    ) -> TriggerResult:
        """Registers the end of the window and, with the first record, the next firing."""
        assert timestamp is not None
        ctx.register_event_time_timer(window.max_timestamp())
        fires = ctx.get_partitioned_state("fire-time")
        if fires.value() is None:
            self._register(timestamp, window, ctx, fires)
        return TriggerResult.CONTINUE

    def on_event_time(self, time: int, window: Any, ctx: TriggerContext) -> TriggerResult:
        """Fires, and registers the next firing."""
        if time == window.max_timestamp():
            return TriggerResult.FIRE
        fires = ctx.get_partitioned_state("fire-time")
        if fires.value() != time:
            return TriggerResult.CONTINUE
        self._register(time, window, ctx, fires)
        return TriggerResult.FIRE

    def on_merge(self, window: Any, ctx: TriggerContext) -> None:
        """Keeps the earliest firing."""
        ctx.register_event_time_timer(window.max_timestamp())
        ctx.merge_partitioned_state("fire-time", min)
        fires = ctx.get_partitioned_state("fire-time").value()
        if fires is not None:
            ctx.register_event_time_timer(fires)

    def _register(self, time: int, window: Any, ctx: TriggerContext, fires: TriggerState) -> None:
        at = min(self._next(time), window.max_timestamp())
        if ctx.get_current_watermark() == MAX_TIMESTAMP_MS:  # only the end remains
            at = window.max_timestamp()
        fires.update(at)
        ctx.register_event_time_timer(at)


class ContinuousProcessingTimeTrigger(_Continuous):
    """Fires each time the clock passes a multiple of the interval, starting with the first record
    of the window, for early results.

    A window of event time also fires when the watermark passes its end. (Flink's trigger of this
    name omits that last result.)
    """

    def on_element(
        self, element: Any, timestamp: int | None, window: Any, ctx: TriggerContext
    ) -> TriggerResult:
        """Registers the end of the window and, with the first record, the next firing."""
        if window.is_event_time:
            ctx.register_event_time_timer(window.max_timestamp())
        fires = ctx.get_partitioned_state("fire-time")
        if fires.value() is None:
            self._register(ctx.get_current_processing_time(), window, ctx, fires)
        return TriggerResult.CONTINUE

    def on_event_time(self, time: int, window: Any, ctx: TriggerContext) -> TriggerResult:
        """Fires at the end of the window."""
        return TriggerResult.FIRE if time == window.max_timestamp() else TriggerResult.CONTINUE

    def on_processing_time(self, time: int, window: Any, ctx: TriggerContext) -> TriggerResult:
        """Fires, and registers the next firing."""
        fires = ctx.get_partitioned_state("fire-time")
        if fires.value() != time:
            return TriggerResult.CONTINUE
        self._register(time, window, ctx, fires)
        return TriggerResult.FIRE

    def on_merge(self, window: Any, ctx: TriggerContext) -> None:
        """Keeps the earliest firing."""
        if window.is_event_time:
            ctx.register_event_time_timer(window.max_timestamp())
        ctx.merge_partitioned_state("fire-time", min)
        fires = ctx.get_partitioned_state("fire-time").value()
        if fires is not None:
            ctx.register_processing_time_timer(fires)

    def _register(self, time: int, window: Any, ctx: TriggerContext, fires: TriggerState) -> None:
        at = self._next(time)
        if not window.is_event_time:
            at = max(min(at, window.max_timestamp()), time + 1)
        fires.update(at)
        ctx.register_processing_time_timer(at)


@dataclass(frozen=True)
class PurgingTrigger(Trigger):
    """Works like another trigger, but windows drop their records when they fire."""

    nested: Trigger

    def __post_init__(self) -> None:
        if not isinstance(self.nested, Trigger):
            raise InvalidProgram(
                f"PurgingTrigger.of() takes a trigger, not {type(self.nested).__name__}"
                f" {self.nested!r}"
            )

    @classmethod
    def of(cls, nested: Trigger) -> PurgingTrigger:
        """Returns a trigger that purges windows when `nested` fires."""
        return cls(nested)

    @property
    def reads_elements(self) -> bool:  # type: ignore[override]
        """As in the nested trigger."""
        return self.nested.reads_elements

    def on_element(
        self, element: Any, timestamp: int | None, window: Any, ctx: TriggerContext
    ) -> TriggerResult:
        """As in the nested trigger."""
        return _purging(self.nested.on_element(element, timestamp, window, ctx))

    def on_processing_time(self, time: int, window: Any, ctx: TriggerContext) -> TriggerResult:
        """As in the nested trigger."""
        return _purging(self.nested.on_processing_time(time, window, ctx))

    def on_event_time(self, time: int, window: Any, ctx: TriggerContext) -> TriggerResult:
        """As in the nested trigger."""
        return _purging(self.nested.on_event_time(time, window, ctx))

    def can_merge(self) -> bool:
        """As in the nested trigger."""
        return self.nested.can_merge()

    def on_merge(self, window: Any, ctx: TriggerContext) -> None:
        """As in the nested trigger."""
        self.nested.on_merge(window, ctx)

    def clear(self, window: Any, ctx: TriggerContext) -> None:
        """As in the nested trigger."""
        self.nested.clear(window, ctx)


def _purging(result: TriggerResult) -> TriggerResult:
    return TriggerResult.FIRE_AND_PURGE if result.is_fire() else result
