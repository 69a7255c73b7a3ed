"""The values that a state variable may hold: tuples that conform to its declared schema.

PySpark sends values to the JVM and returns copies, with structs as Rows and timestamps as naive
datetimes of the local zone. Here values look the same, but flat ones without timestamps are shared
instead of copied, because they are immutable.
"""

from __future__ import annotations

import copy
import datetime
import decimal
from typing import Any

from pyspark.sql import Row
from pyspark.sql.streaming.stateful_processor_api_client import _load_numpy, _normalize_state_value
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    ByteType,
    DataType,
    DateType,
    DayTimeIntervalType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from firesteel.common.checkpoints.evolution import DEFAULT
from firesteel.errors import FiresteelError
from firesteel.plan.ddl import parse_ddl
from taskexecutor.executor.columnar.schemas import from_ddl

_load_numpy()  # otherwise PySpark's normalisation ignores NumPy scalars

_PYTHON_TYPES: dict[type[DataType], type] = {
    BooleanType: bool,
    ByteType: int,
    ShortType: int,
    IntegerType: int,
    LongType: int,
    FloatType: float,
    DoubleType: float,
    StringType: str,
    BinaryType: bytes,
    DateType: datetime.date,
    TimestampType: datetime.datetime,
    TimestampNTZType: datetime.datetime,
    DecimalType: decimal.Decimal,
    DayTimeIntervalType: datetime.timedelta,
}
# A default is JSON in the metadata of a column.
_WITH_DEFAULTS = (
    BooleanType,
    ByteType,
    ShortType,
    IntegerType,
    LongType,
    FloatType,
    DoubleType,
    StringType,
)
_MAX_KNOWN = 256  # combinations of types known to conform; nulls multiply them


class Shape:
    """The schema of a state variable's values, or of a map state's keys."""

    def __init__(self, schema: Any, what: str) -> None:
        self.schema = _struct_type(schema, what)
        for field in self.schema.fields:
            _check_default(field, what)
        kinds = [field.dataType for field in self.schema.fields]
        self.flat = all(type(kind) in _PYTHON_TYPES for kind in kinds)
        self._shared = self.flat and not any(isinstance(kind, TimestampType) for kind in kinds)
        self._what = what
        self._known: set[tuple[type, ...]] = set()

    def taken(self, value: Any, call: str) -> tuple[Any, ...]:
        """Returns `value` in its stored form. Raises FiresteelError, which names the state, if it
        does not conform to the schema.
        """
        if type(value) is tuple and tuple(map(type, value)) in self._known:
            return value
        return self._checked(value, call)

    def taken_key(self, key: Any, call: str) -> tuple[Any, ...]:
        """Returns a map state's key in its stored form, which must be hashable."""
        if not self.flat:
            raise FiresteelError(
                f"{self._what}: {self._shown()} cannot be keys of a map state: "
                "no arrays, maps or structs"
            )
        # PySpark would treat a string as a tuple of its characters.
        return self.taken((key,) if isinstance(key, str) else key, call)

    def given(self, value: tuple[Any, ...]) -> tuple[Any, ...]:
        """Returns a stored value as the program gets it: changing it does not change the state."""
        if self._shared:
            return value
        return tuple(
            _given(element, field.dataType)
            for element, field in zip(value, self.schema.fields, strict=True)
        )

    def _checked(self, value: Any, call: str) -> tuple[Any, ...]:
        fields = self.schema.fields
        if isinstance(value, dict):
            value = self._in_order(value, call)
        value = _by_name(value, self.schema)
        if not isinstance(value, tuple | list) or len(value) != len(fields):
            got = (
                f"{len(value)} values"
                if isinstance(value, tuple | list)
                else f"{type(value).__name__} {value!r:.100}"
            )
            raise FiresteelError(
                f"{self._what}: {call} takes a tuple of {len(fields)} or a dictionary "
                f"({self._shown()}), and got {got}"
            )
        try:
            kept = tuple(
                _kept(element, field.dataType, field.name)
                for element, field in zip(value, fields, strict=True)
            )
        except _Misfit as misfit:
            raise FiresteelError(f"{self._what}: {call}: {misfit}") from None
        unchanged = type(value) is tuple and all(
            new is old for new, old in zip(kept, value, strict=True)
        )
        if self._shared and unchanged and len(self._known) < _MAX_KNOWN:
            self._known.add(tuple(map(type, value)))
        return kept

    def _in_order(self, value: dict[Any, Any], call: str) -> tuple[Any, ...]:
        """Returns the values of a dictionary, which has the names of the schema."""
        names = self.schema.names
        if value.keys() != set(names):
            got = ", ".join(map(repr, value)) or "no names"
            raise FiresteelError(
                f"{self._what}: {call} takes a dictionary with the names of its schema "
                f"({self._shown()}), and got {got:.200}"
            )
        return tuple(value[name] for name in names)

    def _shown(self) -> str:
        return ", ".join(
            f"{field.name} {field.dataType.simpleString()}" for field in self.schema.fields
        )


