"""The order in which results are emitted: Flink's ordered and unordered stream element queues.

A call enters a queue when it starts. It is released once its result may be emitted, together with
the event-time elements around it: no result overtakes a watermark before its row or is overtaken by
one after it. Used on the event loop only.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, Protocol, TypeAlias

from pyspark.sql import Row

from firesteel.elements import StreamStatus, Watermark


class Call:
    """A row that the function is processing."""

    __slots__ = (
        "deadline_s",
        "done",
        "index",
        "result",
        "row",
        "rows",
        "segment",
        "task",
        "timed_out",
    )

    def __init__(self, rows: Any, index: int, row: Row) -> None:
        self.rows = rows  # the batch, and the row's index in it
        self.index = index
        self.row = row
        self.result: Any = None
        self.done = False
        self.timed_out = False
        self.deadline_s = 0.0
        self.task: Any = None  # runs the function
        self.segment: Any = None


class Marker:
    """A watermark or a status between rows."""

    __slots__ = ("element",)
    done = True

    def __init__(self, element: Watermark | StreamStatus) -> None:
        self.element = element


Released: TypeAlias = Call | Marker


class Queue(Protocol):
    outstanding: int  # number of calls that are not released

    def add(self, call: Call) -> None:
        """Adds a call that starts."""

    def mark(self, marker: Marker) -> None:
        """Adds a marker. All calls before it have started."""

    def complete(self, call: Call) -> None:
        """Records that the call has its result."""


class OrderedQueue:
    """Releases calls in the order of their rows."""

    def __init__(self, release: Callable[[Released], None]) -> None:
        self._release = release
        self._waiting: deque[Released] = deque()
        self.outstanding = 0

    def add(self, call: Call) -> None:
        self._waiting.append(call)
        self.outstanding += 1

    def mark(self, marker: Marker) -> None:
        self._waiting.append(marker)
        self._advance()

    def complete(self, call: Call) -> None:
        call.done = True
        self._advance()

    def _advance(self) -> None:
        waiting = self._waiting
        while waiting and waiting[0].done:
            released = waiting.popleft()
            if isinstance(released, Call):
                self.outstanding -= 1
            self._release(released)


class _Segment:
    """The calls between two markers."""

    __slots__ = ("held", "marker", "open")

    def __init__(self) -> None:
        self.open = 0  # number of calls without a result
        self.held: list[Call] = []  # calls with a result, until earlier segments have ended
        self.marker: Marker | None = None  # ends the segment


class UnorderedQueue:
    """Releases calls as they complete, but not before an earlier marker nor after a later one."""

    def __init__(self, release: Callable[[Released], None]) -> None:
        self._release = release
        self._segments = deque([_Segment()])
        self.outstanding = 0

    def add(self, call: Call) -> None:
        call.segment = self._segments[-1]
        call.segment.open += 1
        self.outstanding += 1

    def mark(self, marker: Marker) -> None:
        self._segments[-1].marker = marker
        self._segments.append(_Segment())
        self._advance()

    def complete(self, call: Call) -> None:
        call.done = True
        segment = call.segment
        segment.open -= 1
        if segment is not self._segments[0]:
            segment.held.append(call)
            return
        self.outstanding -= 1
        self._release(call)
        if not segment.open and segment.marker is not None:
            self._advance()

    def _advance(self) -> None:
        segments = self._segments
        while not segments[0].open and (marker := segments[0].marker) is not None:
            segments.popleft()
            self._release(marker)
            held, segments[0].held = segments[0].held, []
            self.outstanding -= len(held)
            for call in held:
                self._release(call)
