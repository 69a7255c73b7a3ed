"""The task runtime: what runs in one thread of a PySpark executor. `StreamTask` is the way in."""

from taskexecutor.executor.task.config import TaskConfig, TaskServices
from taskexecutor.executor.task.stream_task import StreamTask

__all__ = ["StreamTask", "TaskConfig", "TaskServices"]
