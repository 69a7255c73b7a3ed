"""Firesteel: Apache Flink's runtime for PySpark pipelines.

from firesteel import Environment, Tumbling, Watermarks
from firesteel.connectors import FileSink, FileSource
"""

import os
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

# Failures are raised as exceptions. gRPC's own lines on standard error, such as those of a poller
# when a process is started, would only clutter a command's output. gRPC reads this when imported.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")

__all__ = [
    "AggregateFunction",
    "AggregatingStateDescriptor",
    "AsyncFunction",
    "BroadcastConnectedStream",
    "BroadcastProcessFunction",
    "BroadcastStream",
    "Client",
    "CoProcessFunction",
    "CollectedBatches",
    "ConnectedStreams",
    "DataStream",
    "DataStreamSink",
    "Environment",
    "ExponentialBackoffDelayRetryStrategy",
    "FixedDelayRetryStrategy",
    "Global",
    "JobClient",
    "JobResult",
    "KeyedBroadcastProcessFunction",
    "KeyedProcessFunction",
    "KeyedStream",
    "ListStateDescriptor",
    "MapStateDescriptor",
    "ProcessFunction",
    "ReduceFunction",
    "ReducingStateDescriptor",
    "ResourceProfile",
    "Session",
    "Sliding",
    "StateTtlConfig",
    "StaticTable",
    "Tumbling",
    "ValueStateDescriptor",
    "Watermarks",
    "WindowedStream",
    "__version__",
]

if TYPE_CHECKING:
    from firesteel.async_functions import (
        AsyncFunction,
        ExponentialBackoffDelayRetryStrategy,
        FixedDelayRetryStrategy,
    )
    from firesteel.broadcast_functions import (
        BroadcastProcessFunction,
        KeyedBroadcastProcessFunction,
    )
    from firesteel.client.client import Client
    from firesteel.client.collected import CollectedBatches
    from firesteel.client.execution import JobClient, JobResult
    from firesteel.common.resources import ResourceProfile
    from firesteel.datastream import (
        BroadcastConnectedStream,
        BroadcastStream,
        ConnectedStreams,
        DataStream,
        DataStreamSink,
        KeyedStream,
    )
    from firesteel.environment import Environment
    from firesteel.functions import CoProcessFunction, KeyedProcessFunction, ProcessFunction
    from firesteel.state import (
        AggregateFunction,
        AggregatingStateDescriptor,
        ListStateDescriptor,
        MapStateDescriptor,
        ReduceFunction,
        ReducingStateDescriptor,
        StateTtlConfig,
        ValueStateDescriptor,
    )
    from firesteel.static_table import StaticTable
    from firesteel.windowed_stream import WindowedStream
    from firesteel.windows import Global, Session, Sliding, Tumbling, Watermarks

_HOMES = {
    "AggregateFunction": "firesteel.state",
    "AggregatingStateDescriptor": "firesteel.state",
    "AsyncFunction": "firesteel.async_functions",
    "BroadcastConnectedStream": "firesteel.datastream",
    "BroadcastProcessFunction": "firesteel.broadcast_functions",
    "BroadcastStream": "firesteel.datastream",
    "Client": "firesteel.client.client",
    "CoProcessFunction": "firesteel.functions",
    "CollectedBatches": "firesteel.client.collected",
    "ConnectedStreams": "firesteel.datastream",
    "DataStream": "firesteel.datastream",
    "DataStreamSink": "firesteel.datastream",
    "Environment": "firesteel.environment",
    "Global": "firesteel.windows",
    "ExponentialBackoffDelayRetryStrategy": "firesteel.async_functions",
    "FixedDelayRetryStrategy": "firesteel.async_functions",
    "JobClient": "firesteel.client.execution",
    "JobResult": "firesteel.client.execution",
    "KeyedBroadcastProcessFunction": "firesteel.broadcast_functions",
    "KeyedProcessFunction": "firesteel.functions",
    "KeyedStream": "firesteel.datastream",
    "ListStateDescriptor": "firesteel.state",
    "MapStateDescriptor": "firesteel.state",
    "ProcessFunction": "firesteel.functions",
    "ReduceFunction": "firesteel.state",
    "ReducingStateDescriptor": "firesteel.state",
    "ResourceProfile": "firesteel.common.resources",
    "Session": "firesteel.windows",
    "Sliding": "firesteel.windows",
    "StateTtlConfig": "firesteel.state",
    "StaticTable": "firesteel.static_table",
    "Tumbling": "firesteel.windows",
    "ValueStateDescriptor": "firesteel.state",
    "Watermarks": "firesteel.windows",
    "WindowedStream": "firesteel.windowed_stream",
}


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, "connectors", "savepoint"})


def __getattr__(name: str) -> Any:
    """Loads a public name on first use, so that a service process does not import the whole API."""
    if name in _HOMES:
        import importlib

        return getattr(importlib.import_module(_HOMES[name]), name)
    if name == "savepoint":
        import firesteel.savepoint

        return firesteel.savepoint
    raise AttributeError(f"module 'firesteel' has no attribute {name!r}")
