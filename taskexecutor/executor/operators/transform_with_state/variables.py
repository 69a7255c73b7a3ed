"""PySpark's ValueState, ListState and MapState on the keyed state backend, for the current key.

Every call takes one or two dictionary lookups. Per key, the backend holds plain tuples, lists of
them or dictionaries of them; lists and maps are changed in place, which `owned` makes safe for
snapshots.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from pyspark.errors import PySparkRuntimeError
from pyspark.sql.streaming.stateful_processor import ListState, MapState, ValueState

from firesteel.common.checkpoints.key_group_content import EXPIRIES
from firesteel.elements import MAX_TIMESTAMP_US
from taskexecutor.executor.operators.python_rows.current_key import CurrentKey
from taskexecutor.executor.operators.python_rows.shapes import Shape
from taskexecutor.executor.operators.transform_with_state.grouping import Key
from taskexecutor.executor.state import KeyedState

Value = tuple[Any, ...]


class Variable:
    """Base of all kinds of state variables."""

    def __init__(self, current: CurrentKey, backend: KeyedState, name: str, shape: Shape) -> None:
        self._current = current
        self._backend = backend
        self._name = name
        self._entry = entry_name(name)
        self._shape = shape
        self._deleted = False
        # Timers of keys whose values have a TTL, or had one before the program changed.
        self._expiries = backend.timers(EXPIRIES + name, saved=False)

    @property
    def shape(self) -> Shape:
        return self._shape

    @property
    def map_keys(self) -> Shape | None:
        """The schema of a map's keys."""
        return None

    def convert(self, convert: Callable[[Any], Any]) -> None:
        """Converts the stored value of each key, before it is used; None removes it."""
        # Values may exceed the memory.
        for key in [entry.key for entry in self._backend.entries(self._entry)]:
            kept = convert(self._backend.get(self._entry, key))
            if kept is None:
                self._backend.remove(self._entry, key)
            else:
                self._backend.put(self._entry, key, kept)
        self._forget_expiries()

    def delete(self) -> None:
        """Removes the values of all keys. The variable cannot be used afterwards."""
        self.purge()
        self._deleted = True

    def purge(self) -> None:
        """Removes the values of all keys."""
        for entry in list(self._backend.entries(self._entry)):
            self._backend.remove(self._entry, entry.key)
        self._forget_expiries()

    def _forget_expiries(self) -> None:
        while self._expiries.pop_due(MAX_TIMESTAMP_US) is not None:
            pass

    def clear(self) -> None:
        self._backend.remove(self._entry, self._key())

    def _key(self) -> Key:
        if self._deleted:  # PySpark's error
            raise PySparkRuntimeError(
                f"Error checking value state exists: state {self._name!r} is deleted by "
                "deleteIfExists()"
            )
        key = self._current.key
        return key if key is not None else self._current.of(f"state {self._name!r}")

    def _load(self) -> Any:
        return self._backend.get(self._entry, self._key())


def entry_name(state_name: str) -> str:
    """Returns the backend's name for a state of the program."""
    return f"user.{state_name}"


class ValueVariable(Variable, ValueState):
    def __init__(self, current: CurrentKey, backend: KeyedState, name: str, shape: Shape) -> None:
        super().__init__(current, backend, name, shape)
        # The backend's value for the last used key. Keys are compared by identity: a miss only
        # costs a lookup.
        self._cached_key: Key | None = None
        self._cached: Value | None = None

    def exists(self) -> bool:
        return self._value() is not None

    def get(self) -> Value | None:
        value = self._value()
        return None if value is None else self._shape.given(value)

    def update(self, newValue: Value) -> None:
        value = self._shape.taken(newValue, "update()")
        key = self._key()
        self._backend.put(self._entry, key, value)
        self._cached_key, self._cached = key, value

    def clear(self) -> None:
        self._cached_key = None
        super().clear()

    def purge(self) -> None:
        self._cached_key = None
        super().purge()

    def _value(self) -> Value | None:
        key = self._current.key
        if key is None or key is not self._cached_key:
            self._cached = self._load()
            self._cached_key = key
        return self._cached


class ListVariable(Variable, ListState):
    def exists(self) -> bool:
        return self._load() is not None

    def get(self) -> Iterator[Value]:
        values = self._load() or ()
        return map(self._shape.given, tuple(values))

    def put(self, newState: list[Value]) -> None:
        values = [self._shape.taken(value, "put()") for value in newState]
        if values:
            self._backend.put(self._entry, self._key(), values)
        else:
            self.clear()

    def appendValue(self, newState: Value) -> None:
        self._append([self._shape.taken(newState, "appendValue()")])

    def appendList(self, newState: list[Value]) -> None:
        self._append([self._shape.taken(value, "appendList()") for value in newState])

    def _append(self, values: list[Value]) -> None:
        key = self._key()
        kept = self._backend.owned(self._entry, key, list)
        if kept is not None:
            kept.extend(values)
        elif values:
            self._backend.put(self._entry, key, values)


class MapVariable(Variable, MapState):
    def __init__(
        self, current: CurrentKey, backend: KeyedState, name: str, keys: Shape, shape: Shape
    ) -> None:
        super().__init__(current, backend, name, shape)
        self._keys = keys

    @property
    def map_keys(self) -> Shape:
        return self._keys

    def exists(self) -> bool:
        return self._load() is not None

    def getValue(self, key: Value) -> Value | None:
        entries = self._load()
        if entries is None:
            return None
        value = entries.get(self._keys.taken_key(key, "getValue()"))
        return None if value is None else self._shape.given(value)

    def containsKey(self, key: Value) -> bool:
        entries = self._load()
        return entries is not None and self._keys.taken_key(key, "containsKey()") in entries

    def updateValue(self, key: Value, value: Value) -> None:
        user_key = self._keys.taken_key(key, "updateValue()")
        kept = self._shape.taken(value, "updateValue()")
        entries = self._backend.owned(self._entry, self._key(), dict)
        if entries is None:
            self._backend.put(self._entry, self._key(), {user_key: kept})
        else:
            entries[user_key] = kept

    def iterator(self) -> Iterator[tuple[Value, Value]]:
        return iter(
            [
                (self._keys.given(key), self._shape.given(value))
                for key, value in (self._load() or {}).items()
            ]
        )

    def keys(self) -> Iterator[Value]:
        return iter([self._keys.given(key) for key in self._load() or ()])

    def values(self) -> Iterator[Value]:
        return iter([self._shape.given(value) for value in (self._load() or {}).values()])

    def removeKey(self, key: Value) -> None:
        entries = self._backend.owned(self._entry, self._key(), dict)
        if entries is not None:
            entries.pop(self._keys.taken_key(key, "removeKey()"), None)
            if not entries:
                self.clear()
