"""Converts rows of a program to Arrow tables with Spark's types, as `spark.createDataFrame` reads
them.

PySpark's own functions infer the schema, verify the rows and convert them; none of them needs a
JVM. Times without zone are local to the program's machine in rows, and to the session's time zone
in pandas and Arrow data, as in PySpark.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from firesteel.column_names import check_valid
from firesteel.connectors.table_source import arrow_schema, spark_types
from firesteel.errors import InvalidProgram
from firesteel.plan.ddl import parse_type

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import DataType, StructType

_BATCH_BYTES = 1024 * 1024
_BATCH_ROWS = 10_000
_LEAST_BATCHES = 16  # of a table with at least this many rows
_SCALARS = (bool, int, float, str, bytes, bytearray)


class LocalTable(NamedTuple):
    table: pa.Table
    schema: StructType
    localize: bool = False  # its timestamps without zone are local to the session's time zone
    ambiguous: Literal["raise", "latest"] = "raise"  # how to resolve local times that occur twice


def table_of_rows(rows: Iterable[Any], schema: Any, *, prefer_ntz: bool) -> LocalTable:
    """Converts rows: tuples, lists, dicts, Rows, objects, or single values of one column "value".

    `schema` is a DDL string, a type, a StructType, an Arrow schema, a list of column names, or
    None, which infers it. Raises InvalidProgram.
    """
    from pyspark.errors import PySparkException
    from pyspark.sql.conversion import LocalDataToArrowConversion
    from pyspark.sql.types import _make_type_verifier

    what = "from_collection"
    data = _listed(rows)
    declared = _declared(what, schema)
    if declared is None:
        if not data:
            raise InvalidProgram(f"{what}() got no rows; pass a schema")
        names = _names(what, schema)
        if any(map(_is_scalar, data)):
            data, names = [(value,) for value in data], names or ["value"]
        struct = _inferred(what, data, names, prefer_ntz)
    else:
        struct, wrapped = declared
        data = [(value,) for value in data] if wrapped else data
        verify = _make_type_verifier(struct, name="row")
        for number, row in enumerate(data):
            try:
                verify(row)
            except (PySparkException, TypeError, ValueError) as error:
                raise InvalidProgram(f"{what}(): row {number}, {row!r:.200}: {error}") from None
    try:
        arrow = arrow_schema(struct)
    except InvalidProgram as error:
        raise InvalidProgram(f"{what}(): {error}") from error
    if not data:
        return LocalTable(arrow.empty_table(), struct)
    try:
        table = LocalDataToArrowConversion.convert(data, struct, False)
    except Exception as error:
        raise InvalidProgram(
            f"{what}(): the rows do not fit the schema {struct.simpleString()}:"
            f" {type(error).__name__}: {error}"
        ) from error
    return LocalTable(table, struct)


def table_of_frame(frame: Any, schema: Any, *, prefer_ntz: bool) -> LocalTable:
    """Converts a pandas DataFrame without its index. Raises InvalidProgram."""
    import pandas as pd
    import pyarrow as pa

    what = "from_pandas"
    if not isinstance(frame, pd.DataFrame):
        raise InvalidProgram(f"{what}() takes a pandas.DataFrame, not {type(frame).__name__}")
    frame = frame.copy(deep=False)
    frame.columns = pd.Index([str(name) for name in frame.columns])
    _check_names(what, list(frame.columns))
    try:
        table = pa.Table.from_pandas(frame, preserve_index=False)
    except (pa.ArrowException, TypeError, ValueError) as error:
        raise InvalidProgram(f"{what}(): {error}") from error
    return _of_table(what, table.replace_schema_metadata(), schema, prefer_ntz, ambiguous="latest")


def table_of_arrow(data: Any, schema: Any, *, prefer_ntz: bool) -> LocalTable:
    """Converts a pyarrow Table, RecordBatch or RecordBatchReader. Raises InvalidProgram."""
    import pyarrow as pa

    what = "from_arrow"
    match data:
        case pa.Table():
            table = data
        case pa.RecordBatch():
            table = pa.Table.from_batches([data])
        case pa.RecordBatchReader():
            table = data.read_all()
        case _:
            raise InvalidProgram(
                f"{what}() takes a pyarrow.Table, RecordBatch or RecordBatchReader,"
                f" not {type(data).__name__}"
            )
    _check_names(what, table.schema.names)
    return _of_table(what, table, schema, prefer_ntz, ambiguous="raise")


def written(table: pa.Table, target: Path | pa.BufferOutputStream) -> int:
    """Writes the table as an Arrow IPC file, in batches that several subtasks can share. Returns
    the number of batches.
    """
    import pyarrow as pa

    row_bytes = max(1, table.nbytes // max(1, table.num_rows))
    rows = min(_BATCH_BYTES // row_bytes, _BATCH_ROWS, -(-table.num_rows // _LEAST_BATCHES))
    batches = table.to_batches(max_chunksize=max(1, rows))
    options = pa.ipc.IpcWriteOptions(compression="zstd")
    sink = str(target) if isinstance(target, Path) else target
    with pa.ipc.new_file(sink, table.schema, options=options) as writer:
        for batch in batches:
            writer.write_batch(batch)
    return len(batches)


def _of_table(
    what: str,
    table: pa.Table,
    schema: Any,
    prefer_ntz: bool,
    *,
    ambiguous: Literal["raise", "latest"],
) -> LocalTable:
    declared = _declared(what, schema)
    if declared is not None:
        struct, _ = declared
        names = struct.names
    else:
        names = _names(what, schema) or table.schema.names
        struct = None
    if len(names) != table.num_columns:
        raise InvalidProgram(
            f"{what}(): the schema has {len(names)} columns ({', '.join(names)}), but the data has"
            f" {table.num_columns} ({', '.join(table.schema.names)})"
        )
    if names != table.schema.names and set(names) == set(table.schema.names):
        raise InvalidProgram(
            f"{what}(): columns are matched by position, and the schema has a different order"
            f" ({', '.join(names)}) than the data ({', '.join(table.schema.names)})"
        )
    table = table.rename_columns(names).unify_dictionaries()
    struct = struct or _inferred_of_table(what, table, prefer_ntz)
    try:
        converted = spark_types(table, struct, "UTC", ambiguous=ambiguous)
    except InvalidProgram as error:
        raise InvalidProgram(f"{what}(): {error}") from error
    for field, column in zip(struct.fields, converted.columns, strict=True):
        if column.null_count and not field.nullable:
            raise InvalidProgram(f"{what}(): column {field.name!r} is NOT NULL but has nulls")
    if any(_is_local(field.type) for field in table.schema) and any(
        _has_zone(field.type) for field in converted.schema
    ):
        return LocalTable(table, struct, localize=True, ambiguous=ambiguous)
    return LocalTable(converted, struct)


def _inferred_of_table(what: str, table: pa.Table, prefer_ntz: bool) -> StructType:
    from pyspark.errors import PySparkException
    from pyspark.sql.pandas.types import from_arrow_type
    from pyspark.sql.types import StructType

    struct = StructType()
    for field in table.schema:
        kind = field.type.value_type if _is_dictionary(field.type) else field.type
        try:
            struct.add(field.name, from_arrow_type(kind, prefer_ntz), field.nullable)
        except (PySparkException, TypeError) as error:
            raise InvalidProgram(
                f"{what}(): column {field.name!r} is {field.type}, which Spark has no type for;"
                " pass a schema with the desired type"
            ) from error
    _check_determined(what, struct)
    return struct


def _inferred(what: str, data: list[Any], names: list[str] | None, prefer_ntz: bool) -> StructType:
    from pyspark.errors import PySparkException
    from pyspark.sql.types import _infer_schema, _merge_type

    try:
        struct: Any = reduce(
            _merge_type,
            (_infer_schema(row, names, prefer_timestamp_ntz=prefer_ntz) for row in data),
        )
    except (PySparkException, TypeError, ValueError) as error:
        raise InvalidProgram(
            f"{what}(): no schema can be inferred from the rows; pass a schema: {error}"
        ) from error
    if names is not None and len(names) > len(struct.fields):
        raise InvalidProgram(
            f"{what}(): there are {len(names)} column names ({', '.join(names)}), but the rows"
            f" have {len(struct.fields)} values"
        )
    for place, name in enumerate(names or ()):
        struct.fields[place].name = struct.names[place] = name
    _check_determined(what, struct)
    return struct  # type: ignore[no-any-return]


def _check_determined(what: str, struct: StructType) -> None:
    from pyspark.sql.types import _has_nulltype

    for field in struct.fields:
        if _has_nulltype(field.dataType):
            raise InvalidProgram(
                f"{what}(): column {field.name!r} contains only nulls, or empty lists or maps, so"
                " its type is unknown; pass a schema"
            )


def _declared(what: str, schema: Any) -> tuple[StructType, bool] | None:
    """Returns the declared columns, and whether rows are single values of one column. Returns None
    if columns are inferred.
    """
    import pyarrow as pa
    from pyspark.errors import PySparkException
    from pyspark.sql.pandas.types import from_arrow_schema
    from pyspark.sql.types import DataType, StructType

    if schema is None or isinstance(schema, list | tuple):
        return None
    kind: DataType | None
    if isinstance(schema, str):
        kind = parse_type(schema)
        if kind is None:
            raise InvalidProgram(
                f"{what}(): the schema {schema!r} does not parse; write it as"
                ' "id BIGINT, name STRING", or pass a StructType'
            )
    elif isinstance(schema, pa.Schema):
        try:
            kind = from_arrow_schema(schema, prefer_timestamp_ntz=True)
        except PySparkException as error:
            raise InvalidProgram(f"{what}(): the schema {schema}: {error}") from error
    elif isinstance(schema, DataType):
        kind = schema
    else:
        raise InvalidProgram(
            f"{what}(): a schema must be a DDL string, a StructType, a pyarrow.Schema or a list of"
            f" names, not {type(schema).__name__}"
        )
    if isinstance(kind, StructType):
        _check_names(what, kind.names)
        return kind, False
    return StructType().add("value", kind), True


def _names(what: str, schema: Any) -> list[str] | None:
    if schema is None:
        return None
    for name in schema:
        if not isinstance(name, str):
            raise InvalidProgram(
                f"{what}(): a list as schema must contain names of columns, not {name!r}"
            )
    _check_names(what, schema)
    return list(schema)


def _listed(rows: Any) -> list[Any]:
    refused = f"from_collection() takes a list of rows, not {type(rows).__name__}"
    if type(rows).__module__.split(".")[0] in ("pandas", "polars", "pyarrow"):
        raise InvalidProgram(f"{refused}; use from_pandas() or from_arrow()")
    if isinstance(rows, str | bytes | dict) or not isinstance(rows, Iterable):
        raise InvalidProgram(refused)
    return list(rows)


def _is_scalar(value: Any) -> bool:
    import datetime
    import decimal

    return isinstance(
        value,
        (*_SCALARS, decimal.Decimal, datetime.date, datetime.time, datetime.timedelta),
    )


def _check_names(what: str, names: Sequence[str]) -> None:
    try:
        check_valid(names)
    except InvalidProgram as error:
        raise InvalidProgram(f"{what}(): {error}") from None
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise InvalidProgram(f"{what}(): there are two columns {twice[0]!r}; rename one of them")


def _is_dictionary(kind: pa.DataType) -> bool:
    import pyarrow as pa

    return bool(pa.types.is_dictionary(kind))


def _is_local(kind: pa.DataType) -> bool:
    """Whether the type contains a timestamp without zone, at any depth."""
    return "timestamp[" in str(kind) and any(
        "tz=" not in part.split("]")[0] for part in str(kind).split("timestamp[")[1:]
    )


def _has_zone(kind: pa.DataType) -> bool:
    return "tz=" in str(kind)
