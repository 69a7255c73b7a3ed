"""Firesteel's Java code in a slot's JVM, and Spark's tasks without a scheduler."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from taskexecutor.executor.columnar.jvm.archive import archived_start
from taskexecutor.executor.columnar.jvm.code import PACKAGE, Code, sources
from taskexecutor.executor.columnar.jvm.engine import SparkEngine
from taskexecutor.executor.columnar.jvm.launch import OWN_JAR
from taskexecutor.executor.columnar.jvm.local_tasks import singleton
from taskexecutor.executor.columnar.warm_up import compiled


def file_scan(engine: SparkEngine, path: Path) -> tuple[Any, Any]:
    """A plan that reads the file, with its partition."""
    frame = engine.session.read.schema("n LONG").parquet(str(path))
    rdd = frame._jdf.queryExecution().executedPlan().execute()
    return rdd, rdd.partitions()[0]


def drained(rows: Any) -> int:
    count = 0
    while rows.hasNext():
        rows.next()
        count += 1
    return count


def test_a_task_reads_files_and_counts_their_rows(engine: SparkEngine, tmp_path: Path) -> None:
    pq.write_table(pa.table({"n": range(1000)}), tmp_path / "n.parquet")
    rdd, partition = file_scan(engine, tmp_path / "n.parquet")
    tasks = engine.local_tasks
    for _ in range(2):
        with tasks.task("files", engine.session_properties()) as task:
            with task:  # Hadoop's settings are a broadcast, which is locked in the task's name
                assert drained(rdd.iterator(partition, task.context)) == 1000
            assert task.records_read == 1000
    assert tasks._locks.getTaskLockCount(task.context.taskAttemptId()) == 0
    assert tasks.used_bytes == 0


def test_however_many_tasks_there_were_what_is_no_task_keeps_its_locks(engine: SparkEngine) -> None:
    """Spark keeps those of threads without a task under the id -1024."""
    tasks, properties = engine.local_tasks, engine.session_properties()
    for _ in range(1100):
        tasks.begin("many", properties).end()
    assert tasks._locks.getTaskLockCount(-1024) >= 0  # it fails if there is no such id


def test_the_innermost_task_of_a_group_is_interrupted(engine: SparkEngine) -> None:
    tasks, properties = engine.local_tasks, engine.session_properties()
    with tasks.task("a", properties) as outer, tasks.task("b", properties) as other:
        with tasks.task("a", properties) as inner:
            assert outer.context.taskAttemptId() != inner.context.taskAttemptId()
            assert tasks.interrupt("a")
            assert inner.context.isInterrupted()
        assert not outer.context.isInterrupted() and not other.context.isInterrupted()
        assert tasks.interrupt("a")
        assert outer.context.isInterrupted()
    assert not tasks.interrupt("a")
    assert singleton(engine.session._jvm, "org.apache.spark.TaskContext").get() is None


def test_generated_code_finds_our_classes(engine: SparkEngine) -> None:
    """Which Spark looks for in the class loader of the thread."""
    jvm: Any = engine.session._jvm
    loader = jvm.org.apache.spark.util.Utils.getContextOrSparkClassLoader()
    assert loader.loadClass(f"{PACKAGE}.FiresteelLocalTask") is not None
    again = Code(engine.session._sc._gateway)
    assert again.type("FiresteelLocalTask") is not None, "it is there: not defined again"


def test_our_java_is_compiled_into_files_of_a_jar(tmp_path: Path) -> None:
    names = set(compiled(tmp_path))
    folder = PACKAGE.replace(".", "/")
    assert {f"{folder}/{name}.class" for name in sources()} <= names


@pytest.mark.skipif(archived_start() is None, reason="`make setup` makes the jar")
def test_slots_take_our_java_from_the_jar(engine: SparkEngine) -> None:
    jvm: Any = engine.session._jvm
    for name in sources():
        found = jvm.java.lang.Class.forName(f"{PACKAGE}.{name}")
        place = found.getProtectionDomain().getCodeSource().getLocation()
        assert str(place).endswith(OWN_JAR)


def test_tasks_that_need_a_class_at_the_same_time_define_it_once(
    engine: SparkEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = {
        "LoadedOnce": f"package {PACKAGE};\npublic class LoadedOnce extends LoadedParent {{}}\n",
        "LoadedParent": f"package {PACKAGE};\npublic class LoadedParent {{}}\n",
    }
    monkeypatch.setattr("taskexecutor.executor.columnar.jvm.code.sources", lambda: texts)
    code = Code(engine.session._sc._gateway)
    loaders = 4
    together = threading.Barrier(loaders)

    def load() -> None:
        together.wait()
        assert code.type("LoadedOnce")() is not None

    with ThreadPoolExecutor(loaders) as threads:
        for done in [threads.submit(load) for _ in range(loaders)]:
            done.result()
