"""The state classes of `firesteel.functions` on a keyed state backend."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from taskexecutor.executor.operators.current_key import CurrentKey
from taskexecutor.executor.state import KeyedState


def entry_name(name: str) -> str:
    """The backend's name for a state of the program."""
    return f"user.{name}"


class _State:
    def __init__(self, backend: KeyedState, current: CurrentKey, name: str) -> None:
        self._backend = backend
        self._current = current
        self._name = name
        self._entry = entry_name(name)

    @property
    def _key(self) -> tuple[Any, ...]:
        return self._current.of(f"state {self._name!r}")

    def _load(self) -> Any:
        return self._backend.get(self._entry, self._key)

    def clear(self) -> None:
        self._backend.remove(self._entry, self._key)


class KeyedValue(_State):
    """See `firesteel.functions.ValueState`."""

    def value(self) -> Any:
        return self._load()

    def update(self, value: Any) -> None:
        if value is None:
            self.clear()
        else:
            self._backend.put(self._entry, self._key, value)


class KeyedList(_State):
    """See `firesteel.functions.ListState`."""

    def get(self) -> list[Any]:
        return list(self._load() or ())

    def add(self, value: Any) -> None:
        self.add_all((value,))

    def add_all(self, values: Iterable[Any]) -> None:
        kept = self._backend.owned(self._entry, self._key, list)
        if kept is None:
            self.update(values)
        else:
            kept.extend(values)

    def update(self, values: Iterable[Any]) -> None:
        values = list(values)
        if values:
            self._backend.put(self._entry, self._key, values)
        else:
            self.clear()


class KeyedMap(_State):
    """See `firesteel.functions.MapState`."""

    def get(self, key: Any) -> Any:
        return (self._load() or {}).get(key)

    def put(self, key: Any, value: Any) -> None:
        kept = self._backend.owned(self._entry, self._key, dict)
        if kept is None:
            self._backend.put(self._entry, self._key, {key: value})
        else:
            kept[key] = value

    def contains(self, key: Any) -> bool:
        return key in (self._load() or {})

    def remove(self, key: Any) -> None:
        kept = self._backend.owned(self._entry, self._key, dict)
        if kept is None:
            return
        kept.pop(key, None)
        if not kept:
            self.clear()

    def items(self) -> Iterator[tuple[Any, Any]]:
        return iter(list((self._load() or {}).items()))

    def keys(self) -> Iterator[Any]:
        return iter(list(self._load() or ()))

    def values(self) -> Iterator[Any]:
        return iter(list((self._load() or {}).values()))

    def is_empty(self) -> bool:
        return not self._load()
