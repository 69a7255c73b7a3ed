"""The sink of a streaming query: what `writeStream` describes, as a sink of Firesteel.

console, foreachBatch     one subtask gets the rows between two checkpoints as a batch, with the
                          ids 0, 1, 2, ...
foreach with an object    each subtask gets the rows between two checkpoints as an epoch
foreach with a function   each subtask calls it with its rows as they arrive
memory                    the rows of complete batches reach the front
parquet, orc, json, ...   part files that appear with their checkpoint, exactly once
kafka                     at least once, as Spark's
noop                      drops the rows
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql.connect.proto.commands_pb2 import WriteStreamOperationStart
from pyspark.sql.types import ArrayType, DataType, MapType, StructType

from firesteel.client.spark_programs.imports import SPARKS_LOG, has_sparks_log
from firesteel.connectors import (
    CollectSink,
    DiscardSink,
    FileSink,
    ForeachBatchSink,
    ForeachRowsSink,
    KafkaSink,
    Sink,
)
from firesteel.connectors.kafka.spark_options import check_columns
from firesteel.errors import InvalidProgram
from firesteel.operators import BatchesSpec
from firesteel.plan.local_modules import local_module
from firesteel.spark_connect.functions import (
    Console,
    ForeachBatchFunction,
    ForeachFunctionSink,
    ForeachWriter,
    OnBatches,
    PickledFunction,
    Renamed,
)
from firesteel.spark_connect.names import repeated
from firesteel.spark_connect.outer_frames import OuterFrame, outer_frames
from firesteel.spark_connect.planner import PlannedStream
from firesteel.spark_connect.refusals import Refused, SparkError
from firesteel.spark_connect.triggers import Trigger

if TYPE_CHECKING:
    from firesteel.datastream import DataStreamSink
    from firesteel.spark_connect.locations import Location

MODES = ("append", "update", "complete")
UID = "sink"  # of the sink, under which its state is restored
FILES = ("csv", "json", "orc", "parquet", "text")
# The options of file formats that FileSink has, and those that would change what it writes.
_FILE_OPTIONS = {
    "csv": ("compression", "header", "sep", "delimiter"),
    "json": ("compression", "ignorenullfields"),
    "orc": ("compression",),
    "parquet": ("compression",),
    "text": ("compression",),
}
_UNSUPPORTED_FILE_OPTIONS = frozenset(
    {
        *("charset", "chartoescapequoteescaping", "codec", "compression", "dateformat"),
        *("emptyvalue", "encoding", "escape", "escapequotes", "ignoreleadingwhitespace"),
        *("ignoretrailingwhitespace", "linesep", "nullvalue", "quote"),
        *("quoteall", "timestampformat", "timestampntzformat"),
    }
)
_NO_TYPES_OF_FILES = ("variant", "geography", "geometry")
# Formats that a package of Spark's provides, which writes them in foreachBatch.
_PACKAGES = {
    "avro": "org.apache.spark:spark-avro",
    "delta": "io.delta:delta-spark",
    "hudi": "org.apache.hudi:hudi-spark-bundle",
    "iceberg": "org.apache.iceberg:iceberg-spark-runtime",
    "jdbc": "the JDBC driver of the database",
    "xml": "Spark's own format xml",
}
_NAMES = ("console", *FILES, "kafka", "memory", "noop")


@dataclass(frozen=True, slots=True, kw_only=True)
class QuerySink:
    """A checked sink, before the query is planned."""

    description: str  # as in Spark's progress
    output_mode: str
    batches: bool  # it takes rows as batches: aggregates emit at checkpoints only
    needs_location: bool = False  # Spark refuses it without a checkpointLocation
    memory: str = ""  # the name of the table of a memory sink
    # Returns the sink of a job, given the URI of a directory for completed batches, or "".
    sink: Callable[[str], Sink]
    check: Callable[[StructType], None] = lambda _: None
    names: frozenset[str] = frozenset()  # among which are the modules of its function

    def check_restore(self, location: Location) -> None:
        """Raises Refused if the query cannot continue from the location: the rows of a memory sink
        are gone, unless a complete result replaces them.
        """
        if self.memory and self.output_mode != "complete" and location.restores:
            raise Refused(
                "This query does not support recovering from checkpoint location. Delete"
                f" {location.uri} to start over.",
                condition="_LEGACY_ERROR_TEMP_1299",
                parameters={"checkpointPath": location.uri},
            )

    def add_to(self, planned: PlannedStream, completed: str = "") -> DataStreamSink:
        """Adds the sink to a planned stream. `completed` is the URI of a directory in which
        completed batches are recorded, so that no restart repeats one; empty: the query has no
        checkpointLocation. Raises Refused if the columns do not fit.
        """
        self.check(planned.schema)
        sink = self.sink(completed)
        if planned.is_renamed:
            self._check_repeated(planned.schema.names, sink)
        program = planned.environment._program
        program.modules.update(name for name in self.names if local_module(name) is not None)
        stream = planned.stream
        if isinstance(sink, ForeachBatchSink):
            function = sink.function
            if planned.is_renamed:
                function = OnBatches(function, Renamed(tuple(planned.schema.names)))
            if planned.per_batch is not None:
                function = OnBatches(function, planned.per_batch)
            sink = ForeachBatchSink(function, sink.consecutive, sink.completed)
            return stream.sink_to(sink, uid=UID).set_parallelism(1)
        if planned.per_batch is not None or self.memory:
            spec = BatchesSpec(function=planned.per_batch, marks=bool(self.memory))
            stream = stream.operator("Batches", spec, uid=f"{UID}-batches").set_parallelism(1)
            return stream.sink_to(sink, uid=UID).set_parallelism(1)  # in this order
        return stream.sink_to(sink, uid=UID)

    def _check_repeated(self, names: Sequence[str], sink: Sink) -> None:
        """Refuses columns of the same name, except for sinks that take any DataFrame."""
        if self.memory or isinstance(sink, ForeachBatchSink | DiscardSink):
            return
        column = repeated(names)[0]
        raise Refused(
            f"The column `{column}` already exists. Choose another name or rename the existing"
            " column.",
            condition="COLUMN_ALREADY_EXISTS",
            parameters={"columnName": f"`{column}`"},
            sql_state="42711",
        )


def sink_of(
    request: WriteStreamOperationStart,
    trigger: Trigger,
    read: Callable[[bytes], OuterFrame] | None = None,
) -> QuerySink:
    """Returns the sink of a query. `read` returns the rows of a serialised `Relation`, for
    DataFrames that a function of foreachBatch refers to. Raises Refused for what Spark refuses, and
    for sinks that Firesteel does not have.
    """
    mode = _output_mode(request)
    options = {name.lower(): value for name, value in request.options.items()}
    if request.HasField("foreach_batch"):
        return _foreach_batch(request, mode, trigger, read)
    if request.HasField("foreach_writer"):
        return _foreach(request, mode)
    if request.clustering_column_names:
        raise Refused("clusterBy is for tables of other formats than files; remove it")
    name = request.format.lower() or "parquet"
    match name:
        case "console":
            return _console(request, mode, options)
        case "noop":
            return QuerySink(
                description="org.apache.spark.sql.execution.datasources.noop.NoopTable$",
                output_mode=mode,
                batches=False,
                sink=lambda _: DiscardSink(),
            )
        case "kafka":
            return _kafka(request, mode)
        case "memory":
            return _memory(request, mode)
        case _ if name in FILES:
            return _files(request, mode, name, options)
        case _:
            raise _unknown(request.format)


def _output_mode(request: WriteStreamOperationStart) -> str:
    mode = request.output_mode.lower() or "append"
    if mode not in MODES:
        raise Refused(
            f"Invalid streaming output mode: {request.output_mode}. Accepted output modes are"
            " 'Append', 'Complete', 'Update'.",
            error=SparkError.ILLEGAL_ARGUMENT,
            condition="STREAMING_OUTPUT_MODE.INVALID",
            parameters={"outputMode": request.output_mode},
            sql_state="42KDE",
        )
    return mode


# -- functions


def _foreach_batch(
    request: WriteStreamOperationStart,
    mode: str,
    trigger: Trigger,
    read: Callable[[bytes], OuterFrame] | None,
) -> QuerySink:
    if request.WhichOneof("trigger") == "continuous_checkpoint_interval":
        raise Refused(
            "'foreachBatch' is not supported with continuous trigger.",
            condition="_LEGACY_ERROR_TEMP_1195",
            parameters={"source": "foreachBatch"},
        )
    _refuse_partitions(request, "foreachBatch")
    data = _pickled(request.foreach_batch, "foreachBatch")
    pickled = PickledFunction(data, outer_frames(data, read) if read is not None else ())
    function = ForeachBatchFunction(pickled)
    return QuerySink(
        description="ForeachBatchSink",
        output_mode=mode,
        batches=True,
        sink=lambda completed: ForeachBatchSink(function, True, completed),
        names=pickled.names,
    )


def _foreach(request: WriteStreamOperationStart, mode: str) -> QuerySink:
    _refuse_partitions(request, "foreach")
    writer = ForeachWriter(PickledFunction(_pickled(request.foreach_writer, "foreach")))
    whole = writer.is_object or mode == "complete"

    def sink(completed: str) -> Sink:
        return ForeachRowsSink(writer, completed) if whole else ForeachFunctionSink(writer)

    return QuerySink(
        description="ForeachWriterTable",
        output_mode=mode,
        batches=whole,
        sink=sink,
        names=writer.pickled.names,
    )


def _pickled(function: object, what: str) -> bytes:
    data = function.python_function.command  # type: ignore[attr-defined]
    if not data:
        raise Refused(f"{what} takes a Python function; functions of Scala do not run here")
    return bytes(data)


# -- formats


def _console(
    request: WriteStreamOperationStart, mode: str, options: Mapping[str, str]
) -> QuerySink:
    _refuse_partitions(request, "console")
    rows = _integer("numRows", options.get("numrows", "20"))
    truncate = _flag("truncate", options.get("truncate", "true"))
    return QuerySink(
        description=f"ConsoleTable(numRows={rows}, truncate={str(truncate).lower()})",
        output_mode=mode,
        batches=True,
        sink=lambda completed: ForeachBatchSink(Console(rows, truncate), True, completed),
    )


def _memory(request: WriteStreamOperationStart, mode: str) -> QuerySink:
    _refuse_partitions(request, "memory")
    if not request.query_name:
        raise Refused(
            "queryName must be specified for memory sink.", condition="_LEGACY_ERROR_TEMP_1194"
        )
    return QuerySink(
        description="MemorySink",
        output_mode=mode,
        batches=True,
        memory=request.query_name,
        sink=lambda _: CollectSink(),
    )


def _kafka(request: WriteStreamOperationStart, mode: str) -> QuerySink:
    try:
        sink = KafkaSink.from_spark_options(dict(request.options))
    except InvalidProgram as error:
        raise Refused(str(error), error=SparkError.ILLEGAL_ARGUMENT) from error
    topic = sink.topic
    return QuerySink(
        description=f"KafkaSink(topic={topic})" if topic else "KafkaSink",
        output_mode=mode,
        batches=mode == "complete",
        needs_location=True,
        sink=lambda _: sink,
        check=lambda schema: _check_kafka(schema, topic),
    )


def _check_kafka(schema: StructType, topic: str | None) -> None:
    try:
        check_columns(schema, topic)
    except InvalidProgram as error:
        raise Refused(str(error)) from error


def _files(
    request: WriteStreamOperationStart, mode: str, format: str, options: Mapping[str, str]
) -> QuerySink:
    path = request.path or options.get("path", "")
    if not path:
        raise Refused("'path' is not specified", error=SparkError.ILLEGAL_ARGUMENT)
    if mode != "append":
        raise Refused(
            f"Invalid streaming output mode: {mode.capitalize()}. This output mode is not supported"
            f" in Data Source {format}.",
            condition="STREAMING_OUTPUT_MODE.UNSUPPORTED_DATASOURCE",
            parameters={"outputMode": mode.capitalize(), "className": format},
            sql_state="42KDE",
        )
    if has_sparks_log(path):
        raise Refused(
            f"the folder {path} was written by a file sink of Spark, and Spark reads only the files"
            f" that its {SPARKS_LOG} lists: write to another folder, or continue that query with"
            f" `firesteel import-spark-checkpoint --output {path} SPARK_CHECKPOINT NEW_LOCATION`"
        )
    own = _FILE_OPTIONS.get(format, ())
    _check_file_options(format, own, options)
    given = {name: value for name, value in options.items() if name in own}
    if format == "csv":
        given |= {"header": given.get("header", "false"), "escape": "\\"}  # as Spark's writer
    if format == "json":
        given |= {"ignoreNullFields": given.pop("ignorenullfields", "true")}
    partition_by = tuple(request.partitioning_column_names)

    def check(schema: StructType) -> None:
        _check_partitions(schema, partition_by)
        for field in schema.fields:
            for name in _refused_types(field.dataType):
                raise Refused(
                    f"the column {field.name!r} has the type {name}, which the files of streams"
                    " cannot hold: cast it to STRING, or write the batches with df.write in"
                    " foreachBatch"
                )

    try:
        sink = FileSink(path, format=format, options=given, partition_by=partition_by)
    except InvalidProgram as error:
        raise Refused(str(error)) from error
    return QuerySink(
        description=f"FileSink[{sink.path}]",
        output_mode=mode,
        batches=False,
        needs_location=True,
        sink=lambda _: sink,
        check=check,
    )


def _refused_types(kind: DataType) -> Iterator[str]:
    """Yields the types among a type and its parts that Spark would read from files as others."""
    if kind.typeName().partition("(")[0] in _NO_TYPES_OF_FILES or "interval" in kind.typeName():
        yield kind.simpleString()
    parts: list[DataType] = []
    match kind:
        case StructType():
            parts = [field.dataType for field in kind.fields]
        case ArrayType():
            parts = [kind.elementType]
        case MapType():
            parts = [kind.keyType, kind.valueType]
    for part in parts:
        yield from _refused_types(part)


def _check_file_options(format: str, own: tuple[str, ...], options: Mapping[str, str]) -> None:
    """Refuses options of Spark's writers that would change the files, and have no effect here."""
    for name, value in options.items():
        if name in own or name not in _UNSUPPORTED_FILE_OPTIONS:
            continue
        if (name, value.lower()) != ("compression", "none"):
            raise Refused(
                f"the option {name} of {format} files is {value!r}, and streams write them with"
                f" {', '.join(own) or 'no options'} only: remove it, or write the batches with"
                " df.write in foreachBatch"
            )


