"""The runtime interfaces of connectors: their schemas and checks, and their operators.

Runtimes are imported on first use: a slot without a PostgresSink needs no PostgreSQL driver.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import pyarrow as pa

from firesteel.connectors import (
    CollectSink,
    FileSink,
    FileSource,
    ForeachBatchSink,
    ForeachRowsSink,
    KafkaSink,
    KafkaSource,
    PostgresSink,
    PrintSink,
    PythonSink,
    PythonSource,
    SequenceSource,
    Sink,
    Source,
)
from firesteel.connectors.python_sink import PythonCommit
from firesteel.connectors.python_source import PartitionPlan
from firesteel.operator import StreamOperator
from taskexecutor.executor.columnar.jvm.engine import SparkEngine
from taskexecutor.executor.lazy_imports import imported
from taskexecutor.executor.operator_factory import OpenedOperator

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

AnySource = TypeVar("AnySource", bound=Source)
AnySink = TypeVar("AnySink", bound=Sink)


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceAnalysis:
    """Properties of a source that are known before data flows."""

    schema: pa.Schema
    # Set for a source that starts a Spark plan: its schema there, and the plan's leaf as users see
    # it.
    spark_schema: StructType | None = None
    leaf: str = ""
    side_schemas: Mapping[str, pa.Schema] = field(default_factory=dict)


class SourceRuntime(ABC, Generic[AnySource]):
    def __init__(self, source: AnySource) -> None:
        self.source = source

    @abstractmethod
    def analyze(self, engine: SparkEngine) -> SourceAnalysis:
        """Checks the source. Raises FiresteelError, or the error of user code."""

    @abstractmethod
    def operator(self, group: Sequence[OpenedOperator]) -> StreamOperator:
        """Creates the operator that reads; `group` is the source and the Spark operators fused with
        it.
        """


class SinkRuntime(ABC, Generic[AnySink]):
    checkpoints = False  # for `analyze`: whether the job takes checkpoints

    def __init__(self, sink: AnySink) -> None:
        self.sink = sink

    def analyze(self, schema: pa.Schema | None) -> pa.Schema | None:
        """Checks the sink against its input's schema; returns its output's schema, if it has an
        output. Raises FiresteelError, or the error of user code.
        """
        return None

    @abstractmethod
    def operator(self) -> StreamOperator:
        """Creates the operator that writes."""


# The runtimes of connectors, as names in this package. A connector of a program has that of its
# nearest base class.
_RUNTIMES: dict[type[Source] | type[Sink], str] = {
    Source: "split_source:SplitSource",
    FileSource: "files.source:FileSourceRuntime",
    KafkaSource: "kafka.source:KafkaSourceRuntime",
    PartitionPlan: "python.source:PartitionPlanRuntime",
    PythonSource: "python.source:PythonSourceRuntime",
    SequenceSource: "sequences.source:SequenceRuntime",
    Sink: "writer_sink:WriterSink",
    CollectSink: "collect_sink:CollectSinkRuntime",
    FileSink: "files.sink:FileSinkRuntime",
    ForeachBatchSink: "foreach_batch:ForeachBatchRuntime",
    ForeachRowsSink: "foreach_batch:ForeachRowsRuntime",
    KafkaSink: "kafka.sink:KafkaSinkRuntime",
    PostgresSink: "postgres.sink:PostgresSinkRuntime",
    PrintSink: "print_sink:PrintSinkRuntime",
    PythonCommit: "python.sink:PythonCommitRuntime",
    PythonSink: "python.sink:PythonSinkRuntime",
}


def source_runtime(source: Source) -> SourceRuntime[Any]:
    runtime: SourceRuntime[Any] = runtime_class(type(source))(source)
    return runtime


def sink_runtime(sink: Sink) -> SinkRuntime[Any]:
    runtime: SinkRuntime[Any] = runtime_class(type(sink))(sink)
    return runtime


def runtime_class(connector: type[Source] | type[Sink]) -> Any:
    name = next(_RUNTIMES[base] for base in connector.__mro__ if base in _RUNTIMES)
    module, _, attribute = name.partition(":")
    return getattr(imported(f"{__package__}.{module}"), attribute)
