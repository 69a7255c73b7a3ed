"""What a CoProcessFunction gets: its contexts, and timers of the current key."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from firesteel.common.checkpoints.descriptions import StateDescription, StateKind
from firesteel.common.checkpoints.evolution import changed_state, shown
from firesteel.errors import FiresteelError
from firesteel.operator import Counter, RuntimeContext, TaskInfo, TimerService
from taskexecutor.executor.operators.current_key import CurrentKey
from taskexecutor.executor.operators.function_state import (
    DeclaredValues,
    FunctionState,
    KeyedList,
    KeyedMap,
    KeyedValue,
    Schema,
    Values,
    entry_name,
)
from taskexecutor.executor.operators.stateful.migration import migration
from taskexecutor.executor.operators.stateful.row_collector import RowCollector, shown_key
from taskexecutor.executor.state import KeyedState

# What the backend has of states of these kinds.
_KEPT: dict[type, tuple[str, type]] = {KeyedList: ("list", list), KeyedMap: ("map", dict)}
_DECLARED_KINDS: dict[type, StateKind] = {
    KeyedValue: StateKind.VALUE,
    KeyedList: StateKind.LIST,
    KeyedMap: StateKind.MAP,
}
_S = TypeVar("_S", bound=FunctionState)


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
    """See `firesteel.functions.FunctionContext`. `declared`: the states with a schema, by name, as
    JSON; at first those that are restored. `keys`: the columns of the key, as Spark's JSON.
    `backend`: None if the function has no states per key.
    """

    def __init__(
        self,
        context: RuntimeContext,
        backend: KeyedState | None,
        current: CurrentKey,
        declared: dict[str, str],
        keys: Any,
    ) -> None:
        self._context = context
        self._keyed = backend
        self._current = current
        self._declared = declared
        self._keys = keys
        self._states: dict[str, tuple[Any, FunctionState]] = {}  # with how they were asked for
        self._opened = False

    @property
    def _backend(self) -> KeyedState:
        if self._keyed is None:
            raise FiresteelError(
                "a state belongs to a key, and this function has none: derive it from"
                " KeyedBroadcastProcessFunction, and call key_by(...) before connect(...)"
            )
        return self._keyed

    def opened(self) -> None:
        """Called when `open` has returned."""
        self._opened = True

    @property
    def task(self) -> TaskInfo:
        return self._context.task

    def get_state(self, name: str, schema: Schema | None = None) -> KeyedValue:
        return self._state(name, KeyedValue, schema)

    def get_list_state(self, name: str, schema: Schema | None = None) -> KeyedList:
        return self._state(name, KeyedList, schema)

    def get_map_state(
        self, name: str, schema: Schema | None = None, key_schema: Schema | None = None
    ) -> KeyedMap:
        return self._state(name, KeyedMap, schema, key_schema)

    def counter(self, name: str) -> Counter:
        return self._context.counter(name)

    def _state(
        self,
        name: str,
        kind: type[_S],
        schema: Schema | None,
        key_schema: Schema | None = None,
    ) -> _S:
        if not isinstance(name, str) or not name:
            raise FiresteelError(f"a state's name is a text that is not empty, not {name!r}")
        if kind is KeyedMap and (schema is None) != (key_schema is None):
            raise FiresteelError(
                f"the map state {name!r} has a schema of its"
                f" {'keys' if schema is None else 'values'} only; give both or none"
            )
        how = (kind, schema, key_schema)
        if name in self._states:
            before, state = self._states[name]
            if before[0] is not kind:
                raise FiresteelError(
                    f"the state {name!r} is used as a value, a list or a map; take another name"
                )
            if before != how:
                raise FiresteelError(f"the state {name!r} is used with schemas that differ")
            assert isinstance(state, kind)
            return state
        what = f"state {name!r}"
        if schema is None:
            state = kind(self._backend, self._current, name)
        else:
            if self._opened:
                raise FiresteelError(f"{what}: one with a schema is asked for in open() only")
            keys = Values() if key_schema is None else DeclaredValues(key_schema, f"{what}, keys")
            values = DeclaredValues(schema, what)
            state = kind(self._backend, self._current, name, values, keys)
            self._restore_declared(name, kind, values, keys)
        self._check_restored(name, kind, declared=schema is not None)
        self._states[name] = (how, state)
        return state

    def _restore_declared(
        self, name: str, kind: type[FunctionState], values: Values, keys: Values
    ) -> None:
        """Makes restored values into those of the schema, and keeps it for savepoints."""
        now = StateDescription(
            kind=_DECLARED_KINDS[kind],
            keys=self._keys,
            values=values.declared,
            map_keys=keys.declared,
        )
        was = self._declared.get(name)
        if was is not None:
            before = StateDescription.from_json(was)
            if problem := changed_state(before, now):
                raise FiresteelError(f"state {name!r} cannot be restored: {problem}")
            if (convert := migration(before, now, 0)) is not None:
                entry = entry_name(name)
                # Values may be more than the memory holds.
                for key in [found.key for found in self._backend.entries(entry)]:
                    self._backend.put(entry, key, convert(self._backend.get(entry, key)))
        elif next(self._backend.entries(entry_name(name)), None) is not None:
            raise FiresteelError(
                f"state {name!r} has a schema now, and had none in the checkpoint: nobody knows"
                " whether its values conform. Leave it without one, or take another name"
            )
        self._declared[name] = now.to_json()

    def _check_restored(self, name: str, kind: type[FunctionState], *, declared: bool) -> None:
        """A map would be read as the list of its keys, a text as that of its letters."""
        if name in self._declared and not declared:
            before = StateDescription.from_json(self._declared[name])
            raise FiresteelError(
                f"the state {name!r} that is restored was declared as"
                f" {before.kind.value} of ({shown(before.values)}); declare it so, or take another"
                " name"
            )
        entry = next(self._backend.entries(entry_name(name)), None)
        what, expected = _KEPT.get(kind, ("value", object))
        if entry is not None and not isinstance(entry.value, expected):
            raise FiresteelError(
                f"the state {name!r} that is restored is no {what}, but has"
                f" {type(entry.value).__name__} {entry.value!r:.100} for the key"
                f" {shown_key(entry.key)}; take another name"
            )
