"""Tasks of Spark's that no scheduler has made: RDDs computed on the calling thread, or rather its
thread in the JVM.

What code of Spark's expects of the task that it runs in is given here: memory to account for, the
session's values, an end at which everything is freed, and interruption. No public API of Spark's
has this.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


class LocalTasks:
    """Those of one session."""

    def __init__(self, session: Any) -> None:
        jvm = session._jvm
        self._of_thread = singleton(jvm, "org.apache.spark.TaskContext")
        self._none = singleton(jvm, "scala.None")
        self._memory_manager_of_task = jvm.org.apache.spark.memory.TaskMemoryManager
        # By their fields: SparkEnv's methods have types that PySpark's jars leave out, so it cannot
        # be asked for any of them.
        environment = _field(jvm, "org.apache.spark.SparkContext", "_env").get(session._jsc.sc())
        self._memory = _field(jvm, "org.apache.spark.SparkEnv", "_memoryManager").get(environment)
        self._memory_of = _field(jvm, "org.apache.spark.TaskContextImpl", "taskMemoryManager")
        self._values_of = _field(jvm, "org.apache.spark.TaskContextImpl", "localProperties")
        self._ids = itertools.count(-2, -1)  # the scheduler's are not negative
        self._running: dict[str, LocalTask] = {}

    @contextmanager
    def task(self, group: str, values: Any) -> Iterator[LocalTask]:
        """A task of this group's, which may be interrupted by it. `values`: the session's
        (`SparkEngine.session_properties`).
        """
        memory = self._memory_manager_of_task(self._memory, next(self._ids))
        context = self._of_thread.empty()
        self._memory_of.set(context, memory)
        self._values_of.set(context, values)
        task = LocalTask(self._of_thread, context)
        outer = self._running.get(
            group
        )  # what is emitted meanwhile may go through another plan of the same task
        self._running[group] = task
        try:
            yield task
        finally:
            if outer is not None:
                self._running[group] = outer
            else:
                del self._running[group]
            with task:  # what is called at the end asks for it
                context.markTaskCompleted(self._none)
            memory.cleanUpAllAllocatedMemory()

    def interrupt(self, group: str) -> bool:
        """From any thread: the group's task, if it has one, ends with an error when it takes up its
        next rows.
        """
        task = self._running.get(group)
        if task is None:
            return False
        task.context.markInterrupted("the task was cancelled")
        return True


class LocalTask:
    """In a `with`: the calling thread is in the task. Only while Spark computes, because other
    plans may be run in between.
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
