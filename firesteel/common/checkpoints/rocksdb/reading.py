"""Reads a database in a checkpoint, without its task."""

from __future__ import annotations

import pickle
import tempfile
from collections.abc import Iterable, Iterator
from itertools import groupby
from pathlib import Path
from typing import cast

from rocksdict import AccessType, Options, Rdict

from firesteel.common.checkpoints.key_group_content import KeyedStateEntry
from firesteel.common.checkpoints.rocksdb import keys
from firesteel.common.checkpoints.state import DatabaseHandle
from firesteel.common.checkpoints.storage import CheckpointStorage


def read_database(storage: CheckpointStorage, handle: DatabaseHandle, path: Path) -> None:
    """Copies the database into a new directory. Raises StorageError."""
    path.mkdir(parents=True)
    for name, content in pickle.loads(storage.read(handle.rest)).items():
        (path / name).write_bytes(content)
    storage.each(lambda table: storage.read_to(table.file, path / table.name), handle.tables)


def read_entries(
    storage: CheckpointStorage, handle: DatabaseHandle, names: Iterable[str] | None = None
) -> Iterator[tuple[int, Iterator[KeyedStateEntry]]]:
    """Returns the entries of the states with these names, or of all, by ascending key group. Read
    the entries of one group before the next. Keeps a copy of the database in the folder for
    temporary files meanwhile. Raises StorageError.
    """
    wanted = None if names is None else tuple(map(keys.of_state, names))
    with tempfile.TemporaryDirectory(prefix="database-") as folder:
        path = Path(folder) / "db"
        read_database(storage, handle, path)
        database = Rdict(str(path), Options(raw_mode=True), access_type=AccessType.read_only(False))
        try:
            items = cast("Iterator[tuple[bytes, bytes]]", database.items())
            if wanted is not None:
                items = (item for item in items if item[0].startswith(wanted, 4))
            for key_group, entries in groupby(items, lambda item: keys.key_group_in(item[0])):
                yield key_group, (entry_of(where, value) for where, value in entries)
        finally:
            database.close()


def entry_of(where: bytes, value: bytes) -> KeyedStateEntry:
    name, key, namespace = keys.decoded(where)
    return KeyedStateEntry(name, key, namespace, pickle.loads(value))
