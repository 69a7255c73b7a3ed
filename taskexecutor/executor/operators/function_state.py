"""The state classes of `firesteel.functions` on a keyed state backend.

A value with a schema is kept as a tuple that conforms to it, as those of a StatefulProcessor; one
of a single type as a tuple of one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, TypeAlias

from pyspark.errors import PySparkException
from pyspark.sql.types import DataType, StructField, StructType

from firesteel.common.error_report import summary_of
from firesteel.errors import FiresteelError
from firesteel.plan.ddl import parse_type
from taskexecutor.executor.operators.current_key import CurrentKey
from taskexecutor.executor.operators.stateful.shapes import Shape
from taskexecutor.executor.state import KeyedState


def entry_name(name: str) -> str:
    """The backend's name for a state of the program."""
    return f"user.{name}"


Schema: TypeAlias = str | DataType


class Values:
    """What values of a state, or keys of a map, are kept as. Without a schema: as they are."""

    declared: Any = None  # the columns, as Spark's JSON

    def taken(self, value: Any, call: str) -> Any:
        return value

    def given(self, kept: Any) -> Any:
        return kept


class DeclaredValues(Values):
    def __init__(self, schema: Schema, what: str) -> None:
        kind = _type(schema, what)
        self._single = not isinstance(kind, StructType)
        columns = StructType([StructField("value", kind)]) if self._single else kind
        self._shape = Shape(columns, what)
        self.declared = self._shape.schema.jsonValue()

    def taken(self, value: Any, call: str) -> Any:
        """Raises FiresteelError, naming the state, if it does not conform to the schema."""
        return self._shape.taken((value,) if self._single else value, call)

    def given(self, kept: Any) -> Any:
        value = self._shape.given(kept)
        return value[0] if self._single else value


def _type(schema: Schema, what: str) -> DataType:
    if isinstance(schema, DataType):
        return schema
    if not isinstance(schema, str):
        raise FiresteelError(
            f"{what}: its schema is a type or columns, such as 'BIGINT' or 'n BIGINT, at DATE', or"
            f" one of Spark's types, not {type(schema).__name__}"
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
        """`keys`: of a map."""
        self._backend = backend
        self._current = current
        self._name = name
        self._entry = entry_name(name)
        self._taken, self._given = values.taken, values.given
        self._taken_key, self._given_key = keys.taken, keys.given

    @property
    def _key(self) -> tuple[Any, ...]:
        return self._current.of(f"state {self._name!r}")

    def all_keys(self) -> list[Any]:
        """The keys of this subtask that have a value."""
        return [found.key for found in self._backend.entries(self._entry)]

    def _load(self) -> Any:
        return self._backend.get(self._entry, self._key)

    def clear(self) -> None:
        self._backend.remove(self._entry, self._key)


class KeyedValue(FunctionState):
    """See `firesteel.functions.ValueState`."""

    def value(self) -> Any:
        kept = self._load()
        return None if kept is None else self._given(kept)

    def update(self, value: Any) -> None:
        if value is None:
            self.clear()
        else:
            self._backend.put(self._entry, self._key, self._taken(value, "update()"))


class KeyedList(FunctionState):
    """See `firesteel.functions.ListState`."""

    def get(self) -> list[Any]:
        return list(map(self._given, self._load() or ()))

    def add(self, value: Any) -> None:
        self.add_all((value,))

    def add_all(self, values: Iterable[Any]) -> None:
        taken = [self._taken(value, "add()") for value in values]
        kept = self._backend.owned(self._entry, self._key, list)
        if kept is None:
            self._replace(taken)
        else:
            kept.extend(taken)

    def update(self, values: Iterable[Any]) -> None:
        self._replace([self._taken(value, "update()") for value in values])

    def _replace(self, taken: list[Any]) -> None:
        if taken:
            self._backend.put(self._entry, self._key, taken)
        else:
            self.clear()


class KeyedMap(FunctionState):
    """See `firesteel.functions.MapState`."""

    def get(self, key: Any) -> Any:
        kept = (self._load() or {}).get(self._taken_key(key, "get()"))
        return None if kept is None else self._given(kept)

    def put(self, key: Any, value: Any) -> None:
        key, value = self._taken_key(key, "put()"), self._taken(value, "put()")
        kept = self._backend.owned(self._entry, self._key, dict)
        if kept is None:
            self._backend.put(self._entry, self._key, {key: value})
        else:
            kept[key] = value

    def contains(self, key: Any) -> bool:
        return self._taken_key(key, "contains()") in (self._load() or {})

    def remove(self, key: Any) -> None:
        key = self._taken_key(key, "remove()")
        kept = self._backend.owned(self._entry, self._key, dict)
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
