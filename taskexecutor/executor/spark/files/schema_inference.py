"""The schema of files that come without one, as Spark infers it."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

from firesteel.common.globs import files_below
from firesteel.connectors import FileSource
from firesteel.connectors.file_source import LISTING_OPTIONS
from taskexecutor.executor.spark.files.compression import Compression
from taskexecutor.executor.spark.files.frames import file_reader, read_files
from taskexecutor.executor.spark.jvm.engine import SparkEngine

if TYPE_CHECKING:
    from pyspark.sql import DataFrameReader
    from pyspark.sql.types import StructType

_FROM_TEXT = ("csv", "json", "xml")


def inferred_schema(engine: SparkEngine, source: FileSource, paths: list[str]) -> StructType:
    """Of CSV and JSON, Spark reads the files. Of Parquet it reads one footer, in a job that takes
    several times as long as that; so the footer is read here. Raises what Spark raises, and
    FiresteelError for files that are compressed as Spark cannot read them.
    """
    if source.format.lower() in _FROM_TEXT:
        compression = Compression(engine, source)
        for file in _files(engine, source, paths):
            compression.check(file)
    schema = _of_footer(engine, source, paths) if source.format == "parquet" else None
    return schema or read_files(engine.session, source, paths, None, base=False).schema


def _files(engine: SparkEngine, source: FileSource, paths: list[str]) -> list[str]:
    if LISTING_OPTIONS.intersection(map(str.lower, source.options)):  # only Spark knows
        files = _without_columns(engine, source).load(paths).inputFiles()
        return [unquote(urlsplit(file).path) for file in files]
    return [
        file for path in paths for file in (files_below(path) if os.path.isdir(path) else [path])
    ]


def _of_footer(engine: SparkEngine, source: FileSource, paths: list[str]) -> StructType | None:
    """None if it takes more than one footer, or Spark is to say what is wrong."""
    from py4j.protocol import Py4JJavaError
    from pyspark.errors import PySparkException
    from pyspark.sql.types import StructType

    merges = str(engine.session.conf.get("spark.sql.parquet.mergeSchema")).lower() == "true"
    if merges or any(option.lower() == "mergeschema" for option in source.options):
        return None
    engine.code.load("FiresteelFooter")
    try:
        files: Any = _without_columns(engine, source).load(paths)
        schema = engine.code.type("FiresteelFooter").schema(files._jdf)
    except (PySparkException, Py4JJavaError):
        return None
    return StructType.fromJson(json.loads(schema)) if schema is not None else None


def _without_columns(engine: SparkEngine, source: FileSource) -> DataFrameReader:
    """Lists the files, and looks at none of them."""
    from pyspark.sql.types import StructType

    return file_reader(engine.session, source).schema(StructType()).options(**source.options)