class _Misfit(Exception):
    """A value does not conform to its type."""

    def __init__(self, value: Any, kind: DataType, name: str) -> None:
        super().__init__(
            f"{name!r} is {kind.simpleString()} and cannot hold "
            f"{type(value).__name__} {value!r:.100}"
        )


def _kept(value: Any, kind: DataType, name: str) -> Any:
    """Returns a value in its stored form: plain Python objects that share nothing mutable with the
    caller.
    """
    if isinstance(kind, StructType):
        value = _by_name(value, kind)  # before PySpark's normalisation removes the names
    value = _normalize_state_value(value)
    if value is None:
        return None
    match kind:
        case ArrayType():
            if not isinstance(value, list | tuple):
                raise _Misfit(value, kind, name)
            return [_kept(element, kind.elementType, name) for element in value]
        case MapType():
            if not isinstance(value, dict):
                raise _Misfit(value, kind, name)
            return {
                _kept(key, kind.keyType, name): _kept(item, kind.valueType, name)
                for key, item in value.items()
            }
        case StructType():
            return Row(*kind.names)(
                *(_kept(v, f.dataType, f"{name}.{f.name}") for v, f in _parts(value, kind, name))
            )
        case _:
            return _plain(value, kind, name)


def _parts(value: Any, kind: StructType, name: str) -> list[tuple[Any, StructField]]:
    if isinstance(value, dict):
        return [(value.get(field.name), field) for field in kind.fields]
    if not isinstance(value, list | tuple) or len(value) != len(kind.fields):
        raise _Misfit(value, kind, name)
    return list(zip(value, kind.fields, strict=True))


def _by_name(value: Any, kind: StructType) -> Any:
    """Returns the values of a Row or named tuple in the order of `kind` if it has the same names.
    Other values, and Rows with other names, are matched by position, as in PySpark.
    """
    named = getattr(value, "__fields__", None) or getattr(value, "_fields", None)
    names = kind.names
    if not named or not isinstance(value, tuple) or list(named) == names:
        return value
    if len(named) != len(value) or sorted(named) != sorted(names):
        return value
    by_name = dict(zip(named, value, strict=True))
    return tuple(by_name[name] for name in names)


def _plain(value: Any, kind: DataType, name: str) -> Any:
    fits = _PYTHON_TYPES.get(type(kind))
    if fits is None:
        return copy.deepcopy(value)
    if isinstance(value, fits) and (fits is not int or not isinstance(value, bool)):
        if fits is datetime.date and isinstance(value, datetime.datetime):
            return value.date()
        if isinstance(kind, TimestampType) and isinstance(value, datetime.datetime):
            return value if value.tzinfo is datetime.UTC else value.astimezone(datetime.UTC)
        return value
    if fits is float and isinstance(value, int | decimal.Decimal):
        return float(value)
    if fits is decimal.Decimal and isinstance(value, int) and not isinstance(value, bool):
        return decimal.Decimal(value)
    if fits is bytes and isinstance(value, bytearray | memoryview):
        return bytes(value)
    if fits is int and isinstance(value, float) and value.is_integer():
        return int(value)  # pandas turns integers into floats
    raise _Misfit(value, kind, name)


def _given(value: Any, kind: DataType) -> Any:
    if value is None:
        return None
    match kind:
        case TimestampType():
            return value.astimezone().replace(tzinfo=None)
        case ArrayType():
            return [_given(element, kind.elementType) for element in value]
        case MapType():
            return {
                _given(key, kind.keyType): _given(item, kind.valueType)
                for key, item in value.items()
            }
        case StructType():
            return Row(*kind.names)(
                *(_given(v, f.dataType) for v, f in zip(value, kind.fields, strict=True))
            )
        case _:
            return value if type(kind) in _PYTHON_TYPES else copy.deepcopy(value)


def _check_default(field: StructField, what: str) -> None:
    """Checks the default of a column that a checkpoint may not have yet."""
    if DEFAULT not in (field.metadata or {}):
        return
    value, kind = field.metadata[DEFAULT], field.dataType
    if value is None:
        return
    if not isinstance(kind, _WITH_DEFAULTS):
        raise FiresteelError(
            f"{what}: {field.name!r} is {kind.simpleString()}; only numbers, strings and booleans"
            " can have a default; let it be null, and handle null in the program"
        )
    try:
        _plain(value, kind, field.name)
    except _Misfit as misfit:
        raise FiresteelError(f"{what}: the default of {misfit}") from None


def _struct_type(schema: Any, what: str) -> StructType:
    if isinstance(schema, StructType):
        return schema
    if isinstance(schema, str):
        return parse_ddl(schema) or from_ddl(schema)
    raise FiresteelError(
        f"{what}: its schema must be a StructType or a DDL string, not {type(schema).__name__}"
    )
