"""A database's files in checkpoints. Its tables never change, and a database never reuses a name,
so a table that an earlier checkpoint contains is not written again.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from pathlib import Path

from firesteel.common.checkpoints.shared import is_shared, shared_path
from firesteel.common.checkpoints.state import DatabaseFile, DatabaseHandle, StateFile
from firesteel.common.failpoints import Failpoint, reached
from firesteel.common.key_groups import KeyGroupRange
from taskexecutor.executor.state.keyed import SnapshotTarget

_CHUNK_BYTES = 4 << 20
_REMEMBERED = 10  # checkpoints
_TABLES = ".sst"
_IGNORED = ("LOG", "LOCK", "IDENTITY")


class Tables:
    """Tracks the tables that earlier checkpoints contain. Used by the thread that writes
    checkpoints.
    """

    def __init__(self) -> None:
        self._by_checkpoint: dict[int, dict[str, StateFile]] = {}

    def of(self, checkpoint_id: int) -> dict[str, StateFile]:
        return self._by_checkpoint.get(checkpoint_id, {})

    def remember(self, handle: DatabaseHandle, base: int = 0) -> None:
        """Adds a checkpoint's tables. No later checkpoint builds on one before `base`."""
        self._by_checkpoint[handle.checkpoint_id] = {
            name: file for name, file in handle.tables if is_shared(file.path)
        }
        newest = sorted(self._by_checkpoint)[-_REMEMBERED:]
        for checkpoint_id in list(self._by_checkpoint):
            if checkpoint_id != base and (checkpoint_id < base or checkpoint_id not in newest):
                del self._by_checkpoint[checkpoint_id]


def write_database(
    path: Path, target: SnapshotTarget, known: Tables, key_groups: KeyGroupRange
) -> DatabaseHandle:
    """Writes a result of `Database.snapshot` at `path` to the checkpoint. Raises StorageError."""
    base = known.of(target.base) if target.base else {}
    rest: dict[str, bytes] = {}
    files = sorted(path.iterdir())
    names = [file.name for file in files if file.suffix == _TABLES]
    new = [name for name in names if name not in base]

    def write(table: str) -> StateFile:
        name = f"{target.name}-{table}"
        written = target.write(
            f"chk-{target.checkpoint_id}/{name}"
            if target.base is None
            else shared_path(target.checkpoint_id, name),
            _chunks(path / table),
        )
        reached(Failpoint.TABLE_AFTER)
        return written

    written = dict(zip(new, target.storage.each(write, new), strict=True))
    new_bytes = sum(file.size_bytes for file in written.values())
    for file in files:
        if file.suffix != _TABLES and not (file.name.startswith(_IGNORED) or file.suffix == ".log"):
            rest[file.name] = file.read_bytes()
    packed = pickle.dumps(rest, protocol=5)
    handle = DatabaseHandle(
        checkpoint_id=target.checkpoint_id,
        key_groups=key_groups,
        tables=tuple(DatabaseFile(name, {**base, **written}[name]) for name in names),
        rest=target.write(f"chk-{target.checkpoint_id}/{target.name}-database", [packed]),
        new_bytes=new_bytes + len(packed),
    )
    known.remember(handle, target.base or 0)
    return handle


def _chunks(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK_BYTES):
            yield chunk
