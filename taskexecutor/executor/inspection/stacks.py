"""Merges sampled stacks to the tree of a flame graph. Bounded in depth, number of frames and
characters.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from firesteel.common.inspections import FlameGraph, StackFrame

MAX_DEPTH = 250
MAX_FRAMES = 10_000
MAX_NAME_CHARS = 160
PYTHON, JVM, NATIVE = "python", "jvm", "native"

# "java.base@17.0.15/java.lang.Thread.run(Thread.java:840)"
_JVM_FRAME = re.compile(r"(?:[\w.@-]*//?)?(?P<name>[^(]+)\((?P<place>.*)\)$")
_LAMBDA = re.compile(r"\$\$Lambda[^.]*")
# How Py4J calls a method: below it is the caller in Python.
_JOB = "org.apache.spark.scheduler.DAGScheduler.runJob"
_TASK = "org.apache.spark.executor.Executor$TaskRunner.run"
_CALLS = ("py4j.", "java.lang.reflect.", "jdk.internal.reflect.", "java.lang.Thread.run")


class Frame(NamedTuple):
    name: str
    kind: str


class StackTree:
    """Stacks are added from the outermost call to the innermost."""

    def __init__(self) -> None:
        self._index: dict[tuple[int, Frame], int] = {}
        self._on_cpu: list[int] = []
        self._off_cpu: list[int] = []

    def add(self, stack: Sequence[Frame], *, on_cpu: bool) -> None:
        counts = self._on_cpu if on_cpu else self._off_cpu
        caller = -1
        for frame in _shortened(stack):
            key = (caller, frame)
            index = self._index.get(key)
            if index is None:
                if len(self._index) >= MAX_FRAMES:
                    return  # the sample counts for its callers
                index = self._index[key] = len(self._index)
                self._on_cpu.append(0)
                self._off_cpu.append(0)
            counts[index] += 1
            caller = index

    def flame_graph(self, *, samples: int, seconds: float) -> FlameGraph:
        frames = [
            StackFrame(
                frame.name[:MAX_NAME_CHARS], frame.kind, caller, self._on_cpu[i], self._off_cpu[i]
            )
            for i, (caller, frame) in enumerate(self._index)
        ]
        return FlameGraph(samples, seconds, frames)


def called_frames(lines: Sequence[str]) -> list[Frame]:
    """Returns the stack of a thread that serves Python, from the method that Python has called.
    Empty if the thread waits for a call.
    """
    frames = _jvm_frames(lines)
    first = 0
    while first < len(frames) and frames[first].name.startswith(_CALLS):
        first += 1
    called = any(frame.name.startswith("py4j.commands.") for frame in frames[:first])
    return frames[first:] if called else []


def task_frames(lines: Sequence[str]) -> list[Frame]:
    """Returns the stack of a thread that runs a task of a Spark job, from the task. Empty if the
    thread runs none.
    """
    frames = _jvm_frames(lines)
    for first, frame in enumerate(frames):
        if frame.name == _TASK:
            return frames[first:]
    return []


def waits_for_job(frames: Sequence[Frame]) -> bool:
    """Returns whether a thread waits for a Spark job, whose tasks run in other threads."""
    return any(frame.name == _JOB for frame in frames)


def _jvm_frames(lines: Sequence[str]) -> list[Frame]:
    return [_jvm_frame(line) for line in reversed(lines)]


def _jvm_frame(line: str) -> Frame:
    matched = _JVM_FRAME.match(line)
    if matched is None:
        return Frame(line, JVM)
    name = _LAMBDA.sub("$$Lambda", matched["name"])  # equal lambdas have different numbers
    return Frame(name, NATIVE if matched["place"] == "Native Method" else JVM)


def _shortened(stack: Sequence[Frame]) -> Sequence[Frame]:
    if len(stack) <= MAX_DEPTH:
        return stack
    half = MAX_DEPTH // 2
    return [*stack[:half], Frame("... (a deep stack)", stack[half].kind), *stack[-half:]]
