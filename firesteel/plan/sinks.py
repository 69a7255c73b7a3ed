"""What `DataStream.sink_to` adds to a program: one operator, or for a PythonSink two."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from firesteel.common.job_graph import Partitioner
from firesteel.connectors import (
    CollectSink,
    FileSink,
    ForeachBatchSink,
    PostgresSink,
    PrintSink,
    PythonCommit,
    PythonSink,
)
from firesteel.errors import InvalidProgram
from firesteel.plan.specs import SinkSpec

if TYPE_CHECKING:
    from firesteel.datastream import DataStream
    from firesteel.plan.stream_graph import StreamNode

_KINDS = (CollectSink, FileSink, ForeachBatchSink, PostgresSink, PrintSink, PythonSink)


def add_sink(stream: DataStream, sink: Any, name: str | None, uid: str) -> StreamNode:
    """The operator that uid() and the like of the sink are about. Raises InvalidProgram for what is
    no sink.
    """
    from firesteel.environment import absolute_path

    if not isinstance(sink, _KINDS):
        kinds = ", ".join(kind.__name__ for kind in _KINDS)
        raise InvalidProgram(f"sink_to() takes one of {kinds}, not {type(sink).__name__}")
    if isinstance(sink, FileSink):
        sink = dataclasses.replace(sink, path=absolute_path(sink.path))
    title = name or f"Sink: {_title(sink)}"
    added = stream._add(title, SinkSpec(sink=sink), uid=uid)
    node = added._configured()
    if isinstance(sink, CollectSink):
        node.coordinator_kind, node.coordinator_options_json = "collect", "{}"
    if isinstance(sink, PythonSink):
        committer = added._partitioned(Partitioner.REBALANCE)._add(
            f"{title} commit", SinkSpec(sink=PythonCommit(sink)), uid=f"{uid}-commit" if uid else ""
        )
        committer.set_parallelism(1)
    return node


def _title(sink: Any) -> str:
    return sink.name if isinstance(sink, PythonSink) else type(sink).__name__.removesuffix("Sink")
