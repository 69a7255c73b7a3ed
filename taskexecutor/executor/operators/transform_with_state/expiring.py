"""State variables with a time to live: a value that was not updated for that long is no longer
returned, and is removed some time later.

A value is stored with the processing time at which it expires, as (expiry_ms, value); each element
of a list and each entry of a map has its own expiry. As in PySpark, "now" is the processing time of
the current batch.

`sweep` removes expired values, also of keys that never occur again. Timers in the backend, in the
order of time, determine when to check which key. A key with values has a timer at most one part of
the TTL after its first expiry; a key that is updated often has few timers.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from pyspark.sql.streaming.stateful_processor import ListState, MapState, ValueState

from firesteel.operator import TimerService
from taskexecutor.executor.operators.python_rows.current_key import CurrentKey
from taskexecutor.executor.operators.python_rows.shapes import Shape
from taskexecutor.executor.operators.transform_with_state.grouping import Key
from taskexecutor.executor.operators.transform_with_state.variables import Value, Variable
from taskexecutor.executor.state import KeyedState
from taskexecutor.executor.timing.timers import Timer

SWEEP_AT_MOST = 10_000  # keys per sweep
SWEEP_INTERVAL_MS = 1_000  # between sweeps
_PARTS = 4  # of a TTL; keys are checked at the end of each part
_SWEEP = "sweep"  # namespace of the timers
_REMEMBERED = 10_000  # keys known to have a timer


class ExpiringVariable(Variable):
    def __init__(
        self, current: CurrentKey, backend: KeyedState, name: str, shape: Shape, ttl_ms: int
    ) -> None:
        super().__init__(current, backend, name, shape)
        self._ttl_ms = ttl_ms
        self._part_ms = max(ttl_ms // _PARTS, 1)
        self._remembered: set[Key] = set()  # keys with a timer at `_remembered_ms`
        self._remembered_ms = 0
        self._swept = False  # a sweep is scheduled
        # Called with the time of the next sweep when there is something to sweep again.
        self.on_first_due: Callable[[int], None] = lambda due_ms: None

    def restore(self) -> None:
        """Registers timers for keys that were restored without them."""
        due_ms = self._expiries.next_timestamp()
        if due_ms is None:
            for entry in self._backend.entries(self._entry):
                self._schedule_check(entry.key, self._first_expiry_ms(entry.value))
        else:
            self._sweep_at(due_ms)

    def sweep(self, now_ms: int) -> int | None:
        """Removes expired values. Returns when to sweep again; None if no values are left."""
        for _ in range(SWEEP_AT_MOST):
            timer = self._expiries.pop_due(now_ms)
            if timer is None:
                break
            kept = self._backend.get(self._entry, timer.key)
            live = None if kept is None else self._live(kept, now_ms)
            if live is None:
                self._backend.remove(self._entry, timer.key)
                continue
            if live is not kept:
                self._backend.put(self._entry, timer.key, live)
            due_ms = self._due_ms(self._first_expiry_ms(live))
            self._expiries.add(Timer(due_ms, timer.key, None))
        next_ms = self._expiries.next_timestamp()
        self._swept = next_ms is not None
        return None if next_ms is None else max(next_ms, now_ms + SWEEP_INTERVAL_MS)

    def live_keys(self) -> list[Key]:
        """Returns the keys of this subtask that have a value."""
        now_ms = self._current.now_ms
        return [
            entry.key
            for entry in self._backend.entries(self._entry)
            if self._live(entry.value, now_ms) is not None
        ]

    def purge(self) -> None:
        self._remembered.clear()
        super().purge()

    def _expiry_ms(self) -> int:
        return self._current.now_ms + self._ttl_ms

    def _due_ms(self, expiry_ms: int) -> int:
        return -(-expiry_ms // self._part_ms) * self._part_ms

    def _schedule_check(self, key: Key, expiry_ms: int) -> None:
        """Registers a timer for the key, soon after this expiry."""
        due_ms = self._due_ms(expiry_ms)
        if due_ms != self._remembered_ms or len(self._remembered) >= _REMEMBERED:
            self._remembered.clear()
            self._remembered_ms = due_ms
        if key in self._remembered:
            return
        self._remembered.add(key)
        self._expiries.add(Timer(due_ms, key, None))
        self._sweep_at(due_ms)

    def _sweep_at(self, due_ms: int) -> None:
        if not self._swept:
            self._swept = True
            self.on_first_due(due_ms)

    def _load_live(self) -> Any:
        kept = self._load()
        return None if kept is None else self._live(kept, self._current.now_ms)

    def _store(self, kept: Any) -> None:
        key = self._key()
        self._backend.put(self._entry, key, kept)
        self._schedule_check(key, self._expiry_ms())

    def _live(self, kept: Any, now_ms: int) -> Any:
        """Returns the part that has not expired: None if there is none, `kept` itself if it is
        everything.
        """
        raise NotImplementedError

    def _first_expiry_ms(self, kept: Any) -> int:
        raise NotImplementedError


class Sweeps:
    """Removes expired values of an operator's variables, by processing-time timers."""

    def __init__(self, service: TimerService, variables: Sequence[ExpiringVariable]) -> None:
        self._service = service
        self._variables = variables
        for index, variable in enumerate(variables):
            variable.on_first_due = functools.partial(self._at, index)
            variable.restore()

    def fired(self, namespace: Any, now_ms: int) -> bool:
        """Sweeps, if a timer of this namespace belongs to a variable."""
        if not isinstance(namespace, tuple) or namespace[0] != _SWEEP:
            return False
        again_ms = self._variables[namespace[1]].sweep(now_ms)
        if again_ms is not None:
            self._at(namespace[1], again_ms)
        return True

    def _at(self, index: int, due_ms: int) -> None:
        self._service.register_processing_time(due_ms, namespace=(_SWEEP, index))


