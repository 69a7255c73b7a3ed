"""Spark tasks without a scheduler: RDDs computed on the calling thread (more precisely, its thread
in the JVM).

They provide what Spark's code expects from its task: memory accounting, the session's settings,
locks on broadcasts, a completion that frees everything, and interruption. Spark has no public API
for this, so FiresteelLocalTask creates them.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from typing import Any

from taskexecutor.executor.columnar.jvm.code import Code


class LocalTasks:
    """The local tasks of one session."""

    def __init__(self, session: Any, code: Code) -> None:
        jvm = session._jvm
        self._code = code
        # Through fields: SparkEnv's methods use types that PySpark's jars lack, so reflection on
        # them fails.
        environment = _field(jvm, "org.apache.spark.SparkContext", "_env").get(session._jsc.sc())
        self._memory = _field(jvm, "org.apache.spark.SparkEnv", "_memoryManager").get(environment)
        blocks = _field(jvm, "org.apache.spark.SparkEnv", "blockManager").get(environment)
        self._locks = _field(jvm, "org.apache.spark.storage.BlockManager", "blockInfoManager").get(
            blocks
        )

    @cached_property
    def _type(self) -> Any:
        return self._code.type("FiresteelLocalTask")

    @contextmanager
    def task(self, group: str, properties: Any) -> Iterator[LocalTask]:
        """Runs a task of the group, which `interrupt` addresses. `properties`: see
        `SparkEngine.session_properties`.

        The rows it emits may pass through another plan of the same group, which is a nested task.
        """
        task = self.begin(group, properties)
        try:
            yield LocalTask(task)
        finally:
            task.end()

    def begin(self, group: str, properties: Any) -> Any:
        """Returns the Java object of a task, which the caller must end()."""
        return self._type(group, properties, *self.resources)

    @property
    def resources(self) -> tuple[Any, Any]:
        """The last argument of FiresteelLocalTask's constructor."""
        return self._memory, self._locks

    def interrupt(self, group: str) -> bool:
        """Makes the group's task fail at its next rows. Returns False if the group has none. May be
        called from any thread.
        """
        return bool(self._type.interrupt(group))

    @property
    def free_bytes(self) -> int:
        """Returns the memory available to a task for sorts, hash tables and so on."""
        return int(self._memory.maxOnHeapStorageMemory()) - int(self._memory.storageMemoryUsed())

    @property
    def used_bytes(self) -> int:
        """Returns the memory that tasks hold for sorts, aggregations and so on."""
        return int(self._memory.executionMemoryUsed())


class LocalTask:
    """Inside a `with`, the calling thread runs in the task. Use it only while Spark computes: the
    thread may run other plans in between.
    """

    def __init__(self, java: Any) -> None:
        self.java = java

    @property
    def context(self) -> Any:
        """Spark's TaskContext."""
        return self.java.context()

    @property
    def records_read(self) -> int:
        """The number of rows that the task has read from files so far."""
        return int(self.java.recordsRead())

    def __enter__(self) -> None:
        self.java.enter()

    def __exit__(self, *error: object) -> None:
        self.java.leave()


def singleton(jvm: Any, name: str) -> Any:
    """Returns a Scala object."""
    return jvm.java.lang.Class.forName(f"{name}$").getField("MODULE$").get(None)


def _field(jvm: Any, owner: str, name: str) -> Any:
    field = jvm.java.lang.Class.forName(owner).getDeclaredField(name)
    field.setAccessible(True)
    return field
