"""Sources of streaming queries: from Spark's description of a source to Firesteel's."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from firesteel.client.spark_programs.uris import resolved
from firesteel.connectors import FileSource, PythonSource, SequenceSource, SocketSource, Source
from firesteel.connectors.kafka import KafkaSource
from firesteel.connectors.read_options import unknown_options
from firesteel.datastream import DataStream
from firesteel.environment import Environment
from firesteel.errors import InvalidProgram
from firesteel.plan.catalyst_plan import entries, items, scala_entries
from firesteel.spark_connect.kafka_table import FORMAT

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

FILE_FORMATS = ("parquet", "orc", "json", "csv", "xml", "text", "binaryfile")
# A new file is noticed after at most this time.
WATCH = "500 ms"
# Options of Spark's file source about when files are read, not how.
_PACE = (
    *("path", "maxFilesPerTrigger", "maxBytesPerTrigger", "latestFirst", "maxFileAge"),
    *("maxCachedFiles", "discardCachedInputRatio"),
)
_POSITIVE = ("maxFilesPerTrigger", "maxBytesPerTrigger")
# Options of Spark's file source, by the value that changes nothing.
_REFUSED = {
    "cleanSource": (
        "off",
        "Firesteel does not remove or move the files that a query has read; do it by their age,"
        " outside of the query",
    ),
    "fileNameOnly": ("false", "Firesteel knows the files that a query has read by their paths"),
}
_STREAMING = {name.lower() for name in (*_PACE, *_REFUSED)}  # not for the reader
_BATCH_ONLY = ("modifiedBefore", "modifiedAfter")


class StreamingSource(NamedTuple):
    stream: DataStream
    names: list[str]  # of its columns, in the order of the relation's output
    description: str  # as in the progress of Spark's queries; empty: unknown
    warnings: tuple[str, ...]


def source_of(
    jvm: Any,
    session: Any,
    environment: Environment,
    relation: Any,
    uid: str,
    *,
    begun_us: Callable[[], int],
) -> StreamingSource:
    """Returns the source of a StreamingRelation or StreamingRelationV2 of a classic session. Its
    state is restored by `uid`. `begun_us` returns when the query was first started.
    """
    add = _Adder(environment, uid)
    names = [attribute.name() for attribute in items(relation.output())]
    schema = schema_of(relation.schema())
    table = None
    if _kind(relation) == "StreamingRelation":
        source = relation.dataSource()
        format, options = str(source.className()), scala_entries(source.options())
    else:
        format, options = str(relation.sourceName()), entries(jvm, relation.extraOptions())
        table = relation.table()
    if table is not None and format != FORMAT and _kind(table) == "PythonTable":
        registered = session.sessionState().dataSourceManager().lookupDataSource(format)
        stream = _python(jvm, add, registered, options, schema)
    else:
        stream = _of_format(add, format, options, schema, begun_us)
    warnings = tuple(_warnings(format, options))
    return StreamingSource(stream, names, _description(format, options), warnings)


def _warnings(format: str, options: Mapping[str, str]) -> Iterator[str]:
    """Yields a warning for each option that has no effect, as in Spark."""
    for option, close in _unknown(format, options).items():
        hint = f"; did you mean {close}?" if close else ""
        yield f"readStream: the format {format} has no option {option!r}, which is ignored{hint}"


def _unknown(format: str, options: Mapping[str, str]) -> dict[str, str]:
    read = (key for key in options if key.lower() not in _STREAMING)
    return unknown_options(format, read, *_PACE) if format.lower() in FILE_FORMATS else {}


def _kind(of: Any) -> str:
    return str(of.getClass().getSimpleName())


def _description(format: str, options: Mapping[str, str]) -> str:
    """Returns "" for other formats than Spark's own."""
    by_key = {key.lower(): value for key, value in options.items()}
    match format.lower():
        case "rate" | "rate-v2":
            rate, partitions = by_key.get("rowspersecond", "1"), by_key.get("numpartitions")
            return (
                f"RateStreamV2[rowsPerSecond={rate}, rampUpTimeSeconds=0,"
                f" numPartitions={partitions or 'default'}"
            )
        case "socket":
            return f"TextSocketV2[host: {by_key.get('host')}, port: {by_key.get('port')}]"
        case name if name == FORMAT:
            for option in ("subscribe", "subscribePattern", "assign"):
                if (value := by_key.get(option.lower())) is not None:
                    return f"KafkaV2[{option[0].upper()}{option[1:]}[{value}]]"
        case name if name in FILE_FORMATS:
            path = by_key.get("path", "")
            located = path if re.match(r"\w+:", path) else f"file:{Path(path).absolute()}"
            return f"FileStreamSource[{located}]"
    return ""


