"""Spark tasks without a scheduler: RDDs computed on the calling thread, or rather its thread in the
JVM.

They have what Spark's code expects of the task it runs in: memory accounting, the session's
settings, a completion that frees everything, and interruption. Spark has no public API for this.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


class LocalTasks:
    """The local tasks of one session."""

    def __init__(self, session: Any) -> None:
        jvm = session._jvm
        self._of_thread = singleton(jvm, "org.apache.spark.TaskContext")
        self._none = singleton(jvm, "scala.None")
        self._memory_manager_of_task = jvm.org.apache.spark.memory.TaskMemoryManager
        # Through fields: SparkEnv's methods use types that PySpark's jars lack, so reflection on
        # them fails.
        environment = _field(jvm, "org.apache.spark.SparkContext", "_env").get(session._jsc.sc())
        self._memory = _field(jvm, "org.apache.spark.SparkEnv", "_memoryManager").get(environment)
        self._memory_of = _field(jvm, "org.apache.spark.TaskContextImpl", "taskMemoryManager")
        self._properties_of = _field(jvm, "org.apache.spark.TaskContextImpl", "localProperties")
        self._ids = itertools.count(-2, -1)  # the scheduler's are not negative
        self._running: dict[str, LocalTask] = {}

    @contextmanager
    def task(self, group: str, properties: Any) -> Iterator[LocalTask]:
        """A task of the group, which `interrupt` addresses. `properties`: see
        `SparkEngine.session_properties`.
        """
        memory = self._memory_manager_of_task(self._memory, next(self._ids))
        context = self._of_thread.empty()
        self._memory_of.set(context, memory)
        self._properties_of.set(context, properties)
        task = LocalTask(self._of_thread, context)
        # The rows it emits may go through another plan of the same task.
        outer = self._running.get(group)
        self._running[group] = task
        try:
            yield task
        finally:
            if outer is not None:
                self._running[group] = outer
            else:
                del self._running[group]
            with task:  # completion listeners ask for the current task
                context.markTaskCompleted(self._none)
            memory.cleanUpAllAllocatedMemory()

    def interrupt(self, group: str) -> bool:
        """From any thread: makes the group's task fail at its next rows. False if it has none."""
        task = self._running.get(group)
        if task is None:
            return False
        task.context.markInterrupted("the task was cancelled")
        return True


class LocalTask:
    """Inside a `with`, the calling thread runs in the task. Only while Spark computes: the thread
    may run other plans in between.
    """

    def __init__(self, of_thread: Any, context: Any) -> None:
        self._of_thread = of_thread
        self.context = context

    def __enter__(self) -> None:
        self._of_thread.setTaskContext(self.context)

    def __exit__(self, *error: object) -> None:
        self._of_thread.unset()


def singleton(jvm: Any, name: str) -> Any:
    """A Scala object."""
    return jvm.java.lang.Class.forName(f"{name}$").getField("MODULE$").get(None)


def _field(jvm: Any, owner: str, name: str) -> Any:
    field = jvm.java.lang.Class.forName(owner).getDeclaredField(name)
    field.setAccessible(True)
    return field
