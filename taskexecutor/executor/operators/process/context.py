"""The contexts of functions, and timers of the current key."""

from __future__ import annotations

import operator
from collections.abc import Mapping
from typing import Any, TypeVar

from firesteel.common.checkpoints.descriptions import StateDescription, StateKind
from firesteel.common.checkpoints.evolution import changed_state, shown
from firesteel.elements import MAX_TIMESTAMP_US, MIN_TIMESTAMP_US
from firesteel.errors import FiresteelError
from firesteel.operator import Counter, RuntimeContext, TaskInfo, TimerService
from firesteel.state import (
    AggregatingStateDescriptor,
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    StateDescriptor,
    ValueStateDescriptor,
)
from taskexecutor.executor.operators.process.state import (
    DeclaredValues,
    FunctionState,
    KeyedAggregated,
    KeyedList,
    KeyedMap,
    KeyedReduced,
    KeyedValue,
    Schema,
    Values,
    entry_name,
    with_ttl,
)
from taskexecutor.executor.operators.python_rows.current_key import CurrentKey
from taskexecutor.executor.operators.python_rows.row_collector import RowCollector, shown_key
from taskexecutor.executor.operators.transform_with_state.expiring import ExpiringVariable
from taskexecutor.executor.operators.transform_with_state.migration import migration
from taskexecutor.executor.state import KeyedState

# The Python types in which the backend stores states of these kinds.
_KEPT: dict[type, tuple[str, type]] = {KeyedList: ("list", list), KeyedMap: ("map", dict)}
_DECLARED_KINDS: dict[type, StateKind] = {
    KeyedValue: StateKind.VALUE,
    KeyedList: StateKind.LIST,
    KeyedMap: StateKind.MAP,
}
_NO_LIMIT_MS = MAX_TIMESTAMP_US // 1000
_S = TypeVar("_S", bound=FunctionState)
_D = TypeVar("_D", bound=StateDescriptor)


class FunctionTimers:
    """Implements `firesteel.functions.FunctionTimers`."""

    def __init__(self, service: TimerService, current: CurrentKey) -> None:
        self._service = service
        self._current = current

    def current_processing_time(self) -> int:
        return self._current.now_ms

    def current_watermark(self) -> int:
        return self._service.current_watermark_us // 1000

    def register_event_time_timer(self, timestamp_ms: int) -> None:
        key = self._current.key or self._current.of("a timer")
        if type(timestamp_ms) is int and -_NO_LIMIT_MS < timestamp_ms < _NO_LIMIT_MS:
            self._service.register_event_time(timestamp_ms * 1000, key)
        else:
            self._service.register_event_time(_us(timestamp_ms, "register_event_time_timer"), key)

    def register_processing_time_timer(self, timestamp_ms: int) -> None:
        self._service.register_processing_time(
            _whole(timestamp_ms, "register_processing_time_timer"), self._current.of("a timer")
        )

    def delete_event_time_timer(self, timestamp_ms: int) -> None:
        self._service.delete_event_time(
            _us(timestamp_ms, "delete_event_time_timer"), self._current.of("a timer")
        )

    def delete_processing_time_timer(self, timestamp_ms: int) -> None:
        self._service.delete_processing_time(
            _whole(timestamp_ms, "delete_processing_time_timer"), self._current.of("a timer")
        )


def _us(timestamp_ms: int, call: str) -> int:
    return max(MIN_TIMESTAMP_US, min(_whole(timestamp_ms, call) * 1000, MAX_TIMESTAMP_US))


def _whole(timestamp_ms: Any, call: str) -> int:
    try:
        return operator.index(timestamp_ms)
    except TypeError:
        raise FiresteelError(
            f"{call}({timestamp_ms!r}): times are whole milliseconds since the epoch, as int"
        ) from None


