"""Which backend keeps the keyed state of a slot's tasks: `state.backend.type`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

from firesteel.common.key_groups import KeyGroupRange
from firesteel.common.process import temporary
from taskexecutor.executor.state.hashmap import HashMapKeyedStateBackend
from taskexecutor.executor.state.keyed import KeyedState

ROCKSDB = "rocksdb"


class CreateKeyedState(Protocol):
    def __call__(
        self, key_groups: KeyGroupRange, key_group_of: Callable[[Any], int]
    ) -> KeyedState: ...


class StateBackends:
    """Of the job that a slot serves. `managed_bytes`: the slot's memory for state; `directory`:
    where databases are made, empty for where the process's temporary files go.
    """

    def __init__(self, *, managed_bytes: int, directory: str = "") -> None:
        self._managed_bytes = managed_bytes
        self._base = Path(directory) if directory else None
        self._create_rocksdb: CreateKeyedState | None = None

    def of(self, kind: str) -> CreateKeyedState:
        """Creates backends of this type. From one thread."""
        if kind != ROCKSDB:
            return HashMapKeyedStateBackend
        if self._create_rocksdb is None:
            self._create_rocksdb = self._rocksdb()
        return self._create_rocksdb

    def _rocksdb(self) -> CreateKeyedState:
        # Imported late: 10 MB that few slots need.
        from taskexecutor.executor.state.rocksdb import RocksDbKeyedStateBackend, RocksDbMemory

        memory = RocksDbMemory(self._managed_bytes, self._base)
        if self._base is not None:
            self._base.mkdir(parents=True, exist_ok=True)
            temporary.sweep(self._base)  # what killed processes have left

        def create(
            key_groups: KeyGroupRange, key_group_of: Callable[[Any], int]
        ) -> RocksDbKeyedStateBackend:
            return RocksDbKeyedStateBackend(
                key_groups,
                key_group_of,
                memory=memory,
                new_directory=lambda: temporary.make("state", self._base),
                remove_directory=temporary.remove,
            )

        return create
