"""Converts schemas between Arrow and Spark: once per operator, never per batch.

Tasks exchange canonical Arrow schemas: those of Spark's own `to_arrow_schema`, with timestamps with
a zone as timestamp[us, UTC], all top-level fields nullable, and no metadata.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from firesteel.column_names import check_valid_fields, column_index
from firesteel.errors import FiresteelError

if TYPE_CHECKING:
    from pyspark.sql.types import DataType, StructType


def to_arrow(schema: StructType) -> pa.Schema:
    """Converts a schema to Arrow. Raises FiresteelError that names the column for types without an
    Arrow form.
    """
    from pyspark.sql.pandas.types import to_arrow_type

    check_valid_fields(schema)
    fields = []
    for field in schema.fields:
        if _is_collated(field.dataType):
            raise FiresteelError(
                f"column {field.name!r} is {field.dataType.simpleString()}, but strings are sent "
                "between tasks without their collation, so equal ones would be different keys; "
                f"use the default collation: collate({field.name}, 'UTF8_BINARY')"
            )
        try:
            fields.append(
                pa.field(field.name, to_arrow_type(field.dataType, timezone="UTC"), nullable=True)
            )
        except Exception as error:
            raise FiresteelError(
                f"column {field.name!r} is {field.dataType.simpleString()}, "
                "which cannot be sent between tasks; cast or drop it"
            ) from error
    return pa.schema(fields)


def _is_collated(kind: DataType) -> bool:
    """Returns whether it contains strings that are not compared by their bytes."""
    from pyspark.sql.types import ArrayType, MapType, StringType, StructType

    match kind:
        case StringType():
            return not kind.isUTF8BinaryCollation()
        case ArrayType():
            return _is_collated(kind.elementType)
        case MapType():
            return _is_collated(kind.keyType) or _is_collated(kind.valueType)
        case StructType():
            return any(_is_collated(field.dataType) for field in kind.fields)
    return False


def to_spark(schema: pa.Schema) -> StructType:
    """Converts a schema to Spark. Raises FiresteelError that names the column for types that Spark
    lacks.
    """
    from pyspark.sql.pandas.types import from_arrow_type
    from pyspark.sql.types import StructField, StructType

    fields = []
    for field in schema:
        try:
            fields.append(
                StructField(
                    field.name,
                    from_arrow_type(field.type, prefer_timestamp_ntz=True),
                    nullable=True,
                )
            )
        except Exception as error:
            raise FiresteelError(
                f"column {field.name!r} is {field.type}, for which Spark has no type; "
                "cast or drop it"
            ) from error
    return StructType(fields)


def columns_of_key(schema: pa.Schema | None, names: Sequence[str]) -> Any:
    """Returns the key columns as Spark's JSON; None if they are unknown."""
    if schema is None or any(column_index(schema, name) < 0 for name in names):
        return None
    return to_spark(pa.schema([schema.field(column_index(schema, n)) for n in names])).jsonValue()


def declared(schema: Any, otherwise: pa.Schema | None) -> pa.Schema | None:
    """Returns the Arrow schema that a program declares: a DDL string, a StructType, an Arrow
    schema, or None for `otherwise`.

    Dictionary columns are declared with their value types. Parsing DDL needs a Spark session in
    this process.
    """
    from pyspark.sql.types import StructType

    if schema is None:
        return otherwise
    if isinstance(schema, pa.Schema):
        return pa.schema([pa.field(field.name, decoded(field.type)) for field in schema])
    if isinstance(schema, StructType):
        return to_arrow(schema)
    if isinstance(schema, str):
        return to_arrow(from_ddl(schema))
    raise FiresteelError(
        "a schema must be a DDL string, a StructType or a pyarrow.Schema, not "
        f"{type(schema).__name__}"
    )


