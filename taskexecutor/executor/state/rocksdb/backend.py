"""The `rocksdb` backend: keyed state in a database on the slot's disk.

A snapshot must take no time, and writing the database's memory to files does. So changes are held
in a layer above the database, as bytes, and the database gets them some thousands at a time.
`snapshot` pushes an empty layer. Another thread gives those below to the database, which then holds
exactly the state of the snapshot, and makes links to its files: the snapshot. The state goes on
changing in the new layer meanwhile. If that gets full before, the task's thread does the same.
"""

from __future__ import annotations

import pickle
import shutil
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from firesteel.common.checkpoints.key_group_content import KeyedStateEntry
from firesteel.common.checkpoints.rocksdb import keys
from firesteel.common.checkpoints.rocksdb.reading import entry_of, read_database
from firesteel.common.checkpoints.state import DatabaseHandle
from firesteel.common.key_groups import KeyGroupRange
from taskexecutor.executor.column_memory import SlotColumnMemory
from taskexecutor.executor.state.keyed import RestoredDatabase, SnapshotTarget, not_pickled
from taskexecutor.executor.state.rocksdb.database import Database, RocksDbMemory
from taskexecutor.executor.state.rocksdb.files import Tables, write_database
from taskexecutor.executor.state.rocksdb.timers import StoredTimers

_ENTRY_BYTES = 200  # of a layer's entry beside key and value
_WAITING_LAYERS = 4  # how much larger a layer may be while a snapshot waits for another thread

_Layer = dict[bytes, bytes | None]  # None hides the value below


class _Owned(NamedTuple):
    """A value that may have been changed in place since it was handed out."""

    where: bytes
    name: str
    key: Any
    value: Any