class ProcessContext:
    """Implements `firesteel.functions.ProcessContext`."""

    def __init__(
        self, current: CurrentKey, times: FunctionTimers, sides: Mapping[str, RowCollector]
    ) -> None:
        self._current = current
        self._times = times
        self._sides = sides
        self.method = ""  # the function's method being called
        self.domain: str | None = None
        self.time_ms: int | None = None  # of the row, or of the timer
        self.no_time = ""  # why the row has no time although the stream has

    def timestamp(self) -> int | None:
        if self.no_time:
            raise FiresteelError(f"ctx.timestamp(): {self.no_time}")
        return self.time_ms

    def get_current_key(self) -> Any:
        key = self._current.shown("get_current_key()")
        return key[0] if len(key) == 1 else key

    def timer_service(self) -> FunctionTimers:
        return self._times

    def time_domain(self) -> str | None:
        return self.domain

    def output(self, tag: str, row: Any) -> None:
        side = self._sides.get(tag) if isinstance(tag, str) else None
        if side is None:
            raise FiresteelError(
                f"ctx.output({tag!r}, ...): there is no side output {tag!r}; "
                f"declared: {', '.join(sorted(self._sides)) or 'none'}"
            )
        side.begin(self.method, self._current.key)
        if side.fill(iter((row,))):
            side.flush()


