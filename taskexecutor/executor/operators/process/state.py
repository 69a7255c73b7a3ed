"""The state classes of `firesteel.functions` on a keyed state backend. States with a time to live
wrap those of a StatefulProcessor under the names of PyFlink's methods.

A value with a schema is stored as a tuple that conforms to it, as in a StatefulProcessor; a value
of a single type is stored as a tuple of one.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, TypeAlias

from pyspark.errors import PySparkException
from pyspark.sql.types import DataType, StructField, StructType

from firesteel.common.error_report import summary_of
from firesteel.errors import FiresteelError
from firesteel.plan.ddl import parse_type
from firesteel.state import AggregateFunction, StateTtlConfig
from taskexecutor.executor.operators.python_rows.current_key import CurrentKey
from taskexecutor.executor.operators.python_rows.shapes import Shape
from taskexecutor.executor.operators.transform_with_state.expiring import (
    ExpiringList,
    ExpiringMap,
    ExpiringValue,
    ExpiringVariable,
)
from taskexecutor.executor.state import KeyedState


def entry_name(name: str) -> str:
    """Returns the backend's name for a state of the program."""
    return f"user.{name}"


Schema: TypeAlias = str | DataType


class Values:
    """The stored form of a state's values, or of a map's keys. Without a schema, they are stored
    unchanged.
    """

    declared: Any = None  # the columns, as Spark's JSON

    def taken(self, value: Any, call: str) -> Any:
        return value

    def given(self, kept: Any) -> Any:
        return kept

    def taken_key(self, key: Any, call: str) -> Any:
        """Returns a map's key in its stored form."""
        return self.taken(key, call)


class DeclaredValues(Values):
    def __init__(self, schema: Schema, what: str) -> None:
        kind = _type(schema, what)
        self._single = not isinstance(kind, StructType)
        columns = StructType([StructField("value", kind)]) if self._single else kind
        self._shape = Shape(columns, what)
        self.declared = self._shape.schema.jsonValue()
        self._conforming: type | None = None  # the type of single values known to conform

    def taken(self, value: Any, call: str) -> Any:
        """Returns the stored form. Raises FiresteelError, which names the state, if the value does
        not conform to the schema.
        """
        if not self._single:
            return self._shape.taken(value, call)
        one = (value,)
        if type(value) is self._conforming:
            return one
        kept = self._shape.taken(one, call)
        if kept is one:  # the shape checks the type only
            self._conforming = type(value)
        return kept

    def given(self, kept: Any) -> Any:
        value = self._shape.given(kept)
        return value[0] if self._single else value


def _type(schema: Schema, what: str) -> DataType:
    if isinstance(schema, DataType):
        return schema
    if not isinstance(schema, str):
        raise FiresteelError(
            f"{what}: its schema must be a type or columns, as in 'BIGINT' or 'n BIGINT, at DATE',"
            f" or one of Spark's types, not {type(schema).__name__}"
        )
    try:
        return parse_type(schema) or DataType.fromDDL(schema)
    except PySparkException as error:
        raise FiresteelError(
            f"{what}: its schema {schema!r} does not parse: {summary_of(error)}"
        ) from error


_AS_THEY_ARE = Values()


class FunctionState:
    def __init__(
        self,
        backend: KeyedState,
        current: CurrentKey,
        name: str,
        values: Values = _AS_THEY_ARE,
        keys: Values = _AS_THEY_ARE,
    ) -> None:
        """`keys`: the keys of a map."""
        self._backend = backend
        self._current = current
        self._name = name
        self._entry = entry_name(name)
        self._taken, self._given = values.taken, values.given
        self._plain = values.declared is None
        self._taken_key, self._given_key = keys.taken_key, keys.given

    def _key(self) -> tuple[Any, ...]:
        key = self._current.key
        return key if key is not None else self._current.of(f"state {self._name!r}")

    def all_keys(self) -> list[Any]:
        """Returns the keys of this subtask that have a value."""
        return [found.key for found in self._backend.entries(self._entry)]

    def _load(self) -> Any:
        return self._backend.get(self._entry, self._key())

    def clear(self) -> None:
        self._backend.remove(self._entry, self._key())


class KeyedValue(FunctionState):
    """Implements `firesteel.functions.ValueState`."""

    def value(self) -> Any:
        kept = self._backend.get(self._entry, self._current.key or self._key())
        return kept if self._plain or kept is None else self._given(kept)

    def update(self, value: Any) -> None:
        if value is None:
            self.clear()
            return
        taken = value if self._plain else self._taken(value, "update()")
        self._backend.put(self._entry, self._current.key or self._key(), taken)


class KeyedList(FunctionState):
    """Implements `firesteel.functions.ListState`."""

    def get(self) -> list[Any]:
        return list(map(self._given, self._load() or ()))

    def __iter__(self) -> Iterator[Any]:
        return iter(self.get())

    def add(self, value: Any) -> None:
        self.add_all((value,))

    def add_all(self, values: Iterable[Any]) -> None:
        taken = [self._taken(value, "add()") for value in values]
        kept = self._backend.owned(self._entry, self._key(), list)
        if kept is None:
            self._replace(taken)
        else:
            kept.extend(taken)

    def update(self, values: Iterable[Any]) -> None:
        self._replace([self._taken(value, "update()") for value in values])

    def _replace(self, taken: list[Any]) -> None:
        if taken:
            self._backend.put(self._entry, self._key(), taken)
        else:
            self.clear()


