"""The databases of one backend, each with a range of key groups.

A backend creates one. One that restores the state of several subtasks adopts the database of each,
so that no entry is copied. Only a few are adopted: each takes memory and writes files.
"""

from __future__ import annotations

import shutil
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import groupby, pairwise
from pathlib import Path
from typing import NamedTuple

from firesteel.common.checkpoints.rocksdb import keys
from firesteel.common.checkpoints.rocksdb.reading import read_database
from firesteel.common.checkpoints.state import DatabaseHandle
from firesteel.common.key_groups import KeyGroupRange
from taskexecutor.executor.state.keyed import RestoredDatabase, SnapshotTarget
from taskexecutor.executor.state.rocksdb.database import (
    Database,
    RocksDbMemory,
    Tables,
    write_database,
)
from taskexecutor.executor.state.rocksdb.local_tables import LocalTables

_MOST = 4  # adopted; the entries of other databases are copied into these


class _Part(NamedTuple):
    key_groups: KeyGroupRange
    database: Database
    tables: Tables  # those that earlier checkpoints contain


class Databases:
    """Like one `Database`: writes come from one thread at a time, reads from any thread."""

    def __init__(self, parts: Sequence[_Part], local: LocalTables | None) -> None:
        self._parts = parts
        self._only = parts[0].database if len(parts) == 1 else None
        self._ends = [keys.of_key_group(part.key_groups.end) for part in parts[:-1]]
        self._local = local

    @classmethod
    def create(
        cls,
        directory: Path,
        key_groups: KeyGroupRange,
        memory: RocksDbMemory,
        local: LocalTables | None,
    ) -> Databases:
        return cls([_Part(key_groups, Database(directory / "db", memory), Tables())], local)

    @classmethod
    def restore(
        cls,
        restored: Sequence[RestoredDatabase],
        directory: Path,
        key_groups: KeyGroupRange,
        memory: RocksDbMemory,
        local: LocalTables | None,
    ) -> Databases:
        """Reads the databases into `directory`, and removes the key groups of other subtasks.
        Raises StorageError, and FiresteelError.
        """
        adopted, others = _divided(restored, key_groups)
        firsts = [each.handle.key_groups.first for each in adopted[1:]]
        bounds = [key_groups.first, *firsts, key_groups.end]
        parts: list[_Part] = []
        databases = cls(parts, local)
        try:
            for n, (one, (first, end)) in enumerate(zip(adopted, pairwise(bounds), strict=True)):
                path = directory / (f"db-{n}" if n else "db")
                databases._read(one, path)
                part = _Part(KeyGroupRange(first, end), Database(path, memory), Tables())
                parts.append(part)
                part.tables.remember(one.handle)
                own = one.handle.key_groups
                part.database.remove_range(b"", keys.of_key_group(max(first, own.first)))
                part.database.remove_range(keys.of_key_group(min(end, own.end)), keys.AFTER_ALL)
            databases = cls(parts, local)
            for one in others:
                databases._copy(one, directory / "restored", key_groups, memory)
        except BaseException:
            for part in parts:
                part.database.close()
            raise
        return databases

    def _read(self, one: RestoredDatabase, path: Path) -> None:
        if self._local is None:
            read_database(one.storage, one.handle, path)
        else:
            read_database(one.storage, one.handle, path, self._local.link)
            self._local.keep(one.handle, path)

    def _copy(
        self, one: RestoredDatabase, path: Path, key_groups: KeyGroupRange, memory: RocksDbMemory
    ) -> None:
        self._read(one, path)
        other = Database(path, memory, read_only=True)
        try:
            first, end = keys.of_key_group(key_groups.first), keys.of_key_group(key_groups.end)
            ordered = groupby(other.items(first, end), lambda entry: self._part_of(entry[0]))
            for n, entries in ordered:
                self._parts[n].database.write(entries)
        finally:
            other.close()
            shutil.rmtree(path)

    def get(self, key: bytes) -> bytes | None:
        if self._only is not None:
            return self._only.get(key)
        return self._parts[self._part_of(key)].database.get(key)

    def _part_of(self, key: bytes) -> int:
        return bisect_right(self._ends, key)

    def write(self, entries: Iterable[tuple[bytes, bytes | None]]) -> None:
        """Writes entries; None removes the key."""
        if self._only is not None:
            self._only.write(entries)
            return
        by_part: list[list[tuple[bytes, bytes | None]]] = [[] for _ in self._parts]
        for entry in entries:
            by_part[self._part_of(entry[0])].append(entry)
        for part, own in zip(self._parts, by_part, strict=True):
            part.database.write(own)

    def items(self, first: bytes = b"") -> Iterator[tuple[bytes, bytes]]:
        """Yields the entries with first <= key, in order."""
        for part in self._parts[self._part_of(first) :]:
            yield from part.database.items(first)

    def snapshot(self, path: Path) -> None:
        """Creates databases with the current content in the new folder `path`."""
        path.mkdir()
        for n, part in enumerate(self._parts):
            part.database.snapshot(path / str(n))

    def write_snapshot(self, path: Path, target: SnapshotTarget) -> tuple[DatabaseHandle, ...]:
        """Writes a result of `snapshot` to the checkpoint. Raises StorageError."""
        handles = []
        for n, part in enumerate(self._parts):
            one = replace(target, name=f"{target.name}-{n}") if n else target
            handle = write_database(path / str(n), one, part.tables, part.key_groups)
            if self._local is not None:
                self._local.keep(handle, path / str(n))
            handles.append(handle)
        return tuple(handles)

    def snapshot_items(self, path: Path, memory: RocksDbMemory) -> Iterator[tuple[bytes, bytes]]:
        """Yields the entries in a result of `snapshot`, in order."""
        for n in range(len(self._parts)):
            database = Database(path / str(n), memory, read_only=True)
            try:
                yield from database.items()
            finally:
                database.close()

    def statistics(self) -> dict[str, int]:
        total: dict[str, int] = {}
        for part in self._parts:
            for name, value in part.database.statistics().items():
                total[name] = total.get(name, 0) + value
        return total

    def close(self) -> None:
        for part in self._parts:
            part.database.close()


def _divided(
    restored: Sequence[RestoredDatabase], key_groups: KeyGroupRange
) -> tuple[list[RestoredDatabase], list[RestoredDatabase]]:
    """Returns the databases to adopt, those with most of the key groups, in the order of their key
    groups; and the others.
    """

    def common(one: RestoredDatabase) -> int:
        own = one.handle.key_groups
        return min(own.end, key_groups.end) - max(own.first, key_groups.first)

    ordered = sorted(restored, key=common, reverse=True)
    adopted = sorted(ordered[:_MOST], key=lambda one: one.handle.key_groups.first)
    return adopted, ordered[_MOST:]