def _check_partitions(schema: StructType, partition_by: tuple[str, ...]) -> None:
    names = {name.lower() for name in schema.names}
    for column in partition_by:
        if column.lower() not in names:
            raise Refused(
                f"Partition column {column} not found in schema {schema.simpleString()}. Please"
                " provide the existing column for partitioning.",
                condition="PARTITION_COLUMN_NOT_FOUND_IN_SCHEMA",
                parameters={"column": column, "schema": schema.simpleString()},
                sql_state="42000",
            )
    if partition_by and len(partition_by) == len(schema.names):
        raise Refused(
            "Cannot use all columns for partition columns.",
            condition="ALL_PARTITION_COLUMNS_NOT_ALLOWED",
            sql_state="KD005",
        )


def _refuse_partitions(request: WriteStreamOperationStart, what: str) -> None:
    if request.partitioning_column_names:
        raise Refused(f"'{what}' does not support partitioning")


def _unknown(format: str) -> Refused:
    name = format.lower()
    if package := _PACKAGES.get(name):
        provided = (
            f"Streams do not write {name} themselves. Write it in foreachBatch, with"
            f" df.write.format({name!r}), which needs {package} (spark.jars.packages)."
        )
    else:
        near = difflib.get_close_matches(name, _NAMES, n=1)
        provided = (
            f"Did you mean {near[0]}?"
            if near
            else f"Streams write {', '.join(_NAMES)}; write"
            " other formats with df.write in foreachBatch."
        )
    return Refused(
        f"Failed to find the data source: {format}. {provided}",
        condition="DATA_SOURCE_NOT_FOUND",
        parameters={"provider": format},
        sql_state="42K02",
    )


def _integer(name: str, text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise Refused(
            f"the option {name} is {text!r}; use an integer", error=SparkError.ILLEGAL_ARGUMENT
        ) from None


def _flag(name: str, text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise Refused(
            f"the option {name} is {text!r}; allowed: true, false",
            error=SparkError.ILLEGAL_ARGUMENT,
        )
    return text.lower() == "true"
