"""The schema of files that come without one, as Spark infers it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from firesteel.connectors import FileSource
from taskexecutor.executor.spark.files.frames import file_reader, read_files
from taskexecutor.executor.spark.jvm.engine import SparkEngine

if TYPE_CHECKING:
    from pyspark.sql.types import StructType


def inferred_schema(engine: SparkEngine, source: FileSource, paths: list[str]) -> StructType:
    """Of CSV and JSON, Spark reads the files. Of Parquet it reads one footer, in a job that takes
    several times as long as that; so the footer is read here. Raises what Spark raises.
    """
    schema = _of_footer(engine, source, paths) if source.format == "parquet" else None
    return schema or read_files(engine.session, source, paths, None, base=False).schema


def _of_footer(engine: SparkEngine, source: FileSource, paths: list[str]) -> StructType | None:
    """None if it takes more than one footer, or Spark is to say what is wrong."""
    from py4j.protocol import Py4JJavaError
    from pyspark.errors import PySparkException
    from pyspark.sql.types import StructType

    merges = str(engine.session.conf.get("spark.sql.parquet.mergeSchema")).lower() == "true"
    if merges or any(option.lower() == "mergeschema" for option in source.options):
        return None
    engine.code.load("FiresteelFooter")
    reader = file_reader(engine.session, source).schema(StructType()).options(**source.options)
    try:
        files: Any = reader.load(paths)
        schema = engine.code.type("FiresteelFooter").schema(files._jdf)
    except (PySparkException, Py4JJavaError):
        return None
    return StructType.fromJson(json.loads(schema)) if schema is not None else None
