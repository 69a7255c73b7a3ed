"""Reads a database in a checkpoint, without its task."""

from __future__ import annotations

import pickle
import tempfile
from collections.abc import Callable, Iterable, Iterator
from itertools import groupby
from pathlib import Path
from typing import cast

from rocksdict import AccessType, Options, Rdict

from firesteel.common.checkpoints.key_group_content import KeyedStateEntry
from firesteel.common.checkpoints.rocksdb import keys
from firesteel.common.checkpoints.state import DatabaseHandle, StateFile
from firesteel.common.checkpoints.storage import CheckpointStorage


def read_database(
    storage: CheckpointStorage,
    handle: DatabaseHandle,
    path: Path,
    link: Callable[[StateFile, Path], bool] = lambda file, path: False,
) -> None:
    """Copies the database into a new directory. `link` creates a file from one that is already on
    this machine, and otherwise returns False. Raises StorageError.
    """
    path.mkdir(parents=True)
    for name, content in pickle.loads(storage.read(handle.rest)).items():
        (path / name).write_bytes(content)
    missing = [table for table in handle.tables if not link(table.file, path / table.name)]
    storage.each(lambda table: storage.read_to(table.file, path / table.name), missing)


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
