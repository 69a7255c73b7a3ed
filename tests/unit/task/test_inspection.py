"""The pure parts of inspections: trees of stacks, and rows as JSON."""

from __future__ import annotations

import datetime as dt
import decimal
import json
import sys
import threading
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from taskexecutor.executor.columnar.jvm.threads import JvmStack
from taskexecutor.executor.inspection import rows
from taskexecutor.executor.inspection.flame_graph import StackSampler, python_frames
from taskexecutor.executor.inspection.rows import RowTap, json_value, sampled_rows
from taskexecutor.executor.inspection.stacks import (
    JVM,
    MAX_DEPTH,
    MAX_FRAMES,
    NATIVE,
    PYTHON,
    Frame,
    StackTree,
    called_frames,
    task_frames,
)
from tests.waiting import eventually

SERVING = [
    "java.base@17.0.15/java.lang.Object.wait(Native Method)",
    "app//org.apache.spark.sql.Plan$$Lambda$1798/0x00007f66a5bc3ca8.apply(Unknown Source)",
    "app//org.apache.spark.sql.classic.Dataset.collect(Dataset.scala:1)",
    "java.base@17.0.15/java.lang.reflect.Method.invoke(Method.java:569)",
    "app//py4j.commands.CallCommand.execute(CallCommand.java:79)",
    "app//py4j.ClientServerConnection.run(ClientServerConnection.java:108)",
    "java.base@17.0.15/java.lang.Thread.run(Thread.java:840)",
]


def frames(*names: str) -> list[Frame]:
    return [Frame(name, PYTHON) for name in names]


def test_equal_stacks_merge_to_a_tree_in_which_callers_come_first() -> None:
    tree = StackTree()
    tree.add(frames("main", "hot"), on_cpu=True)
    tree.add(frames("main", "hot"), on_cpu=True)
    tree.add(frames("main", "wait"), on_cpu=False)
    tree.add([*frames("main"), Frame("hot", JVM)], on_cpu=True)
    graph = tree.flame_graph(samples=4, seconds=0.04)
    assert [(f.name, f.kind, f.caller, f.on_cpu, f.off_cpu) for f in graph.frames] == [
        ("main", PYTHON, -1, 3, 1),
        ("hot", PYTHON, 0, 2, 0),
        ("wait", PYTHON, 0, 0, 1),
        ("hot", JVM, 0, 1, 0),
    ]


def test_the_tree_is_bounded() -> None:
    tree = StackTree()
    tree.add(frames(*(f"deep {i}" for i in range(1_000))), on_cpu=True)
    assert len(tree.flame_graph(samples=1, seconds=1).frames) == MAX_DEPTH + 1
    for i in range(MAX_FRAMES):
        tree.add(frames("main", f"f{i}"), on_cpu=True)
    graph = tree.flame_graph(samples=1, seconds=1)
    assert len(graph.frames) == MAX_FRAMES
    (main,) = (frame for frame in graph.frames if frame.name == "main")
    assert main.on_cpu == MAX_FRAMES, "the samples count for their callers"


def test_stacks_of_the_jvm_begin_with_the_called_method() -> None:
    assert called_frames(SERVING) == [
        Frame("org.apache.spark.sql.classic.Dataset.collect", JVM),
        Frame("org.apache.spark.sql.Plan$$Lambda.apply", JVM),
        Frame("java.lang.Object.wait", NATIVE),
    ]
    waiting = ["java.base@17/java.io.Reader.read(Reader.java:1)", *SERVING[-2:]]
    assert called_frames(waiting) == []


def test_stacks_of_spark_tasks_begin_with_the_task() -> None:
    run = "app//org.apache.spark.executor.Executor$TaskRunner.run(Executor.scala:1)"
    idle = "java.base@17/java.util.concurrent.ThreadPoolExecutor.runWorker(T.java:1)"
    assert [f.name for f in task_frames(["a.B.c(B.java:1)", run, idle])] == [
        "org.apache.spark.executor.Executor$TaskRunner.run",
        "a.B.c",
    ]
    assert task_frames([idle]) == []


class Jvm:
    """A JVM whose thread runs a Spark job, in a worker that computes."""

    def serving(self, port: int) -> str:
        assert port == 4711
        return "serving"

    def workers(self) -> list[str]:
        return ["idle", "computing"]

    def stack(self, thread: str) -> JvmStack:
        job = "app//org.apache.spark.scheduler.DAGScheduler.runJob(DAGScheduler.scala:1)"
        run = "app//org.apache.spark.executor.Executor$TaskRunner.run(Executor.scala:1)"
        return {
            "serving": JvmStack("WAITING", [SERVING[0], job, *SERVING[2:]]),
            "idle": JvmStack("WAITING", []),
            "computing": JvmStack("RUNNABLE", ["a.B.compute(B.java:1)", run]),
        }[thread]


