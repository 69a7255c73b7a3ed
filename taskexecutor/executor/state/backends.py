"""Selects the backend for the keyed state of a slot's tasks: as `state.backend.type` says, or by
default for a batch `hashmap` with paged state in columns.
"""

from __future__ import annotations

import resource
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from firesteel.common.key_groups import KeyGroupRange
from firesteel.common.process import temporary
from firesteel.common.units import MIB
from taskexecutor.executor.column_memory import SlotColumnMemory
from taskexecutor.executor.state.hashmap import HashMapKeyedStateBackend
from taskexecutor.executor.state.keyed import KeyedState

ROCKSDB, PAGED = "rocksdb", "paged"
_LEAST_BYTES = 8 * MIB  # for state in columns
_FILES = 1 << 20  # limit of files open at the same time


class CreateKeyedState(Protocol):
    def __call__(
        self, key_groups: KeyGroupRange, key_group_of: Callable[[Any], int]
    ) -> KeyedState: ...


class StateBackends:
    """The state backends of the job in a slot. `managed_bytes` is the slot's memory for state;
    databases and files are created in `directory`, or if empty with the process's temporary files.
    """

    def __init__(self, *, managed_bytes: int, directory: str = "") -> None:
        self.managed_bytes = managed_bytes
        self._base = Path(directory) if directory else None
        self._made: dict[str, CreateKeyedState] = {}  # by type: its backends share memory
        self._used: list[Callable[[], int]] = []  # the used memory of each type
        self._closed: list[Callable[[], None]] = []

    @property
    def used_bytes(self) -> int:
        """The managed memory that the backends use. May be called from any thread."""
        return sum(used() for used in self._used)

    def close(self) -> None:
        """Removes the files that outlive single backends. Called when the job leaves the slot."""
        for close in self._closed:
            close()

    def of(self, kind: str) -> CreateKeyedState:
        """Returns the constructor for backends of this type. Called from one thread."""
        if kind not in (ROCKSDB, PAGED):
            return HashMapKeyedStateBackend
        if kind not in self._made:
            self._prepare_files()
            self._made[kind] = self._rocksdb() if kind == ROCKSDB else self._paged()
        return self._made[kind]

    def _prepare_files(self) -> None:
        """Prepares the directory, and raises the limit of open files: paged state uses many."""
        if self._base is not None:
            self._base.mkdir(parents=True, exist_ok=True)
            temporary.sweep(self._base)  # removes files of killed processes
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        allowed = _FILES if hard == resource.RLIM_INFINITY else min(_FILES, hard)
        if soft != resource.RLIM_INFINITY and soft < allowed:
            resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))

    def _paged(self) -> CreateKeyedState:
        columns = SlotColumnMemory(max(self.managed_bytes, _LEAST_BYTES), self._base)
        self._used.append(lambda: columns.in_memory_bytes)
        return partial(HashMapKeyedStateBackend, columns=columns)

    def _rocksdb(self) -> CreateKeyedState:
        # Imported on demand: it takes 10 MB and few slots need it.
        from taskexecutor.executor.state.rocksdb import (
            LocalTables,
            RocksDbKeyedStateBackend,
            RocksDbMemory,
        )

        memory = RocksDbMemory(self.managed_bytes, self._base)
        local_tables = LocalTables(self._base)
        self._closed.append(local_tables.close)
        self._used.append(lambda: memory.used_bytes)

        def create(
            key_groups: KeyGroupRange, key_group_of: Callable[[Any], int]
        ) -> RocksDbKeyedStateBackend:
            return RocksDbKeyedStateBackend(
                key_groups,
                key_group_of,
                memory=memory,
                local_tables=local_tables,
                new_directory=lambda: temporary.make("state", self._base),
                remove_directory=temporary.remove,
            )

        return create
