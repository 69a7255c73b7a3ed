"""Readers and writers behind the descriptions in firesteel.connectors."""

from __future__ import annotations

from typing import Any

from firesteel.connectors import (
    CollectSink,
    FileSink,
    ForeachBatchSink,
    PostgresSink,
    PrintSink,
    PythonSink,
)
from firesteel.connectors.python_sink import PythonCommit
from firesteel.errors import FiresteelError
from firesteel.operator import StreamOperator


def build_sink(sink: Any) -> StreamOperator:
    match sink:
        case FileSink():
            from taskexecutor.executor.connectors.file_sink import FileWriter

            return FileWriter(sink)
        case PrintSink():
            from taskexecutor.executor.connectors.print_sink import PrintWriter

            return PrintWriter(sink)
        case CollectSink():
            from taskexecutor.executor.connectors.collect_sink import CollectWriter

            return CollectWriter()
        case ForeachBatchSink():
            from taskexecutor.executor.connectors.foreach_batch import ForeachBatch

            return ForeachBatch(sink)
        case PostgresSink():
            from taskexecutor.executor.connectors.postgres import PostgresWriter

            return PostgresWriter(sink)
        case PythonSink():
            from taskexecutor.executor.connectors.python_sink import EpochWriter

            return EpochWriter(sink)
        case PythonCommit():
            from taskexecutor.executor.connectors.python_sink import PythonCommitter

            return PythonCommitter(sink.sink)
        case _:
            raise FiresteelError(f"{type(sink).__name__} is not a sink")
