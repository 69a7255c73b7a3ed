"""How FileSource reads its files on Spark: partition columns in their paths, and malformed rows.

A row is malformed if any of its columns does not fit the schema. Spark by itself only parses the
columns that the plan needs, so whether a row is malformed would depend on the operators that
follow; here all columns are parsed.
"""

from __future__ import annotations

import glob
import os
from typing import TYPE_CHECKING

import pyarrow as pa

from firesteel.connectors import MALFORMED_TAG, FileSource
from firesteel.connectors.file_source import CORRUPT_RECORD
from firesteel.errors import FiresteelError
from firesteel.operator import Output, RuntimeContext
from taskexecutor.executor.spark.observations import observed
from taskexecutor.executor.spark.plans import column
from taskexecutor.executor.spark.schemas import from_ddl, to_spark

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, DataFrameReader, SparkSession
    from pyspark.sql.types import StructType

_MALFORMED = "_malformed"
DROPPED_COUNTER = "numMalformedRecordsDropped"
# Of the side output: the row's text and its file.
MALFORMED_SCHEMA = pa.schema([(CORRUPT_RECORD, pa.string()), ("path", pa.string())])


def read_files(
    session: SparkSession, source: FileSource, paths: str | list[str], schema: StructType | None
) -> DataFrame:
    """The rows of the files. Spark infers a missing `schema`; for CSV and JSON, that reads them."""
    reader = file_reader(session, source)
    if schema is None:
        schema = declared_schema(source)
    if schema is not None:
        reader = reader.schema(schema)
    elif source.format == "csv":
        reader = reader.option("inferSchema", "true")
    elif source.format == "json" and source.malformed is not None:
        # Otherwise malformed rows add a column to the inferred schema.
        reader = reader.option("mode", "DROPMALFORMED")
    if isinstance(paths, str) and (base := partition_base(source, paths)):
        reader = reader.option("basePath", base)
    return reader.options(**source.options).load(paths)


def declared_schema(source: FileSource) -> StructType | None:
    """Raises FiresteelError, or Spark's ParseException, if the schema is invalid."""
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
                "FileSource: a schema is a DDL string, a StructType or a pyarrow.Schema, "
                f"not {type(other).__name__}"
            )


def file_reader(session: SparkSession, source: FileSource) -> DataFrameReader:
    """Takes paths literally: globs are expanded already, and file names may look like globs."""
    return session.read.format(source.format).option("__globPaths__", "false")


def partition_base(source: FileSource, path: str) -> str:
    """The folder below which `key=value` folders are columns of the file; "" if there are none.

    Spark finds it when it reads a whole directory, but here each file is read by itself.
    """
    folder = os.path.dirname(path)
    if "=" not in folder or "basePath" in source.options:
        return ""
    for root in source.paths:
        root = _fixed_part(root.removeprefix("file://"))
        if folder.startswith(root + os.sep) and "=" in folder[len(root) :]:
            return root
    return ""


def _fixed_part(path: str) -> str:
    """The part of a path or glob above the first folder that varies or is a partition."""
    while glob.has_magic(path) or "=" in os.path.basename(path):
        path = os.path.dirname(path)
    return path.rstrip(os.sep)


def first_malformed(
    session: SparkSession, source: FileSource, path: str, schema: StructType
) -> str | None:
    """The text of a row that does not fit the schema; None if there is none."""
    rows = _with_corrupt_record(session, source, path, schema)
    found = rows.where(column(CORRUPT_RECORD).isNotNull()).head()
    return None if found is None else found[CORRUPT_RECORD][:200]


class CheckedRows:
    """One split of a source with `malformed`.

    `frame` has the good rows; when they have been read, `account` handles the malformed ones.
    """

    def __init__(
        self, session: SparkSession, source: FileSource, path: str, schema: StructType
    ) -> None:
        from pyspark.sql import functions as sql

        self._source = source
        self._path = path
        self._schema = schema
        self._session = session
        corrupt = column(CORRUPT_RECORD)
        rows = self._rows().observe(
            _MALFORMED, sql.count_if(corrupt.isNotNull()), self._all_columns()
        )
        self.frame = rows.where(
            self._failing(corrupt) if source.malformed == "fail" else corrupt.isNull()
        ).drop(CORRUPT_RECORD)

    def account(self, done: DataFrame, context: RuntimeContext, output: Output) -> None:
        """Called when `done`, a frame built on `frame`, has run."""
        malformed, _ = observed(done, _MALFORMED) or (0, None)
        if not malformed:
            return
        if self._source.malformed == "drop":
            context.counter(DROPPED_COUNTER).inc(malformed)
        elif self._source.malformed == "side_output":
            self._emit(context, output)

    def _rows(self) -> DataFrame:
        return _with_corrupt_record(self._session, self._source, self._path, self._schema)

    def _all_columns(self) -> Column:
        """An expression of all columns, so that Spark parses them; checking for null is cheap."""
        from functools import reduce

        from pyspark.sql import functions as sql

        return sql.bool_and(
            reduce(lambda a, b: a & b, (column(name).isNull() for name in self._schema.names))
        )

    def _failing(self, corrupt: Column) -> Column:
        from pyspark.sql import functions as sql

        message = sql.concat(
            sql.lit(f"malformed row in {self._path}: "),
            sql.substring(corrupt, 1, 200),
            sql.lit(
                f" (expected {self._expected()});"
                ' FileSource(malformed="drop") or "side_output" goes on without such rows'
            ),
        )
        return sql.when(corrupt.isNull(), True).otherwise(sql.raise_error(message).cast("boolean"))

    def _expected(self) -> str:
        return ", ".join(
            f"{field.name} {field.dataType.simpleString()}" for field in self._schema.fields[:40]
        )

    def _emit(self, context: RuntimeContext, output: Output) -> None:
        """Reads the file once more, for the malformed rows only. They are rare, or the source is
        about to be fixed.
        """
        from taskexecutor.executor.spark.bundles import collect
        from taskexecutor.executor.spark.schemas import to_arrow

        rows = self._rows()
        rows = rows.where(column(CORRUPT_RECORD).isNotNull())
        for batch in collect(rows, to_arrow(rows.schema), context.plan_meter):
            records = batch.column(batch.schema.get_field_index(CORRUPT_RECORD))
            paths = pa.array([self._path] * batch.num_rows, pa.string())
            output.emit_side(
                MALFORMED_TAG, pa.RecordBatch.from_arrays([records, paths], schema=MALFORMED_SCHEMA)
            )


def _with_corrupt_record(
    session: SparkSession, source: FileSource, path: str, schema: StructType
) -> DataFrame:
    from pyspark.sql.types import StringType, StructField, StructType

    fields = [field for field in schema.fields if field.name != CORRUPT_RECORD]
    schema = StructType([*fields, StructField(CORRUPT_RECORD, StringType(), True)])
    reader = file_reader(session, source).schema(schema).options(**source.options)
    if base := partition_base(source, path):
        reader = reader.option("basePath", base)
    return (
        reader.option("mode", "PERMISSIVE")
        .option("columnNameOfCorruptRecord", CORRUPT_RECORD)
        .load(path)
    )
