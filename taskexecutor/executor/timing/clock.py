"""Measures a task's time: every nanosecond of its thread belongs to exactly one kind of work.

Kinds nest like calls: an inner kind interrupts the outer one, so nothing is counted twice. For
example, when a Python operator emits into a chained Spark operator, the inner time is Spark's.
Entering and leaving cost well under a microsecond.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from enum import IntEnum
from types import TracebackType


class TimeKind(IntEnum):
    RUNTIME = 0  # the task's own bookkeeping, and operators that do not measure theirs
    IDLE = 1  # nothing to do
    SPARK = 2  # running a plan; the other three kinds of work on Spark interrupt it
    PYTHON = 3
    EXCHANGE = 4  # writing batches to result partitions; includes waiting for credit
    BLOCKED = 5  # waiting for a coordinator's answer, or between elements for credit
    PLANNING = 6  # making a Spark plan
    CONVERTING = 7  # converting rows to and from Spark
    READING = 8  # reading files with Arrow, for Spark


class TaskClock:
    """Written only by the task's thread; `read_ns` may be called by any thread."""

    __slots__ = ("_kind", "_mark_ns", "_now_ns", "_spent_ns", "_stack", "spans")

    def __init__(self, now_ns: Callable[[], int] = time.perf_counter_ns) -> None:
        self._now_ns = now_ns
        self._spent_ns = [0] * len(TimeKind)
        self._stack: list[TimeKind] = []
        self._kind = TimeKind.RUNTIME
        self._mark_ns = now_ns()
        self.spans = {kind: Span(self, kind) for kind in TimeKind}

    def enter(self, kind: TimeKind) -> None:
        now_ns = self._now_ns()
        self._spent_ns[self._kind] += now_ns - self._mark_ns
        self._mark_ns = now_ns
        self._stack.append(self._kind)
        self._kind = kind

    def leave(self) -> None:
        now_ns = self._now_ns()
        self._spent_ns[self._kind] += now_ns - self._mark_ns
        self._mark_ns = now_ns
        self._kind = self._stack.pop()

    @property
    def kind(self) -> TimeKind:
        """Returns the current kind of work."""
        return self._kind

    def read_ns(self) -> list[int]:
        """Returns the time spent so far, by kind, including the current span."""
        kind, mark_ns = self._kind, self._mark_ns
        spent_ns = list(self._spent_ns)
        spent_ns[kind] += max(0, self._now_ns() - mark_ns)
        return spent_ns


class Span:
    """Measures a kind of work: `with clock.spans[kind]: ...`. One object serves all uses, including
    nested ones.
    """

    __slots__ = ("_clock", "_kind")

    def __init__(self, clock: TaskClock, kind: TimeKind) -> None:
        self._clock = clock
        self._kind = kind

    def __enter__(self) -> None:
        self._clock.enter(self._kind)

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._clock.leave()
