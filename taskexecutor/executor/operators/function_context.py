"""What a CoProcessFunction gets: its contexts, and timers of the current key."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from firesteel.errors import FiresteelError
from firesteel.operator import Counter, RuntimeContext, TaskInfo, TimerService
from taskexecutor.executor.operators.current_key import CurrentKey
from taskexecutor.executor.operators.function_state import (
    KeyedList,
    KeyedMap,
    KeyedValue,
    entry_name,
)
from taskexecutor.executor.operators.stateful.row_collector import RowCollector, shown_key
from taskexecutor.executor.state import KeyedState

# What the backend has of states of these kinds.
_KEPT: dict[type, tuple[str, type]] = {KeyedList: ("list", list), KeyedMap: ("map", dict)}


class FunctionTimers:
    """See `firesteel.functions.FunctionTimers`."""

    def __init__(self, service: TimerService, current: CurrentKey) -> None:
        self._service = service
        self._current = current
        self.now_ms = 0

    def current_processing_time(self) -> int:
        return self.now_ms

    def current_watermark(self) -> int:
        return self._service.current_watermark_us // 1000

    def register_event_time_timer(self, timestamp_ms: int) -> None:
        self._service.register_event_time(timestamp_ms * 1000, self._current.of("a timer"))

    def register_processing_time_timer(self, timestamp_ms: int) -> None:
        self._service.register_processing_time(timestamp_ms, self._current.of("a timer"))

    def delete_event_time_timer(self, timestamp_ms: int) -> None:
        self._service.delete_event_time(timestamp_ms * 1000, self._current.of("a timer"))

    def delete_processing_time_timer(self, timestamp_ms: int) -> None:
        self._service.delete_processing_time(timestamp_ms, self._current.of("a timer"))


class ProcessContext:
    """See `firesteel.functions.ProcessContext`."""

    def __init__(
        self, current: CurrentKey, times: FunctionTimers, sides: Mapping[str, RowCollector]
    ) -> None:
        self._current = current
        self._times = times
        self._sides = sides
        self.domain: str | None = None

    def get_current_key(self) -> Any:
        key = self._current.of("get_current_key()")
        return key[0] if len(key) == 1 else key

    def timer_service(self) -> FunctionTimers:
        return self._times

    def time_domain(self) -> str | None:
        return self.domain

    def output(self, tag: str, row: Any) -> None:
        side = self._sides.get(tag)
        if side is None:
            raise FiresteelError(
                f"there is no side output {tag!r}; "
                f"declared: {', '.join(sorted(self._sides)) or 'none'}"
            )
        if side.fill(iter((row,))):
            side.flush()


class FunctionContext:
    """See `firesteel.functions.FunctionContext`."""

    def __init__(self, context: RuntimeContext, backend: KeyedState, current: CurrentKey) -> None:
        self._context = context
        self._backend = backend
        self._current = current
        self._kinds: dict[str, type] = {}

    @property
    def task(self) -> TaskInfo:
        return self._context.task

    def get_state(self, name: str) -> KeyedValue:
        return KeyedValue(self._backend, self._current, self._named(name, KeyedValue))

    def get_list_state(self, name: str) -> KeyedList:
        return KeyedList(self._backend, self._current, self._named(name, KeyedList))

    def get_map_state(self, name: str) -> KeyedMap:
        return KeyedMap(self._backend, self._current, self._named(name, KeyedMap))

    def counter(self, name: str) -> Counter:
        return self._context.counter(name)

    def _named(self, name: str, kind: type) -> str:
        if not isinstance(name, str) or not name:
            raise FiresteelError(f"a state's name is a text that is not empty, not {name!r}")
        if name not in self._kinds:
            self._check_restored(name, kind)
        if self._kinds.setdefault(name, kind) is not kind:
            raise FiresteelError(
                f"the state {name!r} is used as a value, a list or a map; take another name"
            )
        return name

    def _check_restored(self, name: str, kind: type) -> None:
        """A map would be read as the list of its keys, a text as that of its letters."""
        entry = next(self._backend.entries(entry_name(name)), None)
        what, expected = _KEPT.get(kind, ("value", object))
        if entry is not None and not isinstance(entry.value, expected):
            raise FiresteelError(
                f"the state {name!r} that is restored is no {what}, but has"
                f" {type(entry.value).__name__} {entry.value!r:.100} for the key"
                f" {shown_key(entry.key)}; take another name"
            )
