"""The threads that a job leaves behind in its slot's process.

A thread cannot be killed, and a thread that survives its job would run that job's code during the
next one. Therefore a process with such a thread is not reused.
"""

from __future__ import annotations

import ctypes
import sys
import threading
import time
import traceback
from collections.abc import Callable
from types import FrameType
from typing import NamedTuple

# Threads that start in these packages serve the process, not the job: Flight's streams,
# inspections, imports, the cancellation of Spark jobs, gRPC, and the JVM's calls into Python, whose
# connections Py4J keeps.
RUNTIME_PACKAGES = (
    "taskexecutor.executor.exchange",
    "taskexecutor.executor.inspection",
    "taskexecutor.executor.interpreter",
    "taskexecutor.executor.columnar",
    "grpc",
    "py4j",
)


class LeftThread(NamedTuple):
    name: str
    stack: str  # where it runs, as in a traceback


class JobThreads:
    """Tracks a job's threads. Created when a job gets the slot: every thread that starts later
    belongs to the job, unless it starts in one of RUNTIME_PACKAGES.
    """

    def __init__(self) -> None:
        self._before = set(threading.enumerate())

    def join(self, timeout_s: float) -> list[LeftThread]:
        """Waits for the job's threads, at most `timeout_s` in total, and returns those still
        running.
        """
        deadline = time.monotonic() + timeout_s
        for thread, _ in self._alive():
            thread.join(max(0.0, deadline - time.monotonic()))
        return [
            LeftThread(thread.name, "".join(traceback.format_stack(frame)))
            for thread, frame in self._alive()
        ]

    def alive(self) -> list[threading.Thread]:
        return [thread for thread, _ in self._alive()]

    def _alive(self) -> list[tuple[threading.Thread, FrameType]]:
        frames = sys._current_frames()
        return [
            (thread, frame)
            for thread in threading.enumerate()
            if thread not in self._before
            and not isinstance(thread, threading._DummyThread)  # a native library's thread
            and thread is not threading.current_thread()
            and (frame := frames.get(thread.ident or 0)) is not None
            and not _begins_in(frame, RUNTIME_PACKAGES)
        ]


def raise_in(thread: threading.Thread, error: type[BaseException]) -> None:
    """Raises `error` in the thread as soon as it runs Python code."""
    ident = ctypes.c_ulong(thread.ident or 0)
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ident, ctypes.py_object(error))


def _begins_in(frame: FrameType, packages: tuple[str, ...]) -> bool:
    """Returns whether the first code that the thread runs, apart from `threading` itself, belongs
    to one of the packages.
    """
    first = ""
    walked: FrameType | None = frame
    while walked is not None:
        module = walked.f_globals.get("__name__", "")
        if module != "threading":
            first = module
        walked = walked.f_back
    return any(first == package or first.startswith(package + ".") for package in packages)


class Repeating:
    """A thread of the job that calls `action`, which returns the pause in seconds before the next
    call.

    If it does not end, the slot's process is replaced.
    """

    def __init__(self, name: str, action: Callable[[], float]) -> None:
        self._name = name
        self._action = action
        self.stopped = threading.Event()

    def start(self, pause_s: float) -> None:
        """Starts the thread. `pause_s` precedes the first call."""
        threading.Thread(target=self._run, args=(pause_s,), name=self._name, daemon=True).start()

    def stop(self) -> None:
        """Stops the thread without waiting for the current call."""
        self.stopped.set()

    def _run(self, pause_s: float) -> None:
        while not self.stopped.wait(pause_s):
            pause_s = self._action()
