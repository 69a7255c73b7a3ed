"""The machine's clock, and the clock of a task, which measures its work.

Every nanosecond of a task's thread belongs to exactly one kind of work. Kinds nest like calls: an
inner kind interrupts the outer one, so nothing is counted twice. For example, when a Python
operator emits into a chained Spark operator, the inner time is Spark's. Entering and leaving cost
well under a microsecond.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum
from types import TracebackType

from firesteel.common.task_metrics import Choice


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


def wall_clock_us() -> int:
    """Returns processing time: the machine's clock, since the epoch."""
    return time.time_ns() // 1_000


def wall_clock_ms() -> int:
    return time.time_ns() // 1_000_000


@dataclass(slots=True)
class PlanCounts:
    """Written by the task's thread; read by any thread."""

    made: int = 0
    cached_runs: int = 0
    not_cached: str = ""  # the reason; empty while a plan is cached or none was made
    reads: str = ""
    reads_why: str = ""
    computes: str = ""

    @property
    def choice(self) -> Choice | None:
        """None if nothing has been chosen."""
        if not (self.reads or self.computes):
            return None
        why = {"files": self.reads_why, "plan": self.not_cached}
        reasons = (f"{what}: {reason}" for what, reason in why.items() if reason)
        return Choice(self.reads, self.computes, "; ".join(reasons))


class PlanMeter:
    """Implements `firesteel.operator.PlanMeter`: counts an operator's Spark plans and divides the
    time spent in Spark.
    """

    __slots__ = ("converting", "counts", "planning", "reading")

    def __init__(self, clock: TaskClock, counts: PlanCounts | None = None) -> None:
        self.counts = counts if counts is not None else PlanCounts()
        self.planning: Span = clock.spans[TimeKind.PLANNING]
        self.converting: Span = clock.spans[TimeKind.CONVERTING]
        self.reading: Span = clock.spans[TimeKind.READING]

    def made(self) -> None:
        self.counts.made += 1

    def ran_cached(self) -> None:
        self.counts.cached_runs += 1
        self.counts.not_cached = ""

    def not_cached(self, reason: str) -> None:
        self.counts.not_cached = reason

    def files_read_by(self, reader: str, why: str = "") -> None:
        self.counts.reads, self.counts.reads_why = reader, why

    def computed_by(self, way: str) -> None:
        self.counts.computes = way
