"""Timers in the database. In each key group they are in order of time (see `keys`); the first
timers of all key groups are also in memory: the head.

Every timer up to the horizon is in the head; later timers are only in the database. Their order is
total, by time and then by the bytes of their keys, so a head can end between equal times.
"""

from __future__ import annotations

import heapq
import itertools
import pickle
from collections.abc import Iterator
from typing import Any, Protocol

from firesteel.common.checkpoints.rocksdb import keys
from firesteel.common.key_groups import KeyGroupRange
from taskexecutor.executor.timing.timers import Timer, TimerQueue

_LOADED = 1_000  # timers loaded at a time; a head has at most twice as many
_NOTHING = b""  # before all timers
_VALUE = pickle.dumps(0, protocol=5)

_Order = bytes  # the time, then the complete database key


class TimersBackend(Protocol):
    """The part of the backend that timers use."""

    @property
    def key_groups(self) -> KeyGroupRange: ...

    def where(self, name: str, key: Any, namespace: Any) -> bytes: ...

    def has(self, where: bytes) -> bool: ...

    def set(self, where: bytes, value: bytes | None) -> None: ...

    def changed(self, state: bytes) -> dict[bytes, bytes | None]:
        """Returns the entries of a state that the database does not have yet; None: removed."""

    def stored(self, first: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Yields the database's entries from this key on. Call `changed` first."""


class StoredTimers:
    """Implements `Timers`. Timers without a key are only in memory, because no checkpoint contains
    them. Unless `saved`, the operator can derive the timers from other state.
    """

    def __init__(self, backend: TimersBackend, name: str, *, saved: bool) -> None:
        self._backend = backend
        self._name = name
        self._saved = saved
        self._state = keys.of_state(name)
        self._time = slice(4 + len(self._state), 4 + len(self._state) + keys.TIME_BYTES)
        self._unkeyed = TimerQueue()
        self._heap: list[_Order] = []  # of the head; may contain removed timers
        self._head: dict[_Order, Timer] = {}
        self._horizon: _Order | None = _NOTHING  # None: all timers are in the head

    def __contains__(self, timer: Timer) -> bool:
        if timer.key is None:
            return timer in self._unkeyed
        return self._backend.has(self._where(timer))

    def add(self, timer: Timer) -> None:
        if timer.key is None:
            self._unkeyed.add(timer)
            return
        where = self._where(timer)
        order = self._order(where)
        if self._horizon is None or order <= self._horizon:
            if order in self._head:
                return
            self._head[order] = timer
            heapq.heappush(self._heap, order)
            if len(self._heap) > 2 * _LOADED:
                self._shrink()
        self._backend.set(where, _VALUE)

    def remove(self, timer: Timer) -> None:
        if timer.key is None:
            self._unkeyed.remove(timer)
            return
        where = self._where(timer)
        self._head.pop(self._order(where), None)
        self._backend.set(where, None)

    def next_timestamp(self) -> int | None:
        self._fill()
        unkeyed = self._unkeyed.next_timestamp()
        if not self._heap:
            return unkeyed
        timestamp = self._head[self._heap[0]].timestamp
        return timestamp if unkeyed is None else min(timestamp, unkeyed)

    def pop_due(self, now: int) -> Timer | None:
        due = self.next_timestamp()
        if due is None or due > now:
            return None
        if not self._heap or self._head[self._heap[0]].timestamp > due:
            return self._unkeyed.pop_due(now)
        order = heapq.heappop(self._heap)
        timer = self._head.pop(order)
        self._backend.set(order[keys.TIME_BYTES :], None)
        return timer

    def due(self, now: int) -> Iterator[Timer]:
        while (timer := self.pop_due(now)) is not None:
            yield timer

    def clear(self) -> None:
        self._unkeyed.clear()
        if self._saved:
            for order in list(self._after(_NOTHING)):
                self._backend.set(order[keys.TIME_BYTES :], None)
        self._heap, self._head, self._horizon = [], {}, None

    def _where(self, timer: Timer) -> bytes:
        return self._backend.where(self._name, timer.key, (timer.timestamp, timer.namespace))

    def _order(self, where: bytes) -> _Order:
        return where[self._time] + where

    def _shrink(self) -> None:
        """Drops removed timers, and those beyond the head's size."""
        self._heap = sorted(self._head)
        if len(self._heap) > _LOADED:
            self._horizon = self._heap[_LOADED - 1]
            for order in self._heap[_LOADED:]:
                del self._head[order]
            del self._heap[_LOADED:]

    def _fill(self) -> None:
        """Loads timers, so that the head's first timer is the first of all; the head is empty if
        there is none.
        """
        while True:
            while self._heap and self._heap[0] not in self._head:
                heapq.heappop(self._heap)
            if self._heap or self._horizon is None:
                return
            self._heap = list(itertools.islice(self._after(self._horizon), _LOADED))
            self._head = {order: self._timer(order) for order in self._heap}
            self._horizon = self._heap[-1] if len(self._heap) == _LOADED else None

    def _timer(self, order: _Order) -> Timer:
        _, key, (timestamp, namespace) = keys.decoded(order[keys.TIME_BYTES :])
        return Timer(timestamp, key, namespace)

    def _after(self, horizon: _Order) -> Iterator[_Order]:
        """Yields the timers after the horizon, in order."""
        changed = self._backend.changed(self._state)
        own = (self._order(where) for where, value in changed.items() if value is not None)
        stored = [
            self._stored(keys.of_key_group(key_group) + self._state, horizon, changed)
            for key_group in range(self._backend.key_groups.first, self._backend.key_groups.end)
        ]
        return heapq.merge(sorted(order for order in own if order > horizon), *stored)

    def _stored(
        self, prefix: bytes, horizon: _Order, changed: dict[bytes, bytes | None]
    ) -> Iterator[_Order]:
        """Yields a key group's timers after the horizon. Starts the scan close to the horizon:
        skipping fired timers is expensive until the database has compacted them.
        """
        first = prefix
        if horizon:
            time, last = horizon[: keys.TIME_BYTES], horizon[keys.TIME_BYTES :]
            first = prefix + time
            if last.startswith(first):
                first = last
            elif first < last:  # all timers of that time have passed
                first = prefix + keys.after(time)
        for where, _ in self._backend.stored(first):
            if not where.startswith(prefix):
                return
            order = self._order(where)
            if where not in changed and order > horizon:
                yield order