class KeyedMap(FunctionState):
    """Implements `firesteel.functions.MapState`."""

    def get(self, key: Any) -> Any:
        kept = (self._load() or {}).get(self._taken_key(key, "get()"))
        return None if kept is None else self._given(kept)

    def put(self, key: Any, value: Any) -> None:
        key, value = self._taken_key(key, "put()"), self._taken(value, "put()")
        kept = self._backend.owned(self._entry, self._key(), dict)
        if kept is None:
            self._backend.put(self._entry, self._key(), {key: value})
        else:
            kept[key] = value

    def put_all(self, dict_value: Mapping[Any, Any]) -> None:
        for key, value in dict_value.items():
            self.put(key, value)

    def contains(self, key: Any) -> bool:
        return self._taken_key(key, "contains()") in (self._load() or {})

    def remove(self, key: Any) -> None:
        key = self._taken_key(key, "remove()")
        kept = self._backend.owned(self._entry, self._key(), dict)
        if kept is None:
            return
        kept.pop(key, None)
        if not kept:
            self.clear()

    def items(self) -> Iterator[tuple[Any, Any]]:
        kept = (self._load() or {}).items()
        return iter([(self._given_key(key), self._given(value)) for key, value in kept])

    def keys(self) -> Iterator[Any]:
        return iter([self._given_key(key) for key in self._load() or ()])

    def values(self) -> Iterator[Any]:
        return iter([self._given(value) for value in (self._load() or {}).values()])

    def is_empty(self) -> bool:
        return not self._load()

    def __getitem__(self, key: Any) -> Any:
        return self.get(key)

    def __setitem__(self, key: Any, value: Any) -> None:
        self.put(key, value)

    def __delitem__(self, key: Any) -> None:
        self.remove(key)

    def __contains__(self, key: Any) -> bool:
        return self.contains(key)

    def __iter__(self) -> Iterator[Any]:
        return self.keys()


class _WithTtl(FunctionState):
    """Base of states whose values have a time to live. `variable` is one of a StatefulProcessor."""

    variable: Any

    def __init__(self, variable: ExpiringVariable, *, on_read: bool) -> None:
        """`on_read`: reading a value renews its time to live."""
        self.variable = variable
        self._on_read = on_read

    def all_keys(self) -> list[Any]:
        return self.variable.live_keys()  # type: ignore[no-any-return]

    def clear(self) -> None:
        self.variable.clear()


class ValueWithTtl(_WithTtl, KeyedValue):
    def value(self) -> Any:
        value = self.variable.get()
        if value is not None and self._on_read:
            self.variable.update(value)
        return value

    def update(self, value: Any) -> None:
        if value is None:
            self.clear()
        else:
            self.variable.update(value)


class ListWithTtl(_WithTtl, KeyedList):
    def get(self) -> list[Any]:
        found = list(self.variable.get())
        if found and self._on_read:
            self.variable.put(found)
        return found

    def add_all(self, values: Iterable[Any]) -> None:
        self.variable.appendList(list(values))

    def update(self, values: Iterable[Any]) -> None:
        self.variable.put(list(values))


class MapWithTtl(_WithTtl, KeyedMap):
    def get(self, key: Any) -> Any:
        value = self.variable.getValue(key)
        if value is not None and self._on_read:
            self.variable.updateValue(key, value)
        return value

    def put(self, key: Any, value: Any) -> None:
        self.variable.updateValue(key, value)

    def contains(self, key: Any) -> bool:
        return bool(self.variable.containsKey(key))

    def remove(self, key: Any) -> None:
        self.variable.removeKey(key)

    def items(self) -> Iterator[tuple[Any, Any]]:
        found = list(self.variable.iterator())
        if self._on_read:
            self.put_all(dict(found))
        return iter(found)

    def keys(self) -> Iterator[Any]:
        return iter([key for key, _ in self.items()])

    def values(self) -> Iterator[Any]:
        return iter([value for _, value in self.items()])

    def is_empty(self) -> bool:
        return not self.variable.exists()


def with_ttl(
    kind: type[FunctionState],
    backend: KeyedState,
    current: CurrentKey,
    name: str,
    values: Values,
    keys: Values,
    ttl: StateTtlConfig,
) -> Any:
    """Returns the state of this kind, with a time to live."""
    assert ttl.ttl_ms is not None
    on_read = ttl.update_type is StateTtlConfig.UpdateType.OnReadAndWrite
    shape: Any = values  # they convert values as those of a StatefulProcessor do
    if kind is KeyedMap:
        of_map = ExpiringMap(current, backend, name, keys, shape, ttl.ttl_ms)  # type: ignore[arg-type]
        return MapWithTtl(of_map, on_read=on_read)
    if kind is KeyedList:
        return ListWithTtl(ExpiringList(current, backend, name, shape, ttl.ttl_ms), on_read=on_read)
    return ValueWithTtl(ExpiringValue(current, backend, name, shape, ttl.ttl_ms), on_read=on_read)


class KeyedReduced:
    """Implements `firesteel.functions.ReducingState`."""

    def __init__(self, kept: KeyedValue, reduce: Callable[[Any, Any], Any]) -> None:
        self._kept = kept
        self._reduce = reduce

    def get(self) -> Any:
        return self._kept.value()

    def add(self, value: Any) -> None:
        before = self._kept.value()
        self._kept.update(value if before is None else self._reduce(before, value))

    def clear(self) -> None:
        self._kept.clear()


class KeyedAggregated:
    """Implements `firesteel.functions.AggregatingState`."""

    def __init__(self, kept: KeyedValue, function: AggregateFunction) -> None:
        self._kept = kept
        self._function = function

    def get(self) -> Any:
        kept = self._kept.value()
        return None if kept is None else self._function.get_result(copy.deepcopy(kept))

    def add(self, value: Any) -> None:
        kept = self._kept.value()
        # `add` may change it in place, and a snapshot may still have to write the stored one.
        before = self._function.create_accumulator() if kept is None else copy.deepcopy(kept)
        self._kept.update(self._function.add(value, before))

    def clear(self) -> None:
        self._kept.clear()
