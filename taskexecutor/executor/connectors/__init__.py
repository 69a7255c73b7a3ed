"""Readers and writers behind the descriptions in firesteel.connectors."""

from __future__ import annotations

from typing import Any

from firesteel.connectors import CollectSink, FileSink, PrintSink
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
        case _:
            raise FiresteelError(f"{type(sink).__name__} is not a sink")
