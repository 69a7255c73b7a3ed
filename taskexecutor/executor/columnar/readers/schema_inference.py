"""The schema of files without a declared one, as Spark infers it."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import orc

from firesteel.common.globs import files_below
from firesteel.connectors import FileSource
from firesteel.connectors.file_source import LISTING_OPTIONS
from taskexecutor.executor.columnar.jvm.engine import SparkEngine
from taskexecutor.executor.columnar.readers.compression import Compression
from taskexecutor.executor.columnar.readers.frames import file_reader, read_files

if TYPE_CHECKING:
    from pyspark.sql import DataFrameReader
    from pyspark.sql.types import StructType

_MOST_FOOTERS = 1000  # footers read for advice
_MOST_DIGITS = 38  # of a DECIMAL
_FROM_TEXT = ("csv", "json", "xml")


def inferred_schema(engine: SparkEngine, source: FileSource, paths: list[str]) -> StructType:
    """Returns the inferred schema. For CSV and JSON, Spark reads the files. For Parquet it reads
    one footer, in a job that takes several times longer than that; so the footer is read here.
    Raises Spark's errors, and FiresteelError for files whose compression Spark cannot read.
    """
    if source.format.lower() in _FROM_TEXT:
        compression = Compression(engine, source)
        for file in _files(engine, source, paths):
            compression.check(file)
    schema = _of_footer(engine, source, paths) if source.format == "parquet" else None
    if schema is not None:
        return schema
    # To find a schema, Spark's ORC reader opens every file of a folder.
    regular = _without_special_files(paths)
    expanded = regular != paths
    return read_files(engine.session, source, regular, None, base=expanded).schema


def _without_special_files(paths: list[str]) -> list[str]:
    """Returns the paths, with a folder that contains special files replaced by its regular ones."""
    regular: list[str] = []
    for path in paths:
        below = files_below(path) if os.path.isdir(path) else None
        regular += below.files if below is not None and below.skipped else [path]
    return regular


def _files(engine: SparkEngine, source: FileSource, paths: list[str]) -> list[str]:
    if LISTING_OPTIONS.intersection(map(str.lower, source.options)):  # only Spark knows
        files = _without_columns(engine, source).load(paths).inputFiles()
        return [unquote(urlsplit(file).path) for file in files]
    return list(_listed(paths))


def _of_footer(engine: SparkEngine, source: FileSource, paths: list[str]) -> StructType | None:
    """Returns None if more than one footer is needed, or Spark should report the error."""
    from py4j.protocol import Py4JJavaError
    from pyspark.errors import PySparkException
    from pyspark.sql.types import StructType

    merges = str(engine.session.conf.get("spark.sql.parquet.mergeSchema")).lower() == "true"
    if merges or any(option.lower() == "mergeschema" for option in source.options):
        return None
    try:
        files: Any = _without_columns(engine, source).load(paths)
        schema = engine.code.type("FiresteelParquetFooter").schema(files._jdf)
    except (PySparkException, Py4JJavaError):
        return None
    return StructType.fromJson(json.loads(schema)) if schema is not None else None


def schema_advice(source: FileSource, paths: list[str]) -> str:
    """Returns advice on files whose schema Spark cannot infer. The advice names a column that
    Spark has no type for, or whose types differ among the files. Returns "" without such a column.
    """
    known: dict[str, tuple[str, pa.DataType]] = {}
    for file in islice(_listed(paths), _MOST_FOOTERS):
        for field in _arrow_schema(source.format.lower(), file):
            if (instead := _instead(field.type)) is not None:
                return (
                    f"Column {field.name!r} of {file} is {field.type}, for which Spark has no type:"
                    f" {instead}; or declare a schema without the column"
                )
            first, kind = known.setdefault(field.name, (file, field.type))
            if kind != field.type:
                return (
                    f"Column {field.name!r} is {kind} in {first} and {field.type} in {file}: give"
                    " the source a schema with the wider type (BIGINT for INT), or read the files"
                    " with one source for each type"
                )
    return ""


def _listed(paths: list[str]) -> Iterator[str]:
    for path in paths:
        yield from files_below(path).files if os.path.isdir(path) else [path]


def _arrow_schema(format: str, file: str) -> Sequence[pa.Field]:
    """Returns the columns in the file's footer, or none if Arrow cannot read it."""
    try:
        if format == "parquet":
            return list(pq.read_schema(file))
        return list(orc.ORCFile(file).schema) if format == "orc" else ()
    except (OSError, pa.ArrowException):
        return ()


def _instead(kind: pa.DataType) -> str | None:
    """Returns what to write instead of a type that Spark lacks, or None for other types."""
    if pa.types.is_timestamp(kind) and kind.unit == "ns":
        return "give the source a schema that reads it as BIGINT, or write it as timestamp[us]"
    if pa.types.is_time(kind):
        return "write it as a number or a string"
    if pa.types.is_float16(kind):
        return "write it as float"
    if pa.types.is_decimal(kind) and kind.precision > _MOST_DIGITS:
        return f"write it with at most {_MOST_DIGITS} digits, or as a string"
    return None


def _without_columns(engine: SparkEngine, source: FileSource) -> DataFrameReader:
    """Returns a reader that lists the files without reading them."""
    from pyspark.sql.types import StructType

    return file_reader(engine.session, source).schema(StructType()).options(**source.options)
