"""FileSource: files read by Arrow and Spark, within the plan of the downstream operators."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

from firesteel.common.error_report import summary_of
from firesteel.common.globs import files_below, matches_of, not_readable
from firesteel.connectors.file_source import CORRUPT_RECORD, FileSource
from firesteel.connectors.read_options import OPTIONS
from firesteel.errors import FiresteelError
from firesteel.operator import SourceOperator
from firesteel.operators import SourceSpec
from taskexecutor.executor.columnar.jvm.conditions import condition_of
from taskexecutor.executor.columnar.jvm.engine import SparkEngine
from taskexecutor.executor.columnar.readers.frames import (
    MALFORMED_SCHEMA,
    declared_schema,
    file_reader,
)
from taskexecutor.executor.columnar.readers.schema_inference import inferred_schema, schema_advice
from taskexecutor.executor.columnar.schemas import to_arrow, to_spark
from taskexecutor.executor.connectors.files.stage import FileStage
from taskexecutor.executor.connectors.runtime import SourceAnalysis, SourceRuntime
from taskexecutor.executor.operator_factory import OpenedOperator

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType

# Spark defines or infers their schemas; a declared schema of another format may be wrong for its
# files.
_BUILT_IN_FORMATS = ("csv", "json", "parquet", "orc", "text")
_TEXT_FORMATS = ("csv", "json", "xml")  # formats whose values are parsed by type
_FIELD_ID = "parquet.field.id"


class FileSourceRuntime(SourceRuntime[FileSource]):
    def analyze(self, engine: SparkEngine) -> SourceAnalysis:
        source = self.source
        schema = _schema_of(engine, source)
        return SourceAnalysis(
            schema=to_arrow(schema),
            spark_schema=schema,
            leaf=f"Read {source.format} {', '.join(source.paths)}",
            side_schemas=dict.fromkeys(source.side_output_tags, MALFORMED_SCHEMA),
        )

    def operator(self, group: Sequence[OpenedOperator]) -> SourceOperator:
        spec = group[0].spec
        assert isinstance(spec, SourceSpec)
        specs = [opened.spec for opened in group[1:]]
        return FileStage(self.source, spec, group[0].output_schema, specs, group[-1].output_schema)


def _schema_of(engine: SparkEngine, source: FileSource) -> StructType:
    from py4j.protocol import Py4JJavaError
    from pyspark.errors import ParseException, PySparkException
    from pyspark.sql.types import StructType

    named = ", ".join(source.paths)
    paths = _existing_paths(source)
    try:
        schema = _declared_or_inferred(engine, source, paths)
    except (PySparkException, Py4JJavaError) as error:  # an unknown format raises the latter
        summary = summary_of(error)
        if isinstance(error, ParseException) and source.schema is not None:
            raise FiresteelError(
                f"FileSource schema {source.schema!r} does not parse: {summary}"
            ) from error
        if condition_of(error).name == "DATA_SOURCE_NOT_FOUND":
            summary = f"there is no such format; Spark supports {', '.join(OPTIONS)} ({summary})"
        elif advice := schema_advice(source, paths):
            summary = f"{summary.rstrip('. ')}. {advice}"
        raise FiresteelError(f"FileSource {named} as {source.format}: {summary}") from error
    if not schema.fields:
        raise FiresteelError(
            f"FileSource {named}: the files have no columns; if they should have some, give the"
            " source a schema"
        )
    _check_read_as_declared(engine.session, source, schema)
    return StructType([type(field)(field.name, field.dataType, True) for field in schema.fields])


def _check_read_as_declared(session: SparkSession, source: FileSource, schema: StructType) -> None:
    """Raises FiresteelError if the schema contains information that an Arrow schema cannot hold and
    that affects which values are read.
    """
    by_number = "spark.sql.parquet.fieldId.read.enabled"
    if _FIELD_ID in schema.json() and str(session.conf.get(by_number)).lower() == "true":
        raise FiresteelError(
            f"FileSource {', '.join(source.paths)}: the schema has {_FIELD_ID}, and {by_number} is "
            "set, but columns are read by their names; remove that setting"
        )
    for field in schema.fields:
        if "time(" in field.dataType.simpleString():
            raise FiresteelError(
                f"FileSource {', '.join(source.paths)}: column {field.name!r} is TIME, which is not"
                " supported; declare a schema without the column"
            )
    if source.format.lower() not in _TEXT_FORMATS:
        return
    for field, read in zip(schema.fields, to_spark(to_arrow(schema)).fields, strict=True):
        name, kind = read.dataType.simpleString(), field.dataType.simpleString()
        if kind != name:
            raise FiresteelError(
                f"FileSource {', '.join(source.paths)}: column {field.name!r} is {kind}, and would "
                f"be read as {name}; declare it so if its texts are, else as STRING, and cast it "
                "in a transform"
            )


def _declared_or_inferred(engine: SparkEngine, source: FileSource, paths: list[str]) -> StructType:
    schema = declared_schema(source)
    if schema is None:
        return inferred_schema(engine, source, paths)
    if source.malformed is not None and CORRUPT_RECORD in schema.names:
        raise FiresteelError(
            f"FileSource: malformed={source.malformed!r} and a column {CORRUPT_RECORD} exclude "
            "each other: malformed rows are either removed from the stream, or stay in it with "
            "that column set"
        )
    reader = file_reader(engine.session, source)  # an unknown format is found when it is loaded
    if paths and source.format not in _BUILT_IN_FORMATS:
        reader.schema(schema).options(**source.options).load(paths)
    return schema


def _existing_paths(source: FileSource) -> list[str]:
    paths: list[str] = []
    for path in (path.removeprefix("file://") for path in source.paths):
        if "://" in path:
            paths.append(path)
            continue
        matches = [path] if os.path.lexists(path) else matches_of(path)
        kinds = {match: not_readable(match) for match in matches}
        files = [match for match, kind in kinds.items() if not kind]
        if not files and source.watch_s is None:
            what = next(iter(kinds.values()), "")
            raise FiresteelError(
                f"FileSource: {path} is {what}; only regular files are read"
                if what
                else f"FileSource: no such file: {path}"
            )
        paths += files
    if source.schema is None and source.watch_s is not None and not any(map(_has_files, paths)):
        raise FiresteelError(
            f"FileSource {', '.join(source.paths)}: there are no files yet to infer the schema "
            "from; give the source a schema"
        )
    return paths


def _has_files(path: str) -> bool:
    return not os.path.isdir(path) or bool(files_below(path).files)
