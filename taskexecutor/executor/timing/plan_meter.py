"""Counts an operator's Spark plans and divides the time spent in Spark."""

from __future__ import annotations

from dataclasses import dataclass

from taskexecutor.executor.timing.clock import Span, TaskClock, TimeKind


@dataclass(slots=True)
class PlanCounts:
    """Written by the task's thread; read by any thread."""

    made: int = 0
    kept_runs: int = 0
    not_kept: str = ""  # the reason; empty while a plan is cached or none was made
    files_read_by: str = ""  # a sentence; empty if there is no choice


class PlanMeter:
    """Implements `firesteel.operator.PlanMeter` for one operator."""

    __slots__ = ("converting", "counts", "planning", "reading")

    def __init__(self, clock: TaskClock, counts: PlanCounts | None = None) -> None:
        self.counts = counts if counts is not None else PlanCounts()
        self.planning: Span = clock.spans[TimeKind.PLANNING]
        self.converting: Span = clock.spans[TimeKind.CONVERTING]
        self.reading: Span = clock.spans[TimeKind.READING]

    def made(self) -> None:
        self.counts.made += 1

    def ran_kept(self) -> None:
        self.counts.kept_runs += 1
        self.counts.not_kept = ""

    def not_kept(self, reason: str) -> None:
        self.counts.not_kept = reason

    def files_read_by(self, reader: str) -> None:
        self.counts.files_read_by = reader
