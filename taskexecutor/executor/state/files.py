"""The files of an operator's state: written by the asynchronous part of a snapshot, read on
recovery.

Keyed state is one file per operator and subtask: a slice per key group, ascending, each a pickled
list of (name, key, namespace, value). A task that restores reads the slices of its own key groups,
whoever wrote them. Pickle holds values of the user's classes; who can write the checkpoint
directory can run code in the job, which the documentation says.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from typing import Any

import xxhash

from firesteel.common.checkpoints.state import KeyedHandle, KeyGroupSlice, OperatorSnapshot
from firesteel.common.checkpoints.storage import CheckpointStorage
from firesteel.common.ids import OperatorId
from firesteel.errors import FiresteelError
from taskexecutor.executor.state.keyed import KeyedStateEntry, KeyedStateSnapshot
from taskexecutor.executor.state.operator_state import OperatorStateSnapshot, RestoredOperatorState


def write_snapshot(
    storage: CheckpointStorage, path: str, operator_id: OperatorId, snapshot: OperatorStateSnapshot
) -> OperatorSnapshot:
    """Writes keyed state to the file `path`, if there is any. Needs no lock: the state may change
    meanwhile, the snapshot does not. Raises StorageError, and FiresteelError for a value that
    cannot be written.
    """
    handle = _write_keyed(storage, path, snapshot.keyed)
    return OperatorSnapshot(
        operator_id=operator_id,
        keyed=(handle,) if handle is not None else (),
        lists=_encoded(snapshot.lists),
        union_lists=_encoded(snapshot.union_lists),
        broadcasts={
            name: _dumps(name, items) for name, items in snapshot.broadcasts.items() if items
        },
        finished=snapshot.finished,
    )


def read_snapshot(storage: CheckpointStorage, snapshot: OperatorSnapshot) -> RestoredOperatorState:
    """What a task restores. Keyed state is read while the backend takes it, a key group at a time.
    Raises StorageError.
    """
    return RestoredOperatorState(
        keyed=_read_keyed(storage, snapshot.keyed),
        lists={name: [pickle.loads(item) for item in v] for name, v in snapshot.lists.items()},
        union_lists={
            name: [pickle.loads(item) for item in v] for name, v in snapshot.union_lists.items()
        },
        broadcasts={name: pickle.loads(value) for name, value in snapshot.broadcasts.items()},
        finished=snapshot.finished,
    )


def _write_keyed(
    storage: CheckpointStorage, path: str, snapshot: KeyedStateSnapshot
) -> KeyedHandle | None:
    slices: list[KeyGroupSlice] = []

    def chunks() -> Iterator[bytes]:
        offset = 0
        for key_group, entries in snapshot.entries_by_key_group():
            rows = [(entry.name, entry.key, entry.namespace, entry.value) for entry in entries]
            try:
                content = pickle.dumps(rows, protocol=5)
            except Exception as error:
                raise _unwritable(entries, error) from error
            checksum = xxhash.xxh3_128_hexdigest(content)
            slices.append(KeyGroupSlice(key_group, offset, len(content), checksum))
            offset += len(content)
            yield content

    content = chunks()
    first = next(content, None)
    if first is None:
        return None
    file = storage.write(path, _chained(first, content))
    return KeyedHandle(file=file, slices=tuple(slices))


def _chained(first: bytes, others: Iterator[bytes]) -> Iterator[bytes]:
    yield first
    yield from others


def _read_keyed(
    storage: CheckpointStorage, handles: tuple[KeyedHandle, ...]
) -> Iterator[KeyedStateEntry]:
    for handle in handles:
        for part in handle.slices:
            for row in pickle.loads(storage.read_slice(handle.file, part)):
                yield KeyedStateEntry(*row)


def _encoded(states: dict[str, list[Any]]) -> dict[str, tuple[bytes, ...]]:
    return {
        name: tuple(_dumps(name, item) for item in items) for name, items in states.items() if items
    }


def _dumps(name: str, value: Any) -> bytes:
    try:
        return pickle.dumps(value, protocol=5)
    except Exception as error:
        raise FiresteelError(
            f"the state {name!r} has a value that cannot be pickled"
            f" ({type(value).__name__}): {error}"
        ) from error


def _unwritable(entries: list[KeyedStateEntry], error: Exception) -> FiresteelError:
    """Names the value that cannot be pickled."""
    for entry in entries:
        try:
            pickle.dumps((entry.key, entry.namespace, entry.value), protocol=5)
        except Exception:
            return FiresteelError(
                f"the state {entry.name!r} of key {entry.key!r} has a value that cannot be pickled"
                f" ({type(entry.value).__name__}): {error}"
            )
    return FiresteelError(f"keyed state cannot be pickled: {error}")
