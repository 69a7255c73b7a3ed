"""The `hashmap` backend: keyed state in Python dictionaries. State in columns is in memory or, for
a batch, paged.

A snapshot must not copy the state, and the state changes while the snapshot is written. Therefore
the state is a stack of layers: writes go to the top layer, reads search from the top down.
`snapshot` pushes an empty layer, which freezes those below. When no snapshot needs them, the layers
are merged, at the cost of the entries written since.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from firesteel.common.checkpoints.key_group_content import KeyedStateEntry, has_timers
from firesteel.common.checkpoints.state import DatabaseHandle
from firesteel.common.key_groups import KeyGroupRange
from taskexecutor.executor.column_memory import IN_MEMORY, SlotColumnMemory
from taskexecutor.executor.state.keyed import RestoredDatabase, SnapshotTarget
from taskexecutor.executor.timing.timers import Timer, TimerQueue

_REMOVED: Final = object()  # hides the value in a lower layer
_ABSENT: Final = object()
_Key = tuple[str, Any, Any]  # state name, key, namespace
_Layer = dict[_Key, Any]


class HashMapKeyedStateBackend:
    """Owned by the task's thread. `key_group_of` is the exchange's function, so that state is in
    the subtask to which its records are sent.
    """

    def __init__(
        self,
        key_groups: KeyGroupRange,
        key_group_of: Callable[[Any], int],
        columns: SlotColumnMemory = IN_MEMORY,
    ) -> None:
        """`columns` allocates state in columns."""
        self._key_groups = key_groups
        self._key_group_of = key_group_of
        self._columns = columns
        self._layers: list[_Layer] = [{}]
        self._top = self._layers[-1]
        self._snapshots_lock = (
            threading.Lock()
        )  # snapshots are released by the thread that wrote them
        self._live_snapshots = 0
        self._timers: dict[str, TimerQueue] = {}
        self._saved_timers: set[str] = set()  # names

    @property
    def key_groups(self) -> KeyGroupRange:
        return self._key_groups

    @property
    def columns(self) -> SlotColumnMemory:
        return self._columns

    @property
    def layers(self) -> int:
        return len(self._layers)

    def get(self, name: str, key: Any, namespace: Any = None) -> Any:
        """Returns the value, or None."""
        where = (name, key, namespace)
        value = self._top.get(where, _ABSENT)
        if value is _ABSENT and len(self._layers) > 1:
            value = self._below(where)
        return None if value is _ABSENT or value is _REMOVED else value

    def owned(self, name: str, key: Any, copy: Callable[[Any], Any], namespace: Any = None) -> Any:
        """Returns the value, to be changed in place; None if there is none. Copies it with `copy`
        if a snapshot may still have to write it.
        """
        self._merge_if_unobserved()
        where = (name, key, namespace)
        value = self._top.get(where, _ABSENT)
        if value is _ABSENT and len(self._layers) > 1:
            value = self._below(where)
            if value is not _ABSENT and value is not _REMOVED:
                value = self._top[where] = copy(value)
        return None if value is _ABSENT or value is _REMOVED else value

    def put(self, name: str, key: Any, value: Any, namespace: Any = None) -> None:
        if len(self._layers) > 1:
            self._merge_if_unobserved()
        self._top[(name, key, namespace)] = value

    def remove(self, name: str, key: Any, namespace: Any = None) -> None:
        self._merge_if_unobserved()
        if len(self._layers) == 1:
            self._top.pop((name, key, namespace), None)
        else:
            self._top[(name, key, namespace)] = _REMOVED

    def entries(self, name: str) -> Iterator[KeyedStateEntry]:
        return (entry for entry in _visible(self._layers) if entry.name == name)

    def timers(self, name: str, *, saved: bool = True) -> TimerQueue:
        if saved:
            self._saved_timers.add(name)
        return self._timers.setdefault(name, TimerQueue())

    def snapshot(self) -> HashMapSnapshot:
        frozen = tuple(self._layers)
        self._top = {}
        self._layers = [*frozen, self._top]
        with self._snapshots_lock:
            self._live_snapshots += 1
        timers = {name: self._timers[name].pending() for name in self._saved_timers}
        return HashMapSnapshot(frozen, timers, self._key_group_of, self._released)

    def restore(
        self, entries: Iterable[KeyedStateEntry], databases: Sequence[RestoredDatabase] = ()
    ) -> None:
        timers: dict[str, list[tuple[int, Timer]]] = {}
        for entry in itertools.chain(entries, *map(_entries_of, databases)):
            if self._key_group_of(entry.key) not in self._key_groups:
                continue
            if has_timers(entry.name):
                timestamp, namespace = entry.namespace
                timer = Timer(timestamp, entry.key, namespace)
                timers.setdefault(entry.name, []).append((entry.value, timer))
            else:
                self._top[(entry.name, entry.key, entry.namespace)] = entry.value
        for name, pending in timers.items():
            queue = self._timers.setdefault(name, TimerQueue())
            # By number only, so that timers of one key keep their order among timers of several
            # subtasks.
            for _, timer in sorted(pending, key=lambda numbered: numbered[0]):
                queue.add(timer)

    def statistics(self) -> Mapping[str, int]:
        return {}

    def close(self) -> None:
        self._layers = [{}]
        self._top = self._layers[-1]

    def _below(self, where: _Key) -> Any:
        """Returns the value in the layers below the top one."""
        for layer in reversed(self._layers[:-1]):
            value = layer.get(where, _ABSENT)
            if value is not _ABSENT:
                return value
        return _ABSENT

    def _released(self) -> None:
        with self._snapshots_lock:
            self._live_snapshots -= 1

    def _merge_if_unobserved(self) -> None:
        if len(self._layers) == 1 or self._live_snapshots:
            return
        base = self._layers[0]
        for layer in self._layers[1:]:
            for where, value in layer.items():
                if value is _REMOVED:
                    base.pop(where, None)
                else:
                    base[where] = value
        self._layers = [base]
        self._top = base


class HashMapSnapshot:
    """Implements `KeyedStateSnapshot`."""

    def __init__(
        self,
        layers: tuple[_Layer, ...],
        timers: Mapping[str, Mapping[Timer, int]],
        key_group_of: Callable[[Any], int],
        released: Callable[[], None],
    ) -> None:
        self._layers: tuple[_Layer, ...] | None = layers
        self._timers = timers
        self.key_group_of = key_group_of
        self._on_release = released
        self.empty = not any(layers) and not any(timers.values())

    def entries_by_key_group(self) -> Iterator[tuple[int, list[KeyedStateEntry]]]:
        if self._layers is None:
            raise ValueError("the snapshot was released")
        groups: dict[int, list[KeyedStateEntry]] = {}
        for entry in itertools.chain(_visible(self._layers), _timer_entries(self._timers)):
            groups.setdefault(self.key_group_of(entry.key), []).append(entry)
        for key_group in sorted(groups):
            yield key_group, groups[key_group]

    def write(self, target: SnapshotTarget) -> tuple[DatabaseHandle, ...]:
        return ()

    def release(self) -> None:
        if self._layers is not None:
            self._layers = None
            self._on_release()


def _visible(layers: Iterable[_Layer]) -> Iterator[KeyedStateEntry]:
    seen: set[_Key] = set()
    ordered = list(layers)
    for depth, layer in enumerate(reversed(ordered)):
        lowest = depth == len(ordered) - 1
        for where, value in layer.items():
            if where in seen:
                continue
            if not lowest:
                seen.add(where)
            if value is not _REMOVED:
                yield KeyedStateEntry(*where, value)


def _timer_entries(timers: Mapping[str, Mapping[Timer, int]]) -> Iterator[KeyedStateEntry]:
    """Yields the timers with a key. Operators register those without a key again in `open`."""
    for name, pending in timers.items():
        for timer, number in pending.items():
            if timer.key is not None:
                where = timer.timestamp, timer.namespace
                yield KeyedStateEntry(name, timer.key, where, number)


def _entries_of(database: RestoredDatabase) -> Iterator[KeyedStateEntry]:
    """Yields all entries that a rocksdb backend has written."""
    # Imported on demand: it takes 10 MB and few slots need it.
    from firesteel.common.checkpoints.rocksdb.reading import read_entries

    for _, entries in read_entries(database.storage, database.handle):
        yield from entries
