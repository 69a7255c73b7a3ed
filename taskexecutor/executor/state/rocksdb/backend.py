"""The `rocksdb` backend: keyed state in a database on the slot's disk.

A snapshot must take no time in the task's thread, but flushing the database's memory to files does.
Therefore changes are held in a layer above the database, as encoded bytes, and are written to the
database in batches of thousands. `snapshot` pushes an empty layer. Another thread writes the layers
below to the database, which then holds exactly the state of the snapshot, and takes the snapshot by
linking its files. In the meantime the state changes in the new layer. If that layer fills up first,
the task's thread does the work instead.
"""

from __future__ import annotations

import pickle
import shutil
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from firesteel.common.checkpoints.key_group_content import KeyedStateEntry
from firesteel.common.checkpoints.rocksdb import keys
from firesteel.common.checkpoints.rocksdb.reading import entry_of
from firesteel.common.checkpoints.state import DatabaseHandle
from firesteel.common.key_groups import KeyGroupRange
from taskexecutor.executor.column_memory import SlotColumnMemory
from taskexecutor.executor.state.keyed import RestoredDatabase, SnapshotTarget, not_pickled
from taskexecutor.executor.state.rocksdb.database import RocksDbMemory
from taskexecutor.executor.state.rocksdb.databases import Databases
from taskexecutor.executor.state.rocksdb.local_tables import LocalTables
from taskexecutor.executor.state.rocksdb.timers import StoredTimers

_ENTRY_BYTES = 200  # overhead of a layer's entry besides key and value
# factor by which a layer may exceed its limit while a snapshot waits for another thread
_WAITING_LAYERS = 4

_Layer = dict[bytes, bytes | None]  # None hides the value in lower layers


class _Owned(NamedTuple):
    """A value that may have been changed in place since it was returned."""

    where: bytes
    name: str
    key: Any
    value: Any