class RocksDbKeyedStateBackend:
    """Owned by the task's thread. `directory` is the backend's own, and removed with it."""

    def __init__(
        self,
        key_groups: KeyGroupRange,
        key_group_of: Callable[[Any], int],
        *,
        memory: RocksDbMemory,
        new_directory: Callable[[], Path],
        remove_directory: Callable[[Path], None] = shutil.rmtree,
    ) -> None:
        """`new_directory` is called when there is something to keep there."""
        self._key_groups = key_groups
        self.key_group_of = key_group_of
        self._memory = memory
        self._new_directory = new_directory
        self._remove_directory = remove_directory
        self._directory: Path | None = None
        self.where = keys.KeyEncoder(key_group_of)
        self._timers: dict[str, StoredTimers] = {}
        self.not_saved: tuple[bytes, ...] = ()  # what states that follow from others begin with
        self._owned: _Owned | None = None
        self._top: _Layer = {}
        self._top_bytes = 0
        # Reads go down them, then to the database. Another thread takes layers away once they are
        # in the database, so a reader takes the tuple first.
        self._layers: tuple[_Layer, ...] = (self._top,)
        self._layers_lock = threading.Lock()
        self._database: Database | None = None
        self._database_lock = threading.Lock()  # held by whoever writes to the database
        self.tables = Tables()  # in earlier checkpoints
        self._waiting: list[RocksDbSnapshot] = []  # not made yet, in their order
        self._snapshots = 0
        self._unreleased = 0
        self._closed = False

    @property
    def key_groups(self) -> KeyGroupRange:
        return self._key_groups

    @property
    def columns(self) -> SlotColumnMemory:
        return self._memory.columns

    # -- the task's thread

    def get(self, name: str, key: Any, namespace: Any = None) -> Any:
        """The value, or None."""
        where = self.where(name, key, namespace)
        if self._owned is not None and self._owned.where == where:
            return self._owned.value
        found = self._find(where)
        return None if found is None else pickle.loads(found)

    def owned(self, name: str, key: Any, copy: Callable[[Any], Any], namespace: Any = None) -> Any:
        """The value, to change in place; `copy` is not needed. It is written when the value of
        another key is asked for.
        """
        where = self.where(name, key, namespace)
        if self._owned is not None:
            if self._owned.where == where:
                return self._owned.value
            self._write_owned()
        found = self._find(where)
        if found is None:
            return None
        value = pickle.loads(found)
        self._owned = _Owned(where, name, key, value)
        return value

    def put(self, name: str, key: Any, value: Any, namespace: Any = None) -> None:
        where = self.where(name, key, namespace)
        if self._owned is not None:
            self._leave_owned(where)
        self.set(where, _pickled(name, key, value))

    def remove(self, name: str, key: Any, namespace: Any = None) -> None:
        where = self.where(name, key, namespace)
        if self._owned is not None:
            self._leave_owned(where)
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
        found = self._timers.get(name)
        if found is None:
            found = self._timers[name] = StoredTimers(self, name, saved=saved)
            if not saved:
                self.not_saved += (keys.of_state(name),)
        return found

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
        self._restore(databases)
        for entry in entries:
            if self.key_group_of(entry.key) in self._key_groups:
                self.put(entry.name, entry.key, entry.value, entry.namespace)

    def _restore(self, databases: Sequence[RestoredDatabase]) -> None:
        """The one with the most of the own key groups is taken as it is, without those that are not
        its own any more; what is needed of the others is copied.
        """
        own = self._key_groups
        ordered = sorted(databases, key=lambda d: _common(d.handle.key_groups, own), reverse=True)
        for n, database in enumerate(ordered):
            if self._directory is None:
                self._directory = self._new_directory()
            path = self._directory / (f"restored-{n}" if n else "db")
            read_database(database.storage, database.handle, path)
            if n == 0:
                self.tables.remember(database.handle)
                opened = self._opened()
                opened.remove_range(b"", keys.of_key_group(own.first))
                opened.remove_range(keys.of_key_group(own.end), keys.AFTER_ALL)
            else:
                other = Database(path, self._memory, read_only=True)
                self._opened().write(
                    other.items(keys.of_key_group(own.first), keys.of_key_group(own.end))
                )
                other.close()
                shutil.rmtree(path)

    def close(self) -> None:
        """The last snapshot takes the database with it: a task may end while one is written."""
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

    # -- its timers, too

    def has(self, where: bytes) -> bool:
        return self._find(where) is not None

    def changed(self, state: bytes) -> _Layer:
        """What the layers have of a state."""
        found: _Layer = {}
        for layer in self._layers:
            found.update((where, v) for where, v in layer.items() if where.startswith(state, 4))
        return found

    def stored(self, first: bytes) -> Iterator[tuple[bytes, bytes]]:
        """What the database has from this key on: look at the layers before."""
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
        limit = self._memory.layer_bytes
        if self._top_bytes > (limit * _WAITING_LAYERS if self._waiting else limit):
            self._spill()

    def _leave_owned(self, where: bytes) -> None:
        """Before a value is replaced: it need not be written if it is that of `owned`."""
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
        """Everything goes to the database, after the snapshots that wait."""
        with self._layers_lock:
            full = self._top
            self._push()
        with self._database_lock:
            for snapshot in list(self._waiting):
                self._make(snapshot)
            self._settle(full)

    # -- whoever holds the database's lock

    def make(self, snapshot: RocksDbSnapshot) -> None:
        """Called by the thread that writes the snapshot. Makes those before it, too: their state is
        gone from the layers afterwards.
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
            snapshot.path = path
        with self._layers_lock:
            if snapshot in self._waiting:  # else it was released meanwhile
                self._waiting.remove(snapshot)
        if snapshot.released:
            snapshot.remove()

    def _settle(self, last: _Layer) -> None:
        """The database gets the layers up to this one."""
        layers = self._layers
        count = next((n for n, layer in enumerate(layers, 1) if layer is last), 0)
        for layer in layers[:count]:
            if layer:
                self._opened().write(layer.items())
            with self._layers_lock:
                self._layers = self._layers[1:]

    def _opened(self) -> Database:
        if self._database is None:
            if self._directory is None:
                self._directory = self._new_directory()
            self._database = Database(self._directory / "db", self._memory)
        return self._database

    def open_snapshot(self, path: Path) -> Database:
        return Database(path, self._memory, read_only=True)


class RocksDbSnapshot:
    """See `KeyedStateSnapshot`."""

    def __init__(
        self, backend: RocksDbKeyedStateBackend, number: int, layer: _Layer, *, empty: bool
    ) -> None:
        self._backend = backend
        self.empty = empty
        self.number = number
        self.layer = layer  # the newest one that belongs to it
        self.path: Path | None = None  # of its database, once it is made and not empty
        self.released = False

    def entries_by_key_group(self) -> Iterator[tuple[int, list[KeyedStateEntry]]]:
        path = self.made()
        if path is None:
            return
        database = self._backend.open_snapshot(path)
        try:
            key_group, entries = -1, list[KeyedStateEntry]()
            for where, value in database.items():
                if where.startswith(self._backend.not_saved, 4):
                    continue
                if keys.key_group_in(where) != key_group:
                    if entries:
                        yield key_group, entries
                    key_group, entries = keys.key_group_in(where), []
                entries.append(entry_of(where, value))
            if entries:
                yield key_group, entries
        finally:
            database.close()

    def write(self, target: SnapshotTarget) -> DatabaseHandle | None:
        path = self.made()
        backend = self._backend
        if path is None:
            return None
        return write_database(path, target, backend.tables, backend.key_groups)

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
        """Where its database is; None if there is no state."""
        if self.released:
            raise ValueError("the snapshot was released")
        self._backend.make(self)
        return self.path


def _common(some: KeyGroupRange, others: KeyGroupRange) -> int:
    """How many key groups are in both."""
    return max(0, min(some.end, others.end) - max(some.first, others.first))


def _pickled(name: str, key: Any, value: Any) -> bytes:
    try:
        return pickle.dumps(value, protocol=5)
    except Exception as error:
        raise not_pickled(f"the state {name!r} of key {key!r}", value, error) from error
