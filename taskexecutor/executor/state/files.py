"""The files of an operator's state: written by the asynchronous part of a snapshot, read on
recovery.

Keyed state is one file per operator and subtask: a slice per key group, ascending
(`key_group_content`). A task that restores reads the slices of its own key groups, whoever wrote
them.
"""

from __future__ import annotations

import itertools
import pickle
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import xxhash

from firesteel.common.checkpoints.key_group_content import (
    KeyedStateEntry,
    Rows,
    RowsSlice,
    StreamEncoder,
    decode_key_group,
    encode_key_group,
)
from firesteel.common.checkpoints.state import (
    KeyedHandle,
    KeyGroupSlice,
    OperatorSnapshot,
    StateFile,
)
from firesteel.common.checkpoints.storage import CheckpointStorage
from firesteel.common.ids import OperatorId
from firesteel.errors import FiresteelError
from taskexecutor.executor.state.in_flight import restored_in_flight
from taskexecutor.executor.state.keyed import RestoredDatabase, SnapshotTarget, not_pickled
from taskexecutor.executor.state.operator_state import OperatorStateSnapshot, RestoredOperatorState


def write_snapshot(
    storage: CheckpointStorage,
    path: str,
    operator_id: OperatorId,
    snapshot: OperatorStateSnapshot,
    target: SnapshotTarget | None = None,
    *,
    inline_bytes: int = 0,
) -> OperatorSnapshot:
    """Writes keyed state to the file `path`, if there is more of it than `inline_bytes`, and to
    `target` what its backend has a format of its own for; None: all backends can read all of it.
    Needs no lock: the state may change meanwhile, the snapshot does not. Raises StorageError, and
    FiresteelError for a value that cannot be written.
    """
    database = None if target is None else snapshot.keyed.write(target)
    handle = _write_keyed(
        storage, path, snapshot, with_backend=database is None, inline_bytes=inline_bytes
    )
    return OperatorSnapshot(
        operator_id=operator_id,
        keyed=(handle,) if handle is not None else (),
        databases=(database,) if database is not None else (),
        lists=_encoded(snapshot.lists),
        union_lists=_encoded(snapshot.union_lists),
        broadcasts={
            name: _dumps(name, items) for name, items in snapshot.broadcasts.items() if items
        },
        watermark_us=snapshot.watermark_us,
        finished=snapshot.finished,
    )


def read_snapshot(storage: CheckpointStorage, snapshot: OperatorSnapshot) -> RestoredOperatorState:
    """What a task restores. Keyed state is read while the backend takes it, a key group at a time.
    Raises StorageError.
    """
    return RestoredOperatorState(
        keyed=_read_keyed(storage, snapshot.keyed),
        databases=[
            RestoredDatabase(storage=storage, handle=handle) for handle in snapshot.databases
        ],
        in_flight=[restored_in_flight(storage, handle) for handle in snapshot.in_flight],
        lists={name: [pickle.loads(item) for item in v] for name, v in snapshot.lists.items()},
        union_lists={
            name: [pickle.loads(item) for item in v] for name, v in snapshot.union_lists.items()
        },
        broadcasts={name: pickle.loads(value) for name, value in snapshot.broadcasts.items()},
        states=snapshot.states,
        watermark_us=snapshot.watermark_us,
        finished=snapshot.finished,
    )


@dataclass(slots=True)
class _KeyGroup:
    entries: Sequence[KeyedStateEntry] = ()
    tables: list[tuple[str, Rows, StreamEncoder]] = field(default_factory=list)

    def to_bytes(self) -> bytes:
        try:
            tables = ((name, encoder.encode(rows)) for name, rows, encoder in self.tables)
            return encode_key_group(self.entries, tables)
        except Exception as error:
            raise _unwritable(self.entries, error) from error


def encoded(
    snapshot: OperatorStateSnapshot, *, with_backend: bool = True
) -> Iterator[tuple[int, bytes]]:
    """Keyed state by ascending key group; key groups without any are omitted. One is in memory at
    a time, as far as the backend does not hold all. `with_backend`: else only what is beside it.
    """
    groups: dict[int, _KeyGroup] = {}  # what the backend does not have
    for name, kept in snapshot.rows.items():
        encoder: StreamEncoder | None = None
        for key_group, rows in kept.by_key_group():
            encoder = encoder or StreamEncoder(rows.schema)
            groups.setdefault(key_group, _KeyGroup()).tables.append((name, rows, encoder))
    for key_group, entries in snapshot.keyed.entries_by_key_group() if with_backend else ():
        for before in sorted(group for group in groups if group < key_group):
            yield before, groups.pop(before).to_bytes()
        group = groups.pop(key_group, _KeyGroup())
        group.entries = entries
        yield key_group, group.to_bytes()
    for key_group in sorted(groups):
        yield key_group, groups.pop(key_group).to_bytes()


def _write_keyed(
    storage: CheckpointStorage,
    path: str,
    snapshot: OperatorStateSnapshot,
    *,
    with_backend: bool,
    inline_bytes: int,
) -> KeyedHandle | None:
    slices: list[KeyGroupSlice] = []

    def chunks() -> Iterator[bytes]:
        offset = 0
        for key_group, content in encoded(snapshot, with_backend=with_backend):
            checksum = xxhash.xxh3_128_hexdigest(content)
            slices.append(KeyGroupSlice(key_group, offset, len(content), checksum))
            offset += len(content)
            yield content

    content = chunks()
    first: list[bytes] = []
    for chunk in content:
        first.append(chunk)
        if slices[-1].offset + slices[-1].size_bytes > inline_bytes:
            file = storage.write(path, itertools.chain(first, content))
            break
    else:
        if not first:
            return None
        file = StateFile.inlined(b"".join(first))
    return KeyedHandle(file=file, slices=tuple(slices))


def _read_keyed(
    storage: CheckpointStorage, handles: tuple[KeyedHandle, ...]
) -> Iterator[KeyedStateEntry | RowsSlice]:
    for handle in handles:
        for content in storage.read_slices(handle.file, handle.slices):
            yield from decode_key_group(content)


def _encoded(states: dict[str, list[Any]]) -> dict[str, tuple[bytes, ...]]:
    return {
        name: tuple(_dumps(name, item) for item in items) for name, items in states.items() if items
    }


def _dumps(name: str, value: Any) -> bytes:
    try:
        return pickle.dumps(value, protocol=5)
    except Exception as error:
        raise not_pickled(f"the state {name!r}", value, error) from error


def _unwritable(entries: Sequence[KeyedStateEntry], error: Exception) -> FiresteelError:
    """Names the value that cannot be pickled."""
    for entry in entries:
        try:
            pickle.dumps((entry.key, entry.namespace, entry.value), protocol=5)
        except Exception:
            return not_pickled(f"the state {entry.name!r} of key {entry.key!r}", entry.value, error)
    return FiresteelError(f"keyed state cannot be pickled: {error}")