def test_frames_of_the_jvm_stand_below_the_call_that_waits_for_them() -> None:
    """The thread waits in a function that looks like Py4J's."""
    waiting, lock = threading.Event(), threading.Lock()
    lock.acquire()

    class Socket:
        def getsockname(self) -> tuple[str, int]:
            return "127.0.0.1", 4711

    class Connection:
        socket = Socket()

    read: dict[str, Any] = {"waiting": waiting, "lock": lock}
    source = "def readinto():\n waiting.set()\n lock.acquire()"
    exec(compile(source, "/lib/socket.py", "exec"), read)
    send: dict[str, Any] = {"readinto": read["readinto"]}
    source = "def send_command(self):\n readinto()"
    exec(compile(source, "/lib/py4j/clientserver.py", "exec"), send)

    def collect() -> None:
        send["send_command"](Connection())

    thread = threading.Thread(target=collect)
    thread.start()
    waiting.wait()
    innermost = sys._current_frames()[thread.ident or 0]
    stack, port = python_frames(innermost)
    assert port == 4711
    assert stack[-1].name.startswith("test_frames_of_the_jvm_stand_below_the_call_that_waits")
    sampled = StackSampler(thread, jvm=Jvm).run(0.05)
    lock.release()
    thread.join()
    assert [frame.name for frame in sampled.frames[-4:]] == [
        "org.apache.spark.scheduler.DAGScheduler.runJob",
        "java.lang.Object.wait",
        "org.apache.spark.executor.Executor$TaskRunner.run",
        "a.B.compute",
    ]
    assert sampled.frames[-1].on_cpu == sampled.samples


@pytest.mark.parametrize("busy", [True, False])
def test_a_busy_thread_is_on_the_cpu_and_a_waiting_one_is_not(busy: bool) -> None:
    stop = threading.Event()

    def spin() -> None:
        while not stop.is_set():
            pass

    thread = threading.Thread(target=spin if busy else stop.wait)
    thread.start()
    stat = Path(f"/proc/self/task/{thread.native_id}/stat")
    eventually(lambda: (") S " in stat.read_text()) is not busy, "the thread is busy or waits")
    graph = StackSampler(thread).run(0.2)
    stop.set()
    thread.join()
    root = graph.frames[0]
    assert root.on_cpu + root.off_cpu == graph.samples
    assert (root.on_cpu > 0) is busy


# ---- rows


def test_a_tap_copies_the_first_rows_that_pass_and_then_none() -> None:
    tap = RowTap(5)
    batch = pa.record_batch({"x": pa.array([1, 2, 3])})
    for _ in range(3):
        tap(batch)
    assert [b.num_rows for b in tap.batches] == [3, 2]
    assert tap.full.is_set()
    assert sampled_rows(tap.batches, None).rows == ["[1]", "[2]", "[3]", "[1]", "[2]"]


def test_a_tap_copies_few_of_large_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows, "MAX_COPIED_BYTES", 10_000)
    tap = RowTap(100)
    tap(pa.record_batch({"x": ["y" * 1_000] * 100}))
    assert 1 <= sum(b.num_rows for b in tap.batches) <= 10


def test_no_rows_have_columns_and_a_note() -> None:
    sampled = sampled_rows((), pa.schema([("x", pa.int64()), ("t", pa.timestamp("us", "UTC"))]))
    assert [(c.name, c.type) for c in sampled.columns] == [
        ("x", "int64"),
        ("t", "timestamp[us, tz=UTC]"),
    ]
    assert (list(sampled.rows), sampled.note) == ([], "no rows have passed")


@pytest.mark.parametrize(
    ("value", "kind", "shown"),
    [
        (None, pa.int8(), None),
        (True, pa.bool_(), True),
        (7, pa.int64(), 7),
        (2**60, pa.int64(), str(2**60)),
        (1.5, pa.float64(), 1.5),
        (float("nan"), pa.float64(), "NaN"),
        (float("-inf"), pa.float32(), "-Infinity"),
        (decimal.Decimal("1.20"), pa.decimal128(5, 2), "1.20"),
        ("é", pa.string(), "é"),
        ("x" * 300, pa.string(), "x" * 200 + "… (300 characters)"),
        (b"\x00\xff", pa.binary(), "00ff"),
        (b"z" * 300, pa.binary(), "7a" * 200 + "… (300 bytes)"),
        (dt.date(2024, 2, 29), pa.date32(), "2024-02-29"),
        (1, pa.timestamp("us", "Europe/Berlin"), "1970-01-01T01:00:00.000001+01:00"),
        (1, pa.timestamp("us"), "1970-01-01T00:00:00.000001"),
        (2**62, pa.timestamp("us", "UTC"), f"{2**62} as timestamp[us, tz=UTC]"),
        ([1, None], pa.list_(pa.int8()), [1, None]),
        (list(range(22)), pa.list_(pa.int8()), [*range(20), "… (2 more)"]),
        ([("a", 1)], pa.map_(pa.string(), pa.int8()), {"a": 1}),
        (
            {"a": {"b": b"\x01"}},
            pa.struct({"a": pa.struct({"b": pa.binary()})}),
            {"a": {"b": "01"}},
        ),
        ([[[[[1]]]]], pa.list_(pa.list_(pa.list_(pa.list_(pa.list_(pa.int8()))))), [[[["…"]]]]),
    ],
)
def test_values_are_short_and_safe_in_json(value: Any, kind: pa.DataType, shown: Any) -> None:
    found = json_value(pa.array([value], kind)[0])
    assert found == shown
    json.dumps(found, allow_nan=False)
