"""Keyed state backends of both types, for tests that both have to pass."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from firesteel.common.key_groups import KeyGroupRange
from firesteel.common.process import temporary
from taskexecutor.executor.state import CreateKeyedState, HashMapKeyedStateBackend, KeyedState
from taskexecutor.executor.state.rocksdb import RocksDbKeyedStateBackend, RocksDbMemory

BACKENDS = ("hashmap", "rocksdb")


@contextmanager
def databases() -> Iterator[Path]:
    """A folder for databases. In memory: they wait for the disk often, and tests have many."""
    folder = temporary.make("state", temporary.SHARED_MEMORY)
    try:
        yield folder
    finally:
        temporary.remove(folder)


def creator(kind: str, folder: Path, *, layer_bytes: int = 1_000) -> CreateKeyedState:
    """`layer_bytes`: how much a rocksdb backend holds back; so small that its database matters."""
    if kind == "hashmap":
        return HashMapKeyedStateBackend
    memory = RocksDbMemory(8 << 20)
    memory.layer_bytes = layer_bytes

    def create(key_groups: KeyGroupRange, key_group_of: Callable[[Any], int]) -> KeyedState:
        return RocksDbKeyedStateBackend(
            key_groups,
            key_group_of,
            memory=memory,
            new_directory=lambda: Path(tempfile.mkdtemp(dir=folder)),
        )

    return create
