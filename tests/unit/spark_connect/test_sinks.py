"""The sinks of streaming queries: what is checked before a query is planned."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import cloudpickle
import pytest
from pyspark.serializers import AutoBatchedSerializer, CPickleSerializer
from pyspark.sql.connect.proto.commands_pb2 import WriteStreamOperationStart
from pyspark.sql.streaming.readwriter import DataStreamWriter
from pyspark.sql.types import (
    ArrayType,
    DataType,
    DayTimeIntervalType,
    GeographyType,
    MapType,
    StringType,
    StructType,
    VariantType,
)

from firesteel.connectors import (
    DiscardSink,
    FileSink,
    ForeachBatchSink,
    ForeachRowsSink,
    KafkaSink,
)
from firesteel.spark_connect.functions import Console, ForeachFunctionSink, PickledFunction
from firesteel.spark_connect.refusals import Refused, SparkError
from firesteel.spark_connect.sinks import QuerySink, sink_of
from firesteel.spark_connect.triggers import trigger_of


def checked(request: WriteStreamOperationStart) -> QuerySink:
    return sink_of(request, trigger_of(request))


def written(format: str = "", **options: Any) -> WriteStreamOperationStart:
    fields = ("path", "output_mode", "query_name", "table_name", "partitioning_column_names")
    given = {name: options.pop(name) for name in fields if name in options}
    texts = {name.replace("__", "."): value for name, value in options.items()}
    return WriteStreamOperationStart(format=format, options=texts, **given)


def with_foreach_batch(function: Callable[..., Any], **fields: Any) -> WriteStreamOperationStart:
    request = WriteStreamOperationStart(**fields)
    request.foreach_batch.python_function.command = cloudpickle.dumps(function)
    return request


def with_foreach(writer: Any, **fields: Any) -> WriteStreamOperationStart:
    request = WriteStreamOperationStart(**fields)
    serializer = AutoBatchedSerializer(CPickleSerializer())
    function = DataStreamWriter._construct_foreach_function(writer)
    command = cloudpickle.dumps((function, None, serializer, serializer))
    request.foreach_writer.python_function.command = command
    return request


def schema(ddl: str) -> StructType:
    """Builds a schema without Spark."""
    fields = StructType()
    for field in ddl.split(", "):
        fields.add(*field.split(" "))
    return fields


# ---- formats


def test_the_console_takes_batches_with_options_in_any_case() -> None:
    sink = checked(written("console", NUMROWS="5", truncate="False", output_mode="Complete"))
    assert (sink.batches, sink.output_mode, sink.needs_location) == (True, "complete", False)
    assert sink.sink("dir") == ForeachBatchSink(Console(5, False), True, "dir")


def test_files_are_the_default_format_and_are_written_append_only() -> None:
    sink = checked(written(path="/out", partitioning_column_names=["day"]))
    assert sink.sink("") == FileSink("/out", partition_by=["day"])
    assert (sink.batches, sink.needs_location) == (False, True)
    csv = checked(written("csv", path="/out", sep=";")).sink("")
    assert csv == FileSink(
        "/out", format="csv", options={"sep": ";", "header": "false", "escape": "\\"}
    )
    for given, omits in (({}, "true"), ({"ignoreNullFields": "false"}, "false")):
        written_json = checked(written("json", path="/out", **given)).sink("")
        expected = FileSink("/out", format="json", options={"ignoreNullFields": omits})
        assert written_json == expected
    with pytest.raises(Refused, match="Update.*not supported in Data Source json") as refused:
        checked(written("json", path="/out", output_mode="update"))
    assert refused.value.condition == "STREAMING_OUTPUT_MODE.UNSUPPORTED_DATASOURCE"
    with pytest.raises(Refused, match="'path' is not specified"):
        checked(written("orc"))
    with pytest.raises(Refused, match="option timestampformat of csv files is 'yyyy'"):
        checked(written("csv", path="/out", timestampFormat="yyyy"))
    with pytest.raises(Refused, match="not supported yet"):
        checked(written("parquet", path="s3://bucket/out"))


def test_partition_columns_are_checked_against_the_schema() -> None:
    sink = checked(written(path="/out", partitioning_column_names=["day"]))
    sink.check(schema("Day date, n integer"))
    with pytest.raises(Refused) as refused:
        sink.check(schema("n integer, m integer"))
    assert refused.value.condition == "PARTITION_COLUMN_NOT_FOUND_IN_SCHEMA"
    with pytest.raises(Refused) as refused:
        sink.check(schema("day date"))
    assert refused.value.condition == "ALL_PARTITION_COLUMNS_NOT_ALLOWED"


@pytest.mark.parametrize("format", ["parquet", "json", "csv", "orc"])
@pytest.mark.parametrize(
    ("kind", "name"),
    [
        (VariantType(), "variant"),
        (ArrayType(StructType().add("w", MapType(StringType(), VariantType()))), "variant"),
        (DayTimeIntervalType(), "interval day to second"),
        (GeographyType(4326), "geography"),
    ],
    ids=str,
)
def test_types_that_files_cannot_hold_are_refused(format: str, kind: DataType, name: str) -> None:
    sink = checked(written(format, path="/out"))
    with pytest.raises(Refused, match=f"column 'v' has the type {name}"):
        sink.check(schema("n integer").add("v", kind))


def test_kafka_is_checked_by_sparks_rules() -> None:
    options = {"kafka__bootstrap__servers": "localhost:1", "topic": "t"}
    sink = checked(written("kafka", **options, kafka__acks="all", output_mode="update"))
    assert sink.sink("") == KafkaSink(
        "t", bootstrap_servers="localhost:1", properties={"acks": "all"}
    )
    sink.check(schema("key binary, VALUE string, partition integer"))
    with pytest.raises(Refused, match="'value' not found"):
        sink.check(schema("key string"))
    with pytest.raises(Refused, match="value attribute type must be string or binary, not int"):
        sink.check(schema("value integer"))
    anywhere = checked(written("kafka", kafka__bootstrap__servers="localhost:1"))
    anywhere.check(schema("value string, topic string"))
    with pytest.raises(Refused, match="topic option required"):
        anywhere.check(schema("value string"))
    with pytest.raises(Refused, match=r"kafka\.bootstrap\.servers is missing"):
        checked(written("kafka", topic="t"))


def test_memory_has_the_name_of_its_query() -> None:
    sink = checked(written("memory", query_name="words", output_mode="complete"))
    assert (sink.memory, sink.batches) == ("words", True)
    with pytest.raises(Refused, match="queryName must be specified") as refused:
        checked(written("memory"))
    assert refused.value.condition == "_LEGACY_ERROR_TEMP_1194"


def test_noop_drops_rows_in_every_mode() -> None:
    for mode in ("append", "update", "complete"):
        assert checked(written("noop", output_mode=mode)).sink("") == DiscardSink()


@pytest.mark.parametrize(
    ("request_", "message", "condition"),
    [
        (written("delta", path="/x"), "needs io.delta:delta-spark", "DATA_SOURCE_NOT_FOUND"),
        (written("consol"), "Did you mean console", "DATA_SOURCE_NOT_FOUND"),
        (written("mongodb"), "in foreachBatch", "DATA_SOURCE_NOT_FOUND"),
        (written("console", output_mode="all"), "streaming output mode: all", "STREAMING_OUTPUT"),
        (written("console", numRows="few"), "numRows is 'few'", ""),
        (written("console", partitioning_column_names=["a"]), "support partitioning", ""),
    ],
)
def test_refusals(request_: WriteStreamOperationStart, message: str, condition: str) -> None:
    with pytest.raises(Refused, match=message) as refused:
        checked(request_)
    assert refused.value.condition.startswith(condition)


# ---- functions


def test_foreach_batch_is_called_with_batches() -> None:
    seen: list[int] = []
    sink = checked(with_foreach_batch(lambda frame, batch: seen.append(frame * 3 + batch)))
    assert sink.batches
    found = sink.sink("dir")
    assert isinstance(found, ForeachBatchSink)
    assert (found.consecutive, found.completed) == (True, "dir")
    copy = found.function.pickled.function  # type: ignore[attr-defined]
    copy(2, 1)
    assert not seen, "the pickle has a copy"
    assert copy.__closure__[0].cell_contents == [7]


def test_foreach_batch_is_refused_with_a_continuous_trigger() -> None:
    with pytest.raises(Refused, match="continuous trigger") as refused:
        checked(with_foreach_batch(print, continuous_checkpoint_interval="1 second"))
    assert refused.value.error is SparkError.ANALYSIS


class Recorder:
    """A writer of `foreach`. Its calls are attributes of the class: copies share them."""

    calls: list[tuple[Any, ...]] = []  # noqa: RUF012

    def open(self, partition: int, epoch: int) -> bool:
        self.calls.append(("open", partition, epoch))
        return epoch != 8

    def process(self, row: Any) -> None:
        self.calls.append(("process", row))
        if row == "bad":
            raise ValueError(row)

    def close(self, error: Exception | None) -> None:
        self.calls.append(("close", repr(error)))


def test_an_object_of_foreach_gets_partitions_and_epochs() -> None:
    sink = checked(with_foreach(Recorder()))
    assert sink.batches, "rows between checkpoints have one epoch"
    found = sink.sink("")
    assert isinstance(found, ForeachRowsSink)
    Recorder.calls.clear()
    found.function(["a", "b"], 2, 7)  # type: ignore[list-item]
    found.function(["c"], 0, 8)  # type: ignore[list-item]
    with pytest.raises(ValueError, match="bad"):
        found.function(["bad"], 1, 9)  # type: ignore[list-item]
    assert Recorder.calls == [
        *[("open", 2, 7), ("process", "a"), ("process", "b"), ("close", "None")],
        *[("open", 0, 8), ("close", "None")],
        *[("open", 1, 9), ("process", "bad"), ("close", "ValueError('bad')")],
    ]


def test_a_function_of_foreach_gets_rows_as_they_arrive() -> None:
    sink = checked(with_foreach(lambda row: None))
    assert not sink.batches
    assert isinstance(sink.sink(""), ForeachFunctionSink)
    complete = checked(with_foreach(lambda row: None, output_mode="complete"))
    assert complete.batches and isinstance(complete.sink(""), ForeachRowsSink)


def test_the_names_of_a_pickle_include_its_modules() -> None:
    def function(frame: Any, batch: int) -> None:
        import json

        json.dumps(trigger_of)

    names = PickledFunction(cloudpickle.dumps(function)).names
    assert {"json", "firesteel"} <= names
