"""The event time of a source with several partitions: the earliest of theirs (pure).

A partition without rows holds back the others, unless idleness is set: then it does so until it has
been read to its end for that time. A partition with unread records is never idle.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable
from dataclasses import dataclass
from typing import Generic, TypeVar

from firesteel.elements import MIN_TIMESTAMP_US, StreamStatus, Watermark

Key = TypeVar("Key", bound=Hashable)


@dataclass(slots=True)
class _Time:
    latest_us: int  # of the rows
    quiet_since_s: float | None  # since when everything was read; None: there is more to read
    idle: bool = False


class PartitionWatermarks(Generic[Key]):
    """Watermarks trail the latest rows of each partition by `delay_us`. Times in seconds are of any
    clock.
    """

    def __init__(self, delay_us: int, idle_us: int | None) -> None:
        self._delay_us = delay_us
        self._idle_s = None if idle_us is None else idle_us / 1e6
        self._times: dict[Key, _Time] = {}
        self._reached_us = MIN_TIMESTAMP_US
        self._all_idle = False

    def add(self, partition: Key, latest_us: int | None) -> None:
        known_us = MIN_TIMESTAMP_US if latest_us is None else latest_us
        self._times[partition] = _Time(known_us, None)

    def remove(self, partition: Key) -> None:
        """The partition has ended: others no longer wait for it."""
        self._times.pop(partition, None)

    def rows(self, partition: Key, latest_us: int | None) -> None:
        """Handles rows of the partition; None: without times."""
        time = self._times.get(partition)
        if time is not None:
            time.quiet_since_s, time.idle = None, False
            if latest_us is not None and latest_us > time.latest_us:
                time.latest_us = latest_us

    def read_to_end(self, partition: Key, now_s: float) -> None:
        time = self._times.get(partition)
        if time is not None and time.quiet_since_s is None:
            time.quiet_since_s = now_s

    def advance(self, now_s: float) -> list[Watermark | StreamStatus]:
        """Returns the events to emit now."""
        self._mark_idle(now_s)
        active_us = [time.latest_us for time in self._times.values() if not time.idle]
        if active_us:
            resumed = [StreamStatus(False)] if self._all_idle else []
            self._all_idle = False
            return [*resumed, *self._watermark(min(active_us))]
        if self._all_idle:
            return []
        self._all_idle = True
        latest_us = max((time.latest_us for time in self._times.values()), default=MIN_TIMESTAMP_US)
        return [*self._watermark(latest_us), StreamStatus(True)]

    def due_s(self) -> float | None:
        """Returns when the next partition becomes idle."""
        if self._idle_s is None:
            return None
        quiet = [
            time.quiet_since_s
            for time in self._times.values()
            if time.quiet_since_s is not None and not time.idle
        ]
        return min(quiet) + self._idle_s if quiet else None

    def _mark_idle(self, now_s: float) -> None:
        if self._idle_s is None:
            return
        for time in self._times.values():
            if time.quiet_since_s is not None and now_s - time.quiet_since_s >= self._idle_s:
                time.idle = True

    def _watermark(self, latest_us: int) -> list[Watermark | StreamStatus]:
        if latest_us == MIN_TIMESTAMP_US:
            return []
        watermark_us = latest_us - self._delay_us - 1
        if watermark_us <= self._reached_us:
            return []
        self._reached_us = watermark_us
        return [Watermark(watermark_us)]


class PartitionEnds(Generic[Key]):
    """Finds out when a source has read everything that was available. Under a steady load, this is
    never true of all partitions at the same moment; so each must have been read to its end since
    the last time.
    """

    def __init__(self) -> None:
        self._at_end: set[Key] = set()
        self._reached: set[Key] = set()  # since the last time

    def rows(self, partition: Key) -> None:
        self._at_end.discard(partition)

    def reached(self, partition: Key) -> None:
        self._at_end.add(partition)
        self._reached.add(partition)

    def all_reached(self, partitions: Collection[Key]) -> bool:
        """Returns whether all of these have been read to their ends, and if so starts over."""
        if not all(each in self._at_end or each in self._reached for each in partitions):
            return False
        self._reached.clear()
        return True
