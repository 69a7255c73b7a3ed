"""Orders lines of several logs, which arrive in pieces, by time.

A line is taken once no log can have an older one. A log that is unreachable at present is skipped;
its lines then come late. The buffer is bounded: a log with `HELD_MAX` buffered lines is not read
until some were taken.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from firesteel.common.job_log.lines import LogLine

HELD_MAX = 1_000

Source = TypeVar("Source", bound=Hashable)


@dataclass(slots=True)
class _Held:
    lines: deque[LogLine] = field(default_factory=deque)
    complete_us: int = 0  # no older line follows
    passed_over: bool = False


class Merge(Generic[Source]):
    def __init__(self) -> None:
        self._open: dict[Source, _Held] = {}
        self._ended: list[_Held] = []  # with lines that are still held

    def add(self, source: Source) -> None:
        self._open[source] = _Held()

    def feed(self, source: Source, lines: Iterable[LogLine], complete_us: int = 0) -> None:
        """Adds the next lines. No line older than the last of them, or than `complete_us`,
        follows.
        """
        held = self._open[source]
        held.lines.extend(lines)
        held.passed_over = False
        last_us = held.lines[-1].time_us if held.lines else 0
        held.complete_us = max(held.complete_us, complete_us, last_us)

    def end(self, source: Source) -> None:
        """Ends a log; no more lines follow."""
        held = self._open.pop(source)
        if held.lines:
            self._ended.append(held)

    def pass_over(self, source: Source) -> None:
        """Stops waiting for the log until it is fed again."""
        self._open[source].passed_over = True

    def wants(self, source: Source) -> bool:
        return len(self._open[source].lines) < HELD_MAX

    @property
    def complete_us(self) -> int | None:
        """No line before this time follows; None if no line follows at all."""
        waited_for = [held.complete_us for held in self._open.values() if not held.passed_over]
        return min(waited_for, default=None)

    def take(self, *, all_: bool = False) -> list[LogLine]:
        """Returns the lines that no older line can precede, oldest first; or all buffered lines."""
        until_us = None if all_ else self.complete_us
        parts: list[list[LogLine]] = []
        for held in [*self._open.values(), *self._ended]:
            part: list[LogLine] = []
            while held.lines and (until_us is None or held.lines[0].time_us <= until_us):
                part.append(held.lines.popleft())
            parts.append(part)
        self._ended = [held for held in self._ended if held.lines]
        return list(heapq.merge(*parts, key=lambda line: line.time_us))
