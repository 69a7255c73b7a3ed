"""What a state variable may hold: tuples that conform to the schema it was declared with.

PySpark pickles what it is given and hands out copies. Here flat values are shared, because nothing in them can be changed;
lists, dictionaries and rows inside a value are copied on the way in and on the way out.
"""

from __future__ import annotations

import copy
import datetime
import decimal
from typing import Any

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
    StructType,
    TimestampNTZType,
    TimestampType,
)

from firesteel.errors import FiresteelError
from firesteel.plan.ddl import parse_ddl
from taskexecutor.executor.spark.schemas import from_ddl

_load_numpy()  # without it, PySpark's normalisation leaves numpy's scalars as they are

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
_MAX_KNOWN = 256  # combinations of types that are known to be right; nulls make for many


class Shape:
    """The schema of a state variable's values, or of a map state's keys."""

    def __init__(self, schema: Any, what: str) -> None:
        self.schema = _struct_type(schema, what)
        self.flat = all(_is_flat(field.dataType) for field in self.schema.fields)
        self._what = what
        self._known: set[tuple[type, ...]] = set()

    def taken(self, value: Any, call: str) -> tuple[Any, ...]:
        """`value` as it is kept. Raises FiresteelError, naming the state, for what its schema does not allow."""
        if type(value) is tuple and tuple(map(type, value)) in self._known:
            return value
        return self._checked(value, call)

    def taken_key(self, key: Any, call: str) -> tuple[Any, ...]:
        """A map state's key; it must be one that can be looked up."""
        if not self.flat:
            raise FiresteelError(f"{self._what}: {self._shown()} cannot be keys of a map state: no arrays, maps or structs")
        return self.taken(key, call)

    def given(self, value: tuple[Any, ...]) -> tuple[Any, ...]:
        """`value` as it is handed out: changing it changes nothing here."""
        return value if self.flat else copy.deepcopy(value)

    def _checked(self, value: Any, call: str) -> tuple[Any, ...]:
        fields = self.schema.fields
        if not isinstance(value, tuple | list) or len(value) != len(fields):
            got = f"{len(value)} values" if isinstance(value, tuple | list) else f"{type(value).__name__} {value!r:.100}"
            raise FiresteelError(f"{self._what}: {call} takes a tuple of {len(fields)} ({self._shown()}), and got {got}")
        kept = tuple(
            self._element(element, field.dataType, field.name, call) for element, field in zip(value, fields, strict=True)
        )
        unchanged = type(value) is tuple and all(new is old for new, old in zip(kept, value, strict=True))
        if self.flat and unchanged and len(self._known) < _MAX_KNOWN:
            self._known.add(tuple(map(type, value)))
        return kept

    def _element(self, value: Any, kind: DataType, name: str, call: str) -> Any:
        if value is None:
            return None
        value = _normalize_state_value(value)
        fits = _PYTHON_TYPES.get(type(kind))
        if fits is None:
            return copy.deepcopy(value)
        if isinstance(value, fits) and (fits is not int or not isinstance(value, bool)):
            if fits is datetime.date and isinstance(value, datetime.datetime):
                return value.date()
            return value
        if fits is float and isinstance(value, int | decimal.Decimal):
            return float(value)
        if fits is decimal.Decimal and isinstance(value, int) and not isinstance(value, bool):
            return decimal.Decimal(value)
        if fits is bytes and isinstance(value, bytearray | memoryview):
            return bytes(value)
        if fits is int and isinstance(value, float) and value.is_integer():
            return int(value)  # what pandas makes of whole numbers
        raise FiresteelError(
            f"{self._what}: {call}: {name!r} is {kind.simpleString()} and cannot hold {type(value).__name__} {value!r:.100}"
        )

    def _shown(self) -> str:
        return ", ".join(f"{field.name} {field.dataType.simpleString()}" for field in self.schema.fields)


def _struct_type(schema: Any, what: str) -> StructType:
    if isinstance(schema, StructType):
        return schema
    if isinstance(schema, str):
        return parse_ddl(schema) or from_ddl(schema)
    raise FiresteelError(f"{what}: its schema is a StructType or a DDL string, not {type(schema).__name__}")


def _is_flat(kind: DataType) -> bool:
    return not isinstance(kind, ArrayType | MapType | StructType) and type(kind) in _PYTHON_TYPES