class ExpiringValue(ExpiringVariable, ValueState):
    def exists(self) -> bool:
        return self._load_live() is not None

    def get(self) -> Value | None:
        kept = self._load_live()
        return None if kept is None else self._shape.given(kept[1])

    def update(self, newValue: Value) -> None:
        self._store((self._expiry_ms(), self._shape.taken(newValue, "update()")))

    def _live(self, kept: Any, now_ms: int) -> Any:
        return kept if kept[0] > now_ms else None

    def _first_expiry_ms(self, kept: Any) -> int:
        return int(kept[0])


class ExpiringList(ExpiringVariable, ListState):
    def exists(self) -> bool:
        return self._load_live() is not None

    def get(self) -> Iterator[Value]:
        return iter([self._shape.given(value) for _, value in self._load_live() or ()])

    def put(self, newState: list[Value]) -> None:
        values = self._dated(newState, "put()")
        if values:
            self._store(values)
        else:
            self.clear()

    def appendValue(self, newState: Value) -> None:
        self._append(self._dated([newState], "appendValue()"))

    def appendList(self, newState: list[Value]) -> None:
        self._append(self._dated(newState, "appendList()"))

    def _dated(self, values: list[Value], call: str) -> list[tuple[int, Value]]:
        expiry_ms = self._expiry_ms()
        return [(expiry_ms, self._shape.taken(value, call)) for value in values]

    def _append(self, values: list[tuple[int, Value]]) -> None:
        kept = self._backend.owned(self._entry, self._key(), list)
        if kept is not None:
            kept.extend(values)
            self._schedule_check(self._key(), self._expiry_ms())
        elif values:
            self._store(values)

    def _live(self, kept: Any, now_ms: int) -> Any:
        if kept[0][0] > now_ms:  # the oldest
            return kept
        return [dated for dated in kept if dated[0] > now_ms] or None

    def _first_expiry_ms(self, kept: Any) -> int:
        return int(kept[0][0])


class ExpiringMap(ExpiringVariable, MapState):
    def __init__(
        self,
        current: CurrentKey,
        backend: KeyedState,
        name: str,
        keys: Shape,
        shape: Shape,
        ttl_ms: int,
    ) -> None:
        super().__init__(current, backend, name, shape, ttl_ms)
        self._keys = keys

    @property
    def map_keys(self) -> Shape:
        return self._keys

    def exists(self) -> bool:
        return self._load_live() is not None

    def getValue(self, key: Value) -> Value | None:
        kept = self._dated_value(key, "getValue()")
        return None if kept is None else self._shape.given(kept[1])

    def containsKey(self, key: Value) -> bool:
        return self._dated_value(key, "containsKey()") is not None

    def updateValue(self, key: Value, value: Value) -> None:
        user_key = self._keys.taken_key(key, "updateValue()")
        dated = (self._expiry_ms(), self._shape.taken(value, "updateValue()"))
        entries = self._backend.owned(self._entry, self._key(), dict)
        if entries is None:
            self._store({user_key: dated})
        else:
            entries.pop(user_key, None)  # moves it to the end: entries are in the order of expiry
            entries[user_key] = dated
            self._schedule_check(self._key(), dated[0])

    def iterator(self) -> Iterator[tuple[Value, Value]]:
        return iter(
            [
                (self._keys.given(key), self._shape.given(value))
                for key, (_, value) in (self._load_live() or {}).items()
            ]
        )

    def keys(self) -> Iterator[Value]:
        return iter([self._keys.given(key) for key in self._load_live() or ()])

    def values(self) -> Iterator[Value]:
        return iter([self._shape.given(value) for _, value in (self._load_live() or {}).values()])

    def removeKey(self, key: Value) -> None:
        entries = self._backend.owned(self._entry, self._key(), dict)
        if entries is not None:
            entries.pop(self._keys.taken_key(key, "removeKey()"), None)
            if not entries:
                self.clear()

    def _dated_value(self, key: Value, call: str) -> tuple[int, Value] | None:
        """Takes constant time, regardless of the map's size."""
        user_key = self._keys.taken_key(key, call)
        kept = (self._load() or {}).get(user_key)
        return kept if kept is not None and kept[0] > self._current.now_ms else None

    def _live(self, kept: Any, now_ms: int) -> Any:
        if self._first_expiry_ms(kept) > now_ms:
            return kept
        return {key: dated for key, dated in kept.items() if dated[0] > now_ms} or None

    def _first_expiry_ms(self, kept: Any) -> int:
        return int(next(iter(kept.values()))[0])
