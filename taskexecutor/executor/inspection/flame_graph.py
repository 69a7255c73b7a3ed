"""Samples the stacks of a task's threads: of Python, and of the JVM while Python waits for it.

The sampling thread needs the interpreter's lock about 100 times per second, for some 0.1 ms. If
samples take long, as those of the JVM may, there are fewer, down to 20 per second.
Spark's Python workers are other processes, whose stacks it cannot read: the frames of the JVM that
wait for them stand for their time.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import PurePath
from types import CodeType, FrameType
from typing import Any, Protocol

from firesteel.common.inspections import FlameGraph
from taskexecutor.executor.columnar.jvm.threads import JvmStack
from taskexecutor.executor.inspection.stacks import (
    PYTHON,
    Frame,
    StackTree,
    called_frames,
    task_frames,
    waits_for_job,
)

INTERVAL_S = 0.01
_LONGEST_INTERVAL_S = 0.05
_MAX_SHARE = 0.04  # of the time, which samples should take
_SMOOTHING = 0.1  # of the time that they take: single samples must not change their frequency
_PY4J = "py4j/clientserver.py"
_SOCKET = "/socket.py"
_BUSY_SHARE = 0.5
_RUNNABLE = "RUNNABLE"


class JvmThreads(Protocol):
    """The part of columnar.jvm.threads.JvmThreads that the sampler uses."""

    def serving(self, port: int) -> Any: ...

    def workers(self) -> list[Any]: ...

    def stack(self, thread: Any) -> JvmStack: ...


class StackSampler:
    """Samples `thread`, and the threads of `others()` that use the CPU. `jvm` is called in the
    sampling thread; it returns None if there is no JVM.
    """

    def __init__(
        self,
        thread: threading.Thread,
        *,
        others: Callable[[], Sequence[threading.Thread]] = lambda: (),
        jvm: Callable[[], JvmThreads | None] = lambda: None,
    ) -> None:
        self._thread = thread
        self._others = others
        self._connect = jvm
        self._tree = StackTree()
        self._runnable_ns: dict[int, tuple[int, int]] = {}  # by thread, with the time of its sample
        self._turn = 0

    def run(self, seconds: float, stop: Callable[[], bool] = lambda: False) -> FlameGraph:
        """Samples for this time, or until `stop()` or the end of the thread."""
        jvm = self._connect()
        self._used_cpu(self._thread)
        started_s = time.monotonic()
        taken_s, samples = 0.0, 0
        while (now_s := time.monotonic()) < started_s + seconds:
            if stop() or not self._thread.is_alive():
                break
            self._sample(jvm)
            samples += 1
            sample_s = time.monotonic() - now_s
            taken_s += _SMOOTHING * (sample_s - taken_s)
            interval_s = min(max(INTERVAL_S, taken_s / _MAX_SHARE), _LONGEST_INTERVAL_S)
            time.sleep(max(0.0, interval_s - sample_s))
        return self._tree.flame_graph(samples=samples, seconds=time.monotonic() - started_s)

    def _sample(self, jvm: JvmThreads | None) -> None:
        others = self._others()
        frames = sys._current_frames()
        for thread in (self._thread, *others):
            innermost = frames.get(thread.ident or 0)
            if innermost is None:
                continue
            stack, port = python_frames(innermost)
            on_cpu = self._used_cpu(thread)
            if thread is not self._thread:
                if on_cpu:
                    self._tree.add([Frame(thread.name, PYTHON), *stack], on_cpu=True)
                continue
            if port is not None and jvm is not None:
                called, on_cpu = self._called(jvm, port)
                stack += called
            self._tree.add(stack, on_cpu=on_cpu)
        del frames

    def _called(self, jvm: JvmThreads, port: int) -> tuple[list[Frame], bool]:
        """Returns the frames of the call that Python waits for, and whether it uses the CPU."""
        serving = jvm.serving(port)
        if serving is None:
            return [], False
        state, lines = jvm.stack(serving)
        frames = called_frames(lines)
        if not frames or not waits_for_job(frames):
            return frames, bool(frames) and state == _RUNNABLE
        self._turn += 1
        workers = jvm.workers()
        for index in range(len(workers)):
            state, lines = jvm.stack(workers[(self._turn + index) % len(workers)])
            if task := task_frames(lines):
                return frames + task, state == _RUNNABLE
        return frames, False

    def _used_cpu(self, thread: threading.Thread) -> bool:
        """Returns whether the thread has used the CPU, or waited only for a free one, for most of
        the time since its last sample.
        """
        native_id = thread.native_id or 0
        runnable_ns, now_ns = _runnable_ns(native_id), time.monotonic_ns()
        last_runnable_ns, last_ns = self._runnable_ns.get(native_id, (runnable_ns, now_ns))
        self._runnable_ns[native_id] = runnable_ns, now_ns
        return runnable_ns - last_runnable_ns > _BUSY_SHARE * (now_ns - last_ns)


def python_frames(innermost: FrameType) -> tuple[list[Frame], int | None]:
    """Returns the stack from the outermost call; and, if it waits for the JVM, the local port of
    its connection.
    """
    frames: list[Frame] = []
    port: int | None = None
    walked: FrameType | None = innermost
    while walked is not None:
        code = walked.f_code
        if code.co_filename.endswith(_PY4J) and code.co_name == "send_command":
            port = _port(walked) if not frames else port
        elif frames or not code.co_filename.endswith(_SOCKET):
            frames.append(Frame(_name(walked, code), PYTHON))
        walked = walked.f_back
    frames.reverse()
    return frames, port


def _port(frame: FrameType) -> int | None:
    try:
        return int(frame.f_locals["self"].socket.getsockname()[1])
    except (KeyError, AttributeError, OSError):
        return None


def _name(frame: FrameType, code: CodeType) -> str:
    module = frame.f_globals.get("__name__", "")
    if module in ("", "__main__", "__mp_main__"):
        module = PurePath(code.co_filename).name
    return f"{code.co_qualname} ({module}:{code.co_firstlineno})"


def _runnable_ns(native_id: int) -> int:
    """Returns how long a thread of this process has run or been ready to run; 0 if it has ended."""
    try:
        with open(f"/proc/self/task/{native_id}/schedstat") as file:
            running_ns, ready_ns, _ = file.read().split()
        return int(running_ns) + int(ready_ns)
    except (OSError, ValueError):
        return 0