class RocksDbKeyedStateBackend:
    """Owned by the task's thread. The backend owns `directory` and removes it at the end."""

    def __init__(
        self,
        key_groups: KeyGroupRange,
        key_group_of: Callable[[Any], int],
        *,
        memory: RocksDbMemory,
        local_tables: LocalTables | None = None,
        new_directory: Callable[[], Path],
        remove_directory: Callable[[Path], None] = shutil.rmtree,
    ) -> None:
        """`new_directory` is called on first use. `local_tables` are those of all backends of the
        job in this process; None: only checkpoints keep tables.
        """
        self._key_groups = key_groups
        self.key_group_of = key_group_of
        self.memory = memory
        self._local_tables = local_tables
        self._new_directory = new_directory
        self._remove_directory = remove_directory
        self._directory: Path | None = None
        self.where = keys.KeyEncoder(key_group_of)
        self._timers: dict[str, StoredTimers] = {}
        self.not_saved: tuple[bytes, ...] = ()  # prefixes of states that are derived from others
        self._owned: _Owned | None = None
        self._top: _Layer = {}
        self._top_bytes = 0
        # Reads search the layers, then the database. Another thread removes layers once they are in
        # the database, so a reader gets the tuple first.
        self._layers: tuple[_Layer, ...] = (self._top,)
        self._layers_lock = threading.Lock()
        self._database: Databases | None = None
        self._database_lock = threading.Lock()  # held while writing to the database
        self._waiting: list[RocksDbSnapshot] = []  # snapshots that are not made yet, in order
        self._snapshots = 0
        self._unreleased = 0
        self._closed = False
        self._statistics: Mapping[str, int] = {}

    @property
    def key_groups(self) -> KeyGroupRange:
        return self._key_groups

    @property
    def columns(self) -> SlotColumnMemory:
        return self.memory.columns

    # -- the task's thread

    def get(self, name: str, key: Any, namespace: Any = None) -> Any:
        """Returns the value, or None."""
        where = self.where(name, key, namespace)
        if self._owned is not None and self._owned.where == where:
            return self._owned.value
        content = self._find(where)
        return None if content is None else pickle.loads(content)

    def owned(self, name: str, key: Any, copy: Callable[[Any], Any], namespace: Any = None) -> Any:
        """Returns the value, to be changed in place; `copy` is not needed. The value is written
        when another key is accessed.
        """
        where = self.where(name, key, namespace)
        if self._owned is not None:
            if self._owned.where == where:
                return self._owned.value
            self._write_owned()
        content = self._find(where)
        if content is None:
            return None
        value = pickle.loads(content)
        self._owned = _Owned(where, name, key, value)
        return value

    def put(self, name: str, key: Any, value: Any, namespace: Any = None) -> None:
        where = self.where(name, key, namespace)
        if self._owned is not None:
            self._drop_or_write_owned(where)
        self.set(where, _pickled(name, key, value))

    def remove(self, name: str, key: Any, namespace: Any = None) -> None:
        where = self.where(name, key, namespace)
        if self._owned is not None:
            self._drop_or_write_owned(where)
        self.set(where, None)

    def entries(self, name: str) -> Iterator[KeyedStateEntry]:
        self._write_owned()
        state = keys.of_state(name)
        changed = self.changed(state)
        for where, value in changed.items():
            if value is not None:
                yield entry_of(where, value)
        if self._database is None:
            return
        for key_group in range(self._key_groups.first, self._key_groups.end):
            first = keys.of_key_group(key_group) + state
            for where, value in self._database.items(first):
                if not where.startswith(first):
                    break
                if where not in changed:
                    yield entry_of(where, value)

    def timers(self, name: str, *, saved: bool = True) -> StoredTimers:
        timers = self._timers.get(name)
        if timers is None:
            timers = self._timers[name] = StoredTimers(self, name, saved=saved)
            if not saved:
                self.not_saved += (keys.of_state(name),)
        return timers

    def snapshot(self) -> RocksDbSnapshot:
        self._write_owned()
        with self._layers_lock:
            empty = self._database is None and not any(self._layers)
            snapshot = RocksDbSnapshot(self, self._snapshots, self._top, empty=empty)
            self._snapshots += 1
            self._unreleased += 1
            self._waiting.append(snapshot)
            self._push()
        return snapshot

    def restore(
        self, entries: Iterable[KeyedStateEntry], databases: Sequence[RestoredDatabase] = ()
    ) -> None:
        if databases:
            self._database = Databases.restore(
                databases,
                self._made_directory(),
                self._key_groups,
                self.memory,
                self._local_tables,
            )
        for entry in entries:
            if self.key_group_of(entry.key) in self._key_groups:
                self.put(entry.name, entry.key, entry.value, entry.namespace)

    def _made_directory(self) -> Path:
        if self._directory is None:
            self._directory = self._new_directory()
        return self._directory

    def statistics(self) -> Mapping[str, int]:
        """Returns the last values while the database is being written."""
        if self._database_lock.acquire(blocking=False):  # it stays open
            try:
                if self._database is not None:
                    self._statistics = self._database.statistics()
            finally:
                self._database_lock.release()
        return self._statistics

    def close(self) -> None:
        """Closes the backend. If a snapshot is still being written, the database is removed with
        the last snapshot.
        """
        self._owned = None
        with self._layers_lock:
            self._closed = True
            unused = not self._unreleased
        if unused:
            self._dispose()

    def _dispose(self) -> None:
        with self._database_lock:
            self._top = {}
            self._layers = (self._top,)
            database, self._database = self._database, None
            try:
                if database is not None:
                    database.close()
            finally:
                directory, self._directory = self._directory, None
                if directory is not None:
                    self._remove_directory(directory)

    def _find(self, where: bytes) -> bytes | None:
        for layer in reversed(self._layers):
            if where in layer:
                return layer[where]
        return None if self._database is None else self._database.get(where)

    # -- also for timers

    def has(self, where: bytes) -> bool:
        return self._find(where) is not None

    def changed(self, state: bytes) -> _Layer:
        """Returns the entries of a state in the layers."""
        merged: _Layer = {}
        for layer in self._layers:
            merged.update((where, v) for where, v in layer.items() if where.startswith(state, 4))
        return merged

    def stored(self, first: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Yields the database's entries from this key on. Read the layers first."""
        return iter(()) if self._database is None else self._database.items(first)

    def set(self, where: bytes, value: bytes | None) -> None:
        top = self._top
        before = len(top)
        replaced = top.get(where)
        top[where] = value
        self._top_bytes += (0 if value is None else len(value)) - (
            0 if replaced is None else len(replaced)
        )
        if len(top) > before:
            self._top_bytes += len(where) + _ENTRY_BYTES
        limit = self.memory.layer_bytes
        if self._top_bytes > (limit * _WAITING_LAYERS if self._waiting else limit):
            self._spill()

    def _drop_or_write_owned(self, where: bytes) -> None:
        """Drops the value of `owned` if it is about to be replaced, and writes it otherwise."""
        if self._owned is not None and self._owned.where == where:
            self._owned = None
        else:
            self._write_owned()

    def _write_owned(self) -> None:
        owned, self._owned = self._owned, None
        if owned is not None:
            self.set(owned.where, _pickled(owned.name, owned.key, owned.value))

    def _push(self) -> None:
        self._top, self._top_bytes = {}, 0
        self._layers = (*self._layers, self._top)

    def _spill(self) -> None:
        """Writes everything to the database, after the waiting snapshots."""
        with self._layers_lock:
            full = self._top
            self._push()
        with self._database_lock:
            for snapshot in list(self._waiting):
                self._make(snapshot)
            self._settle(full)

    # -- with the database's lock held

    def make(self, snapshot: RocksDbSnapshot) -> None:
        """Makes the snapshot, in the thread that writes it. Earlier waiting snapshots are made
        first, because their state is removed from the layers.
        """
        with self._database_lock:
            waiting = list(self._waiting)
            if snapshot in waiting:
                for before in waiting[: waiting.index(snapshot) + 1]:
                    self._make(before)

    def released(self, snapshot: RocksDbSnapshot) -> None:
        with self._layers_lock:
            if snapshot in self._waiting:
                self._waiting.remove(snapshot)
            self._unreleased -= 1
            unused = self._closed and not self._unreleased
        if unused:
            self._dispose()

    def _make(self, snapshot: RocksDbSnapshot) -> None:
        self._settle(snapshot.layer)
        if self._database is not None:
            assert self._directory is not None
            path = self._directory / f"snapshot-{snapshot.number}"
            self._database.snapshot(path)
            snapshot.path, snapshot.databases = path, self._database
        with self._layers_lock:
            if snapshot in self._waiting:  # otherwise it was released in the meantime
                self._waiting.remove(snapshot)
        if snapshot.released:
            snapshot.remove()

    def _settle(self, last: _Layer) -> None:
        """Writes the layers up to this one to the database."""
        layers = self._layers
        count = next((n for n, layer in enumerate(layers, 1) if layer is last), 0)
        for layer in layers[:count]:
            if layer:
                self._opened().write(layer.items())
            with self._layers_lock:
                self._layers = self._layers[1:]

    def _opened(self) -> Databases:
        if self._database is None:
            self._database = Databases.create(
                self._made_directory(), self._key_groups, self.memory, self._local_tables
            )
        return self._database


class RocksDbSnapshot:
    """Implements `KeyedStateSnapshot`."""

    def __init__(
        self, backend: RocksDbKeyedStateBackend, number: int, layer: _Layer, *, empty: bool
    ) -> None:
        self._backend = backend
        self.empty = empty
        self.number = number
        self.layer = layer  # the newest layer that belongs to it
        # The folder with its databases, and those that made it; None: not made, or no state.
        self.path: Path | None = None
        self.databases: Databases | None = None
        self.released = False

    def entries_by_key_group(self) -> Iterator[tuple[int, list[KeyedStateEntry]]]:
        path = self.made()
        if path is None:
            return
        key_group, entries = -1, list[KeyedStateEntry]()
        assert self.databases is not None
        for where, value in self.databases.snapshot_items(path, self._backend.memory):
            if where.startswith(self._backend.not_saved, 4):
                continue
            if keys.key_group_in(where) != key_group:
                if entries:
                    yield key_group, entries
                key_group, entries = keys.key_group_in(where), []
            entries.append(entry_of(where, value))
        if entries:
            yield key_group, entries

    def write(self, target: SnapshotTarget) -> tuple[DatabaseHandle, ...]:
        path = self.made()
        if path is None:
            return ()
        assert self.databases is not None
        return self.databases.write_snapshot(path, target)

    def key_group_of(self, key: Any) -> int:
        return self._backend.key_group_of(key)

    def release(self) -> None:
        if not self.released:
            self.released = True
            self.remove()
            self._backend.released(self)

    def remove(self) -> None:
        if self.path is not None:
            shutil.rmtree(self.path, ignore_errors=True)

    def made(self) -> Path | None:
        """Returns the path of its databases; None if there is no state."""
        if self.released:
            raise ValueError("the snapshot was released")
        self._backend.make(self)
        return self.path


def _pickled(name: str, key: Any, value: Any) -> bytes:
    try:
        return pickle.dumps(value, protocol=5)
    except Exception as error:
        raise not_pickled(f"the state {name!r} of key {key!r}", value, error) from error
