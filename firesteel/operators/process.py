"""Process functions of the program, with states and timers per key."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, Self

from firesteel.broadcast_functions import KeyedBroadcastProcessFunction
from firesteel.functions import CoProcessFunction, KeyedProcessFunction
from firesteel.operators.code_names import (
    IN_EVENT_TIME,
    IN_PROCESSING_TIME,
    names_in,
    reads_watermark,
)
from firesteel.operators.spec import NeededTime, Spec


@dataclass(frozen=True, slots=True, kw_only=True)
class RowTimeSpec:
    """The event-time column of an input, and the offset to add to its values: -1 for the
    (exclusive) end of a window.
    """

    column: str
    shift_us: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessSpec(Spec):
    """Calls `function`, a firesteel.functions.ProcessFunction or, with key columns, a
    KeyedProcessFunction.
    """

    function: Any
    key_columns: tuple[str, ...] | None
    schema: Any
    side_outputs: dict[str, Any] = field(default_factory=dict)  # tag -> schema
    time: RowTimeSpec | None = None

    @property
    def sees_each_update(self) -> bool:
        return self.key_columns is not None

    @property
    def sets_event_timers(self) -> bool:
        return self.key_columns is not None and _may_set_event_timers(self.function)

    @property
    def needed_times(self) -> list[NeededTime]:
        keyed = self.key_columns is not None
        return [NeededTime(0, "")] if keyed and _depends_on_lateness(self.function) else []


@dataclass(frozen=True, slots=True, kw_only=True)
class CoProcessSpec(Spec):
    """Calls `function`, a firesteel.functions.CoProcessFunction, over two keyed inputs."""

    function: Any
    first_key_columns: tuple[str, ...]
    second_key_columns: tuple[str, ...]
    schema: Any
    side_outputs: dict[str, Any] = field(default_factory=dict)  # tag -> schema
    times: tuple[RowTimeSpec | None, RowTimeSpec | None] = (None, None)

    sees_each_update = True

    @property
    def sets_event_timers(self) -> bool:
        return _may_set_event_timers(self.function)

    @property
    def needed_times(self) -> list[NeededTime]:
        late = _depends_on_lateness(self.function)
        return [NeededTime(0, ""), NeededTime(1, "")] if late else []


@dataclass(frozen=True, slots=True, kw_only=True)
class BroadcastProcessSpec(Spec):
    """Calls `function`, a firesteel.BroadcastProcessFunction, over an input and a second one that
    is broadcast; with key columns, a KeyedBroadcastProcessFunction.
    """

    function: Any
    key_columns: tuple[str, ...] | None  # of the first input
    states: tuple[str, ...]  # names of the broadcast states
    schema: Any
    side_outputs: dict[str, Any] = field(default_factory=dict)  # tag -> schema
    broadcast_first: bool = False  # in batch mode: it is read to its end before the first input
    times: tuple[RowTimeSpec | None, RowTimeSpec | None] = (None, None)

    sees_each_update = True

    @property
    def sets_event_timers(self) -> bool:
        return self.key_columns is not None and _may_set_event_timers(self.function)

    @property
    def needed_times(self) -> list[NeededTime]:
        keyed = self.key_columns is not None
        return [NeededTime(0, "")] if keyed and _depends_on_lateness(self.function) else []

    def in_batch(self) -> Self:
        return replace(self, broadcast_first=True)


def _may_set_event_timers(function: Any) -> bool:
    names = names_in(function)
    return _has_timers(function) and (IN_EVENT_TIME in names or IN_PROCESSING_TIME not in names)


def _depends_on_lateness(function: Any) -> bool:
    """Whether it sets event-time timers without reading the watermark: so it treats rows as late as
    the timers are early.
    """
    sets = _has_timers(function) and IN_EVENT_TIME in names_in(function)
    return sets and not reads_watermark(function)


def _has_timers(function: Any) -> bool:
    bases = KeyedProcessFunction, CoProcessFunction, KeyedBroadcastProcessFunction
    return all(type(function).on_timer is not base.on_timer for base in bases)