def decoded(kind: pa.DataType) -> pa.DataType:
    """Returns the type without dictionaries at any depth, for which Spark has no type."""
    if pa.types.is_dictionary(kind):
        return decoded(kind.value_type)
    if pa.types.is_struct(kind):
        return pa.struct(
            [
                part.with_type(decoded(part.type))
                for part in (kind.field(i) for i in range(kind.num_fields))
            ]
        )
    if pa.types.is_map(kind):
        return pa.map_(decoded(kind.key_type), kind.item_field.with_type(decoded(kind.item_type)))
    if pa.types.is_list(kind):
        return pa.list_(kind.value_field.with_type(decoded(kind.value_type)))
    if pa.types.is_large_list(kind):
        return pa.large_list(kind.value_field.with_type(decoded(kind.value_type)))
    return kind


def from_ddl(text: str) -> StructType:
    """Parses DDL. Raises FiresteelError for text that names a type but no columns, and Spark's
    ParseException for text that does not parse.
    """
    from pyspark.sql.types import StructType

    schema = StructType.fromDDL(text)
    if not isinstance(schema, StructType):
        raise FiresteelError(
            f"schema {text!r} names no columns; "
            'write, for example, "origin STRING, dep_delay DOUBLE"'
        )
    return schema


def conform(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Returns `batch` with exactly `schema`: columns are matched by position, and cast if only the
    representation differs.
    """
    if batch.schema == schema or not batch.num_columns:
        return batch
    return conformed(batch.columns, schema)


def conformed(columns: Sequence[pa.Array], schema: pa.Schema) -> pa.RecordBatch:
    """Returns a batch of at least one column, like `conform`."""
    fitting = [
        column if column.type == field.type else column.cast(field.type)
        for column, field in zip(columns, schema, strict=True)
    ]
    return pa.RecordBatch.from_arrays(fitting, schema=schema)


def shown(schema: pa.Schema | None, limit: int = 40) -> str:
    """Describes a schema for messages: `origin string, dep_delay double`."""
    if schema is None:
        return "(unknown)"
    words = [f"{field.name} {field.type}" for field in list(schema)[:limit]]
    return ", ".join(words) + (", ..." if len(schema) > limit else "")


def spark_name(kind: pa.DataType) -> str:
    """Returns the type's name in Spark SQL, such as `timestamp_ntz`."""
    from pyspark.sql.pandas.types import from_arrow_type

    return str(from_arrow_type(kind).simpleString())


def fits_parquet(schema: pa.Schema) -> bool:
    """Returns whether a Parquet file can carry rows of this schema to Spark unchanged."""
    return all(_fits_parquet(field.type) for field in schema) and len(schema) > 0


def _fits_parquet(kind: pa.DataType) -> bool:
    if pa.types.is_struct(kind):
        return kind.num_fields > 0 and all(
            _fits_parquet(kind.field(i).type) for i in range(kind.num_fields)
        )
    if pa.types.is_map(kind):
        return _fits_parquet(kind.key_type) and _fits_parquet(kind.item_type)
    if pa.types.is_list(kind):
        return _fits_parquet(kind.value_type)
    return any(check(kind) for check in _FLAT_TYPES)


_FLAT_TYPES = (
    pa.types.is_boolean,
    pa.types.is_signed_integer,
    pa.types.is_float32,
    pa.types.is_float64,
    pa.types.is_decimal128,
    pa.types.is_string,
    pa.types.is_binary,
    pa.types.is_date32,
    lambda kind: pa.types.is_timestamp(kind) and kind.unit == "us",
)


def missing_column(what: str, column: str, columns: Sequence[str]) -> FiresteelError:
    import difflib

    near = difflib.get_close_matches(column, columns, n=1, cutoff=0.5)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    return FiresteelError(f"{what}: no such column; the stream has: {', '.join(columns)}{hint}")


def is_plain(kind: pa.DataType) -> bool:
    """Returns whether Arrow and Spark read values of the type alike."""
    return (
        pa.types.is_string(kind)
        or pa.types.is_signed_integer(kind)
        or pa.types.is_float32(kind)
        or pa.types.is_float64(kind)
        or pa.types.is_boolean(kind)
        or pa.types.is_date32(kind)
        or pa.types.is_decimal128(kind)
        or (pa.types.is_timestamp(kind) and kind.unit == "us" and kind.tz in (None, "UTC"))
    )
