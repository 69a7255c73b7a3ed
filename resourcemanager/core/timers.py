"""Keeps all deadlines of a core in one heap."""

from __future__ import annotations

import heapq
from collections.abc import Hashable, Iterator
from typing import Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)


class Timers(Generic[Key]):
    """Holds at most one deadline per key; setting a key again moves its deadline."""

    __slots__ = ("_at", "_count", "_heap")

    def __init__(self) -> None:
        self._at: dict[Key, tuple[float, int]] = {}
        self._heap: list[tuple[float, int, Key]] = []  # entries that differ from _at are void
        self._count = 0  # breaks ties in the order of setting, so that runs are reproducible

    def set(self, key: Key, at: float) -> None:
        self._count += 1
        self._at[key] = (at, self._count)
        heapq.heappush(self._heap, (at, self._count, key))
        if len(self._heap) > 64 and len(self._heap) > 4 * len(self._at):
            self._heap = [(at, count, key) for key, (at, count) in self._at.items()]
            heapq.heapify(self._heap)

    def cancel(self, key: Key) -> None:
        self._at.pop(key, None)

    def __contains__(self, key: object) -> bool:
        return key in self._at

    def next(self) -> float | None:
        self._drop_void()
        return self._heap[0][0] if self._heap else None

    def due(self, now: float) -> Iterator[Key]:
        """Removes and yields, one by one, the keys whose deadline is at or before `now`."""
        while True:
            self._drop_void()
            if not self._heap or self._heap[0][0] > now:
                return
            key = heapq.heappop(self._heap)[2]
            del self._at[key]
            yield key

    def _drop_void(self) -> None:
        while self._heap and self._at.get(self._heap[0][2]) != self._heap[0][:2]:
            heapq.heappop(self._heap)
