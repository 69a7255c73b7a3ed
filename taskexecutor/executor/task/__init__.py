"""The task runtime: runs one task in one thread of a PySpark executor. `StreamTask` is the entry
point.
"""

from taskexecutor.executor.task.config import InEdge, OutEdge, TaskConfig, TaskEnd, TaskServices
from taskexecutor.executor.task.meters import MetricSample
from taskexecutor.executor.task.stream_task import StreamTask

__all__ = [
    "InEdge",
    "MetricSample",
    "OutEdge",
    "StreamTask",
    "TaskConfig",
    "TaskEnd",
    "TaskServices",
]
