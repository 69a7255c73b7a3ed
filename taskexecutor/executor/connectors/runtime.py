"""The runtime interfaces of connectors: their schemas and checks, and their operators.

Runtimes are imported on first use: a slot without a PostgresSink needs no PostgreSQL driver.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import pyarrow as pa

from firesteel.connectors.sink import Sink
from firesteel.connectors.source import Source
from firesteel.errors import FiresteelError
from firesteel.operator import StreamOperator
from taskexecutor.executor.columnar.jvm.engine import SparkEngine
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


def source_runtime(source: Source) -> SourceRuntime[Any]:
    runtime = resolve_name(source.runtime)(source)
    if not isinstance(runtime, SourceRuntime):
        raise FiresteelError(
            f"{source.runtime}, the runtime of {source.display_name}, is not a SourceRuntime"
        )
    return runtime


def sink_runtime(sink: Sink) -> SinkRuntime[Any]:
    runtime = resolve_name(sink.runtime)(sink)
    if not isinstance(runtime, SinkRuntime):
        raise FiresteelError(
            f"{sink.runtime}, the runtime of {sink.display_name}, is not a SinkRuntime"
        )
    return runtime
