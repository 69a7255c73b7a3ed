"""Streams of JSON rows, and the analysis of their programs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from firesteel import DataStream, Environment, Watermarks
from firesteel.connectors import CollectSink, FileSource
from taskexecutor.executor.analyze import analyze
from taskexecutor.executor.columnar.jvm.engine import SparkEngine


def json_rows(
    folder: Path, parallelism: int = 1, *, schema: str, row: str = '{"shop": "a", "n": 1}'
) -> DataStream:
    """Returns a stream of one row. `at`, if the schema has it, is the event time."""
    (folder / "rows.json").write_text(f"{row}\n")
    source = FileSource(f"{folder}/*.json", format="json", schema=schema)
    watermarks = Watermarks.bounded("at") if "at TIMESTAMP" in schema else None
    return Environment(parallelism=parallelism).from_source(source, watermarks=watermarks)


def analyzed(stream: DataStream, engine: SparkEngine) -> Any:
    """Returns the analysis of each operator of a program that prints the stream."""
    stream.print()
    return analyze(stream._program.job_graph("rows"), engine)


def schema_of(stream: DataStream, engine: SparkEngine) -> Any:
    """Returns the schema that a sink of the stream gets."""
    sink = stream.sink_to(CollectSink())
    operators = analyze(sink._program.job_graph("rows"), engine)
    return next(one.schema for one in reversed(operators) if one.schema is not None)
