"""Common parts of states as tables, and the conversion of Spark's values to Arrow's."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import pyarrow as pa

from firesteel.errors import FiresteelError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import DataType, StructField

TIME = pa.timestamp("us", "UTC")


class StateTable(Protocol):
    @property
    def kind(self) -> str: ...

    @property
    def meaning(self) -> Mapping[str, str]: ...

    def to_arrow(self) -> pa.Table: ...

    def to_spark(self, spark: SparkSession) -> DataFrame: ...


class ValuesTable:
    """A table of values without declared types: Arrow infers them. Subclasses provide the
    values.
    """

    kind: str
    meaning: Mapping[str, str] = {}

    def columns(self) -> Mapping[str, Sequence[Any]]:
        raise NotImplementedError

    def to_arrow(self) -> pa.Table:
        arrays: dict[str, pa.Array] = {}
        for name, values in self.columns().items():
            try:
                arrays[name] = pa.array(values)
            except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError):
                # Values have several types, or are of the program's classes.
                arrays[name] = pa.array([None if v is None else repr(v) for v in values])
        return pa.table(arrays)

    def to_spark(self, spark: SparkSession) -> DataFrame:
        return spark.createDataFrame(self.to_arrow())


def fields_of(columns: Any) -> list[StructField]:
    """Returns the fields of columns, which are given as Spark's JSON."""
    from pyspark.sql.types import StructType

    return list(StructType.fromJson(columns).fields)


def arrow_type(kind: DataType) -> pa.DataType:
    from pyspark.sql.pandas.types import to_arrow_type

    return to_arrow_type(kind, timezone="UTC")


def array_of(values: Iterable[Any], kind: DataType) -> pa.Array:
    """Converts values of a state to an Arrow array."""
    return pa.array([_plain(value, kind) for value in values], arrow_type(kind))


def _plain(value: Any, kind: DataType) -> Any:
    from pyspark.sql.types import ArrayType, MapType, StructType

    if value is None:
        return None
    match kind:
        case ArrayType():
            return [_plain(item, kind.elementType) for item in value]
        case MapType():
            return [
                (_plain(key, kind.keyType), _plain(item, kind.valueType))
                for key, item in value.items()
            ]
        case StructType():
            return {
                field.name: _plain(item, field.dataType)
                for field, item in zip(kind.fields, value, strict=True)
            }
    return value


def unique(names: Iterable[str], prefix: str, taken: Iterable[str]) -> list[str]:
    """Returns the names, with the prefix added where a name is taken."""
    used = {name.lower() for name in taken}
    chosen = []
    for name in names:
        while name.lower() in used:
            name = prefix + name
        used.add(name.lower())
        chosen.append(name)
    return chosen


def cannot_import(what: str, error: Exception) -> FiresteelError:
    return FiresteelError(
        f"{what} has values of a class that cannot be imported here: {error}. Run this where the"
        " program's modules are on the path (PYTHONPATH)"
    )