class _Adder:
    """Adds a source under its uid."""

    def __init__(self, environment: Environment, uid: str) -> None:
        self._environment = environment
        self._uid = uid

    def __call__(self, source: Source, name: str = "") -> DataStream:
        return self._environment.from_source(
            source, name=name or source.resolved().display_name, uid=self._uid
        )


def _of_format(
    add: _Adder,
    format: str,
    options: Mapping[str, str],
    schema: StructType,
    begun_us: Callable[[], int],
) -> DataStream:
    match format.lower():
        case "rate" | "rate-v2":
            return _rate(add, options, begun_us())
        case "socket":
            return _socket(add, options)
        case name if name == FORMAT:
            return add(KafkaSource.from_spark_options(options))
        case name if name in FILE_FORMATS:
            return add(_files(name, options, schema))
    raise InvalidProgram(
        f"readStream.format({format!r}): streams are read from kafka, rate, socket, data sources"
        f" in Python, and files ({', '.join(FILE_FORMATS)})"
    )


def _files(format: str, options: Mapping[str, str], schema: StructType) -> Source:
    by_key = {key.lower(): value for key, value in options.items()}
    for name, (usual, reason) in _REFUSED.items():
        if (value := by_key.get(name.lower(), usual)).lower() != usual:
            raise InvalidProgram(f"the option {name}={value!r}: {reason}")
    for name in _BATCH_ONLY:
        if name.lower() in by_key:
            raise InvalidProgram(f"option '{name}' is not allowed in file stream sources")
    for name in _POSITIVE:
        if not re.fullmatch("0*[1-9][0-9]*", value := by_key.get(name.lower(), "1")):
            raise InvalidProgram(
                f"Invalid value '{value}' for option '{name}', must be a positive integer"
            )
    if "path" not in by_key:
        raise InvalidProgram("the source has no path: pass one to load(...)")
    unknown = _unknown(format, options)
    read: dict[str, Any] = {
        key: value
        for key, value in options.items()
        if key.lower() not in _STREAMING and key not in unknown
    }
    path = by_key["path"]
    if path.startswith("file:"):  # tables of the catalog have such paths
        path = resolved(path)
    source = FileSource(path, format=format, schema=schema, watch=WATCH, **read)
    recursive = by_key.get("recursivefilelookup", "false").lower() == "true"
    return source if recursive else source.of_partitions()


def _rate(add: _Adder, options: Mapping[str, str], begun_us: int) -> DataStream:
    by_key = {key.lower(): value for key, value in options.items()}
    for key in by_key:
        if key not in ("rowspersecond", "numpartitions", "rampuptime"):
            raise InvalidProgram(f"format('rate') has no option {key!r}")
    if by_key.get("rampuptime", "0s").strip("0 ") not in ("", "s"):
        raise InvalidProgram("format('rate'): rampUpTime is not supported; omit it")
    rate = float(by_key.get("rowspersecond", "1"))
    numbers = add(SequenceSource(0, rate_per_s=rate), name="Rate")
    return numbers.transform(_Rated(begun_us, rate), name="Timestamps")


@dataclass(frozen=True, slots=True)
class _Rated:
    """Adds the time at which a row is due, as Spark's rate source does."""

    begun_us: int
    rows_per_s: float

    def __call__(self, frame: DataFrame) -> DataFrame:
        due = f"{self.begun_us} + cast(value * {1e6 / self.rows_per_s!r}D as bigint)"
        return frame.selectExpr(f"timestamp_micros({due}) AS timestamp", "value")


def _socket(add: _Adder, options: Mapping[str, str]) -> DataStream:
    by_key = {key.lower(): value for key, value in options.items()}
    for key in ("host", "port"):
        if key not in by_key:
            raise InvalidProgram(f"format('socket') needs the option {key!r}")
    lines = add(SocketSource(by_key["host"], int(by_key["port"])))
    if by_key.get("includetimestamp", "false").lower() == "true":
        return lines.transform(_received, name="Timestamps")
    return lines


def _received(frame: DataFrame) -> DataFrame:
    return frame.selectExpr("value", "current_timestamp() AS timestamp")


def _python(
    jvm: Any, add: _Adder, registered: Any, options: Mapping[str, str], schema: StructType
) -> DataStream:
    """Adds a data source that the program has registered, a UserDefinedPythonDataSource."""
    from pyspark import cloudpickle

    command = registered.dataSourceCls().command()
    pickled = bytes(command.toArray(jvm.scala.reflect.ClassTag.Byte()))
    return add(PythonSource(cloudpickle.loads(pickled), dict(options), schema=schema))


def schema_of(schema: Any) -> StructType:
    """Returns a StructType of the JVM as PySpark's."""
    from pyspark.sql.types import StructType

    return StructType.fromJson(json.loads(schema.json()))