class FunctionContext:
    """Implements `firesteel.functions.FunctionContext`. `declared` maps names to the states with a
    schema, as JSON, initially the restored ones. `keys` are the key columns, as Spark's JSON.
    `backend` is None if the function has no keyed state.
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
        self._states: dict[str, tuple[Any, FunctionState]] = {}  # with the arguments of the request
        self._opened = False

    @property
    def _backend(self) -> KeyedState:
        if self._keyed is None:
            self._current.of("a state")
        assert self._keyed is not None
        return self._keyed

    @property
    def expiring(self) -> list[ExpiringVariable]:
        """Returns the states with a time to live."""
        return [state.variable for _, state in self._states.values() if hasattr(state, "variable")]

    def opened(self) -> None:
        """Called when `open` has returned."""
        self._opened = True

    @property
    def task(self) -> TaskInfo:
        return self._context.task

    def get_state(
        self, state: ValueStateDescriptor | str, schema: Schema | None = None
    ) -> KeyedValue:
        return self._state(_described("get_state", ValueStateDescriptor, state, schema), KeyedValue)

    def get_list_state(
        self, state: ListStateDescriptor | str, schema: Schema | None = None
    ) -> KeyedList:
        described = _described("get_list_state", ListStateDescriptor, state, schema)
        return self._state(described, KeyedList)

    def get_map_state(
        self,
        state: MapStateDescriptor | str,
        schema: Schema | None = None,
        key_schema: Schema | None = None,
    ) -> KeyedMap:
        described = _described("get_map_state", MapStateDescriptor, state, schema, key_schema)
        return self._state(described, KeyedMap)

    def get_reducing_state(self, state: ReducingStateDescriptor) -> KeyedReduced:
        described = _described("get_reducing_state", ReducingStateDescriptor, state)
        return KeyedReduced(self._state(described, KeyedValue), described.reduce)

    def get_aggregating_state(self, state: AggregatingStateDescriptor) -> KeyedAggregated:
        described = _described("get_aggregating_state", AggregatingStateDescriptor, state)
        return KeyedAggregated(self._state(described, KeyedValue), described.function)

    def get_task_name(self) -> str:
        return self.task.task_name

    def get_task_name_with_subtasks(self) -> str:
        return self.task.task_name_with_subtask

    def get_index_of_this_subtask(self) -> int:
        return self.task.subtask

    def get_number_of_parallel_subtasks(self) -> int:
        return self.task.parallelism

    def get_max_number_of_parallel_subtasks(self) -> int:
        return self.task.max_parallelism

    def get_attempt_number(self) -> int:
        return self.task.attempt

    def get_job_parameter(self, key: str, default_value: str) -> str:
        return self._context.config.get(key, default_value)

    def counter(self, name: str) -> Counter:
        return self._context.counter(name)

    def _state(self, described: StateDescriptor, kind: type[_S]) -> _S:
        name, schema, key_schema = described.name, described.type, described.key_type
        ttl = None if described.ttl is None or described.ttl.ttl_ms is None else described.ttl
        if not isinstance(name, str) or not name:
            raise FiresteelError(f"a state's name must be a non-empty string, not {name!r}")
        if kind is KeyedMap and (schema is None) != (key_schema is None):
            raise FiresteelError(
                f"the map state {name!r} has a schema of its"
                f" {'keys' if schema is None else 'values'} only; give both or none"
            )
        how = (kind, schema, key_schema, ttl)
        if name in self._states:
            before, state = self._states[name]
            if before[0] is not kind:
                raise FiresteelError(
                    f"the state {name!r} is already used as a value, a list or a map; choose "
                    "another name"
                )
            if before != how:
                raise FiresteelError(
                    f"the state {name!r} is used with different schemas or times to live"
                )
            assert isinstance(state, kind)
            return state
        what = f"state {name!r}"
        if schema is None:
            if ttl is not None:
                raise FiresteelError(
                    f"{what}: a state with a time to live needs a type, such as"
                    f" {type(described).__name__}({name!r}, 'BIGINT')"
                )
            state = kind(self._backend, self._current, name)
        else:
            if self._opened:
                raise FiresteelError(
                    f"{what}: a state with a schema can only be requested in open()"
                )
            keys = Values() if key_schema is None else DeclaredValues(key_schema, f"{what}, keys")
            values = DeclaredValues(schema, what)
            if ttl is None:
                state = kind(self._backend, self._current, name, values, keys)
            else:
                state = with_ttl(kind, self._backend, self._current, name, values, keys, ttl)
            self._restore_declared(name, kind, values, keys, None if ttl is None else ttl.ttl_ms)
        self._check_restored(name, kind, declared=schema is not None)
        self._states[name] = (how, state)
        assert isinstance(state, kind)
        return state

    def _restore_declared(
        self,
        name: str,
        kind: type[FunctionState],
        values: Values,
        keys: Values,
        ttl_ms: int | None,
    ) -> None:
        """Converts restored values to the current schema, and records the schema for savepoints."""
        now = StateDescription(
            kind=_DECLARED_KINDS[kind],
            keys=self._keys,
            values=values.declared,
            map_keys=keys.declared,
            ttl_ms=ttl_ms,
        )
        was = self._declared.get(name)
        if was is not None:
            before = StateDescription.from_json(was)
            if problem := changed_state(before, now):
                raise FiresteelError(f"state {name!r} cannot be restored: {problem}")
            if (convert := migration(before, now, self._current.now_ms)) is not None:
                entry = entry_name(name)
                # Values may exceed the memory.
                for key in [found.key for found in self._backend.entries(entry)]:
                    kept = convert(self._backend.get(entry, key))
                    if kept is None:  # it has expired
                        self._backend.remove(entry, key)
                    else:
                        self._backend.put(entry, key, kept)
        elif next(self._backend.entries(entry_name(name)), None) is not None:
            raise FiresteelError(
                f"state {name!r} has a schema now, and had none in the checkpoint: its values may"
                " not conform to it. Remove the schema, or choose another name"
            )
        self._declared[name] = now.to_json()

    def _check_restored(self, name: str, kind: type[FunctionState], *, declared: bool) -> None:
        """Raises FiresteelError if the restored state is of another kind: a map would be read as a
        list of its keys, and a string as its characters.
        """
        if name in self._declared and not declared:
            before = StateDescription.from_json(self._declared[name])
            raise FiresteelError(
                f"the restored state {name!r} was declared as"
                f" {before.kind.value} of ({shown(before.values)}); declare it so, or choose "
                "another name"
            )
        entry = next(self._backend.entries(entry_name(name)), None)
        what, expected = _KEPT.get(kind, ("value", object))
        if entry is not None and not isinstance(entry.value, expected):
            raise FiresteelError(
                f"the restored state {name!r} is not a {what}: it has"
                f" {type(entry.value).__name__} {entry.value!r:.100} for the key"
                f" {shown_key(entry.key)}; choose another name"
            )


def _described(
    call: str,
    kind: type[_D],
    given: Any,
    schema: Schema | None = None,
    key_schema: Schema | None = None,
) -> _D:
    """Returns the descriptor that the program passed, or one made from a name and a schema."""
    if isinstance(given, kind):
        if schema is not None or key_schema is not None:
            raise FiresteelError(
                f"{call}(): the type of the state {given.name!r} is part of its {kind.__name__};"
                " leave out the schema"
            )
        return given
    if isinstance(given, StateDescriptor) or kind not in _OF_NAMES:
        name = "" if kind not in _OF_NAMES else "a name or "
        raise FiresteelError(
            f"{call}() takes {name}{_article(kind.__name__)}, not {_article(type(given).__name__)}"
        )
    described = kind(given)  # type: ignore[arg-type]
    described.type, described.key_type = schema, key_schema
    return described


_OF_NAMES = (ValueStateDescriptor, ListStateDescriptor, MapStateDescriptor)


def _article(name: str) -> str:
    return f"{'an' if name[0] in 'AEIOUaeiou' else 'a'} {name}"
