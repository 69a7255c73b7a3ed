"""Reads the files of a FileSource on Spark: partition columns in their paths, and malformed rows.

A row is malformed if any of its columns does not fit the schema. By default Spark only parses the
columns that the plan needs, so that whether a row is malformed would depend on the downstream
operators; here all columns are parsed.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING
from urllib.parse import unquote

import pyarrow as pa

from firesteel.common.globs import is_pattern
from firesteel.connectors import MALFORMED_TAG, FileSource
from firesteel.connectors.file_source import CORRUPT_RECORD
from firesteel.errors import FiresteelError
from firesteel.operator import Output, RuntimeContext
from taskexecutor.executor.columnar.cached_plans.composed import column
from taskexecutor.executor.columnar.cached_plans.observations import RowObserver, observed
from taskexecutor.executor.columnar.jvm.transfer import collect
from taskexecutor.executor.columnar.schemas import from_ddl, to_arrow, to_spark

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, DataFrameReader, Row, SparkSession
    from pyspark.sql.types import StructType

_HIDDEN = "__file_source_metadata_col"  # Spark's mark in the metadata of a field
_MALFORMED = "_malformed"
DROPPED_COUNTER = "numMalformedRecordsDropped"
# Schema of the side output: the row's text and its file.
MALFORMED_SCHEMA = pa.schema([(CORRUPT_RECORD, pa.string()), ("path", pa.string())])


def read_files(
    session: SparkSession,
    source: FileSource,
    paths: list[str],
    schema: StructType | None,
    *,
    base: bool = True,
) -> DataFrame:
    """Returns the rows of the files. `base`: their folders have the same partition columns, which
    start below the source's path. Spark infers a missing `schema`; for CSV and JSON, that reads the
    files.
    """
    reader = file_reader(session, source)
    if schema is None:
        schema = declared_schema(source)
    if schema is not None:
        in_files = _in_files(source, schema)
        reader = reader.schema(_with_folders(source, in_files, paths[0]) if base else in_files)
    elif source.format == "csv":
        reader = reader.option("inferSchema", "true")
    elif source.format == "json" and source.malformed is not None:
        # Otherwise malformed rows add a column to the inferred schema.
        reader = reader.option("mode", "DROPMALFORMED")
    if base and (base_path := partition_base(source, paths[0])):
        reader = reader.option("basePath", base_path)
    return _declared(reader.options(**source.options).load(paths), schema)


def _declared(frame: DataFrame, schema: StructType | None) -> DataFrame:
    """Returns the declared columns in their order. Spark adds all columns given by folders, after
    those of the files.
    """
    if schema is None or frame.columns == schema.names:
        return frame
    return frame.select(*map(column, schema.names))


def _in_files(source: FileSource, schema: StructType) -> StructType:
    """Returns the schema without Spark's hidden column about a row's file. It is marked in the
    declared schema: files may have a column of that name.
    """
    from pyspark.sql.types import StructType

    declared = source.schema.fields if isinstance(source.schema, StructType) else ()
    hidden = {field.name for field in declared if _HIDDEN in field.metadata}
    return StructType([field for field in schema.fields if field.name not in hidden])


def declared_schema(source: FileSource) -> StructType | None:
    """Returns the declared schema. Raises FiresteelError, or Spark's ParseException, if it is
    invalid.
    """
    from pyspark.sql.types import StructType

    match source.schema:
        case None | StructType():
            return source.schema
        case str(text):
            return from_ddl(text)
        case pa.Schema() as schema:
            return to_spark(schema)
        case other:
            raise FiresteelError(
                "FileSource: a schema must be a DDL string, a StructType or a pyarrow.Schema, "
                f"not {type(other).__name__}"
            )


def file_reader(session: SparkSession, source: FileSource) -> DataFrameReader:
    """Returns a reader that takes paths literally: globs are already expanded, and file names may
    look like globs.
    """
    return session.read.format(source.format).option("__globPaths__", "false")


def partition_base(source: FileSource, path: str) -> str:
    """Returns the folder below which `key=value` folders are columns of the file; "" if there are
    none.

    Spark finds it when it reads a whole directory, but here each file is read separately.
    """
    folder = os.path.dirname(path)
    if "=" not in folder or "basePath" in source.options:
        return ""
    for root in source.paths:
        root = _fixed_part(root.removeprefix("file://"))
        if folder.startswith(root + os.sep) and "=" in folder[len(root) :]:
            return root
    return ""


def declared_base(source: FileSource) -> str:
    """Returns the option basePath, or ""."""
    for key, value in source.options.items():
        if key.lower() == "basepath":
            return value.removeprefix("file://")
    return ""


def _with_folders(source: FileSource, schema: StructType, path: str) -> StructType:
    """Adds the undeclared columns given by folders, as strings. With the type that Spark infers for
    one folder, it could not read the values of other folders.
    """
    from pyspark.sql.types import StringType, StructField, StructType

    base = partition_base(source, path) or declared_base(source)
    folders = os.path.relpath(os.path.dirname(path), base).split(os.sep) if base else []
    given = [unquote(folder.split("=")[0]) for folder in folders if "=" in folder]
    declared = {name.lower() for name in schema.names}
    others = [StructField(name, StringType()) for name in given if name.lower() not in declared]
    return StructType([*schema.fields, *others])


def _fixed_part(path: str) -> str:
    """Returns the part of a path or glob above the first folder that varies or is a partition."""
    while is_pattern(path) or "=" in os.path.basename(path):
        path = os.path.dirname(path)
    return path.rstrip(os.sep)


def first_malformed(
    session: SparkSession, source: FileSource, paths: list[str], schema: StructType
) -> Row | None:
    """Returns the text of a row that does not fit the schema, and its file; None if there is
    none.
    """
    return _malformed(read_all(session, source, paths, schema)).head()


class CheckedRows:
    """The rows of files of a source with `malformed`.

    `frame` holds the well-formed rows; when they have been read, `account` handles the malformed
    ones.
    """

    def __init__(
        self,
        source: FileSource,
        schema: StructType,
        rows: DataFrame,
        observer: RowObserver | None = None,
    ) -> None:
        """`rows`: see `read_all`."""
        self._source = source
        self._schema = schema
        self._observer = observer
        self._all = rows
        corrupt = column(CORRUPT_RECORD)
        rows = self._observed()
        self.frame = rows.where(
            self._failing(corrupt) if source.malformed == "fail" else corrupt.isNull()
        ).drop(CORRUPT_RECORD)

    def account(self, done: DataFrame, context: RuntimeContext, output: Output) -> None:
        """Called when `done`, a DataFrame built on `frame`, has run."""
        malformed, _ = observed(done, _MALFORMED) or (0, None)
        if not malformed:
            return
        if self._source.malformed == "drop":
            context.counter(DROPPED_COUNTER).inc(malformed)
        elif self._source.malformed == "side_output":
            # Reads the file again: malformed rows are rare, or the source is about to be fixed.
            rows = self.malformed
            for batch in collect(rows, to_arrow(rows.schema), context.plan_meter):
                emit_malformed(batch, output)

    @property
    def malformed(self) -> DataFrame:
        """Returns the malformed rows, for `emit_malformed`."""
        return _malformed(self._all)

    def _observed(self) -> DataFrame:
        from pyspark.sql import functions as sql

        corrupt = column(CORRUPT_RECORD)
        if self._observer is not None:
            return self._observer.malformed(self._all, corrupt.isNotNull(), self._all_columns())
        return self._all.observe(
            _MALFORMED, sql.count_if(corrupt.isNotNull()), sql.bool_and(self._all_columns())
        )

    def _all_columns(self) -> Column:
        """Returns an expression of all columns, so that Spark parses them; checking for null is
        cheap.
        """
        from functools import reduce

        return reduce(lambda a, b: a & b, (column(name).isNull() for name in self._schema.names))

    def _failing(self, corrupt: Column) -> Column:
        from pyspark.sql import functions as sql

        message = sql.concat(
            sql.lit("malformed row in "),
            _path(),
            sql.lit(": "),
            sql.substring(corrupt, 1, 200),
            sql.lit(
                f" (expected {self._expected()});"
                ' FileSource(malformed="drop") or "side_output" continues without such rows'
            ),
        )
        return sql.when(corrupt.isNull(), True).otherwise(sql.raise_error(message).cast("boolean"))

    def _expected(self) -> str:
        return ", ".join(
            f"{field.name} {field.dataType.simpleString()}" for field in self._schema.fields[:40]
        )


def emit_malformed(batch: pa.RecordBatch, output: Output) -> None:
    columns = batch.columns[: len(MALFORMED_SCHEMA)]
    output.emit_side(MALFORMED_TAG, pa.RecordBatch.from_arrays(columns, schema=MALFORMED_SCHEMA))


def _malformed(rows: DataFrame) -> DataFrame:
    """Returns the columns of MALFORMED_SCHEMA, and all others, so that Spark parses them."""
    corrupt = column(CORRUPT_RECORD)
    others = [column(name) for name in rows.columns if name != CORRUPT_RECORD]
    return rows.where(corrupt.isNotNull()).select(corrupt, _path().alias("path"), *others)


def _path() -> Column:
    """Returns the path of the row's file, which Spark holds as a URI."""
    from pyspark.sql import functions as sql

    uri = sql.url_decode(sql.replace(sql.input_file_name(), sql.lit("+"), sql.lit("%2B")))
    return sql.regexp_replace(uri, "^file:/+", "/")


def read_all(
    session: SparkSession, source: FileSource, paths: list[str], schema: StructType
) -> DataFrame:
    """Returns all rows, including malformed ones, whose column CORRUPT_RECORD is not null."""
    from pyspark.sql.types import StringType, StructField, StructType

    fields = [field for field in schema.fields if field.name != CORRUPT_RECORD]
    schema = StructType([*fields, StructField(CORRUPT_RECORD, StringType(), True)])
    reader = file_reader(session, source).schema(_with_folders(source, schema, paths[0]))
    reader = reader.options(**source.options)
    if base := partition_base(source, paths[0]):
        reader = reader.option("basePath", base)
    frame = (
        reader.option("mode", "PERMISSIVE")
        .option("columnNameOfCorruptRecord", CORRUPT_RECORD)
        .load(paths)
    )
    return _declared(frame, schema)
