"""The files of an operator's state: written by the asynchronous part of a snapshot, read on
recovery.

Keyed state is one file per operator and subtask: a slice per key group, ascending
(`key_group_content`). A restoring task reads the slices of its key groups from all files. State in
columns is sliced by key group in savepoints only; from a checkpoint, a task may also read rows of
other key groups, and drops them. Small state is stored inline, without a file or slices.
"""

from __future__ import annotations

import heapq
import itertools
import pickle
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Any, TypeAlias

import pyarrow as pa
import xxhash

from firesteel.common.checkpoints.key_group_content import (
    KeyedStateEntry,
    Rows,
    RowsSlice,
    StreamEncoder,
    decode_inline,
    decode_key_group,
    decode_table,
    encode_inline,
    encode_key_group,
    encode_table,
)
from firesteel.common.checkpoints.state import (
    InlineHandle,
    KeyedHandle,
    KeyGroupSlice,
    OperatorSnapshot,
    TableSlice,
)
from firesteel.common.checkpoints.storage import CheckpointStorage
from firesteel.common.ids import OperatorId
from firesteel.common.key_groups import KeyGroupRange
from firesteel.common.units import MIB
from firesteel.errors import FiresteelError
from firesteel.text import text_of
from taskexecutor.executor.state.in_flight import restored_in_flight
from taskexecutor.executor.state.keyed import RestoredDatabase, SnapshotTarget, not_pickled
from taskexecutor.executor.state.keyed_rows import ArrangedRows
from taskexecutor.executor.state.operator_state import OperatorStateSnapshot, RestoredOperatorState

_PIECE_BYTES = 16 * MIB


def write_snapshot(
    storage: CheckpointStorage,
    path: str,
    operator_id: OperatorId,
    snapshot: OperatorStateSnapshot,
    target: SnapshotTarget | None = None,
    *,
    inline_bytes: int = 0,
) -> OperatorSnapshot:
    """Writes keyed state to the file `path` if it exceeds `inline_bytes`, and the backend's part to
    `target` if the backend has its own format. A `target` of None is for savepoints: every backend
    can read the whole file, which is sliced by key group. Needs no lock: the snapshot does not
    change with the state. Raises StorageError, and FiresteelError for a value that cannot be
    written.
    """
    databases = () if target is None else snapshot.keyed.write(target)
    handle = _write_keyed(
        storage,
        path,
        snapshot,
        with_backend=not databases,
        by_key_group=target is None,
        inline_bytes=inline_bytes,
    )
    return OperatorSnapshot(
        operator_id=operator_id,
        keyed=(handle,) if isinstance(handle, KeyedHandle) else (),
        inline=(handle,) if isinstance(handle, InlineHandle) else (),
        databases=databases,
        lists=_encoded(snapshot.lists),
        union_lists=_encoded(snapshot.union_lists),
        broadcasts={
            name: _dumps(name, items) for name, items in snapshot.broadcasts.items() if items
        },
        watermark_us=snapshot.watermark_us,
        finished=snapshot.finished,
    )


def read_snapshot(storage: CheckpointStorage, snapshot: OperatorSnapshot) -> RestoredOperatorState:
    """Returns the state that a task restores. Keyed state is read lazily while the backend consumes
    it, one key group at a time. Raises StorageError.
    """
    return RestoredOperatorState(
        keyed=_read_keyed(storage, snapshot),
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


_Part: TypeAlias = tuple[str, Rows, StreamEncoder]  # of a state in columns


@dataclass(slots=True)
class _KeyGroup:
    entries: Sequence[KeyedStateEntry] = ()
    tables: list[_Part] = field(default_factory=list)
    encoded: bytes | None = None  # the encoding without tables, if already known

    def to_bytes(self) -> bytes:
        if self.encoded is not None and not self.tables:
            return self.encoded
        try:
            tables = ((name, encoder.encode(rows)) for name, rows, encoder in self.tables)
            return encode_key_group(self.entries, tables)
        except Exception as error:
            raise _unwritable(self.entries, error) from error


def encoded(
    snapshot: OperatorStateSnapshot, *, with_backend: bool = True
) -> Iterator[tuple[int, bytes]]:
    """Yields keyed state by ascending key group, without empty key groups. Holds one key group in
    memory at a time, unless the backend holds everything. `with_backend=False` omits the backend's
    state.
    """
    rows = _arranged(snapshot, _tables(snapshot))
    return _by_key_group(rows, _entries(snapshot, with_backend=with_backend))


def _entries(
    snapshot: OperatorStateSnapshot, *, with_backend: bool
) -> Iterator[tuple[int, _KeyGroup]]:
    if with_backend:
        for key_group, entries in snapshot.keyed.entries_by_key_group():
            yield key_group, _KeyGroup(entries)


def _tables(snapshot: OperatorStateSnapshot) -> dict[str, pa.Table]:
    tables = ((name, kept.table()) for name, kept in snapshot.rows.items())
    return {name: table for name, table in tables if table is not None}


def _arranged(
    snapshot: OperatorStateSnapshot, tables: Mapping[str, pa.Table]
) -> dict[str, ArrangedRows]:
    return {name: snapshot.rows[name].arranged(table) for name, table in tables.items()}


def _by_key_group(
    rows: Mapping[str, ArrangedRows], entries: Iterable[tuple[int, _KeyGroup]]
) -> Iterator[tuple[int, bytes]]:
    tables = (_parts(name, arranged) for name, arranged in rows.items())
    key_group_of = itemgetter(0)
    merged: Iterator[tuple[int, _KeyGroup | _Part]] = heapq.merge(
        entries, *tables, key=key_group_of
    )
    for key_group, parts in itertools.groupby(merged, key_group_of):
        group = _KeyGroup()
        for _, part in parts:
            if isinstance(part, _KeyGroup):  # it precedes the rows of its key group
                group = part
            else:
                group.tables.append(part)
        yield key_group, group.to_bytes()


def _parts(name: str, arranged: ArrangedRows) -> Iterator[tuple[int, _Part]]:
    encoder = StreamEncoder(arranged.table.schema)
    for key_group, part in arranged.by_key_group():
        yield key_group, (name, part, encoder)


def _write_keyed(
    storage: CheckpointStorage,
    path: str,
    snapshot: OperatorStateSnapshot,
    *,
    with_backend: bool,
    by_key_group: bool,
    inline_bytes: int,
) -> KeyedHandle | InlineHandle | None:
    tables = _tables(snapshot)
    small_tables = sum(table.nbytes for table in tables.values()) <= inline_bytes
    rows = _arranged(snapshot, tables) if small_tables or by_key_group else {}
    entries = _entries(snapshot, with_backend=with_backend)
    seen: list[tuple[int, _KeyGroup]] = []
    if small_tables:
        small, seen = _inlined(rows, entries, inline_bytes)
        if small is not None:
            return small
    slices: list[KeyGroupSlice] = []
    table_slices: list[TableSlice] = []

    def chunks() -> Iterator[bytes | memoryview]:
        offset = 0
        for name, table in tables.items() if not rows else ():
            for part in _pieces(table):
                stream = encode_table(part)
                checksum = xxhash.xxh3_128_hexdigest(stream)
                own = snapshot.rows[name].key_groups
                table_slices.append(TableSlice(name, own, offset, len(stream), checksum))
                offset += len(stream)
                yield stream
        for key_group, content in _by_key_group(rows, itertools.chain(seen, entries)):
            checksum = xxhash.xxh3_128_hexdigest(content)
            slices.append(KeyGroupSlice(key_group, offset, len(content), checksum))
            offset += len(content)
            yield content

    content = chunks()
    first = next(content, None)
    if first is None:
        return None
    file = storage.write(path, itertools.chain((first,), content))
    return KeyedHandle(file=file, slices=tuple(slices), tables=tuple(table_slices))


def _pieces(table: pa.Table) -> Iterator[pa.Table]:
    """Yields parts that are small enough to be copied in memory while they are written."""
    rows = max(1, table.num_rows * _PIECE_BYTES // max(1, table.nbytes))
    for begin in range(0, table.num_rows, rows):
        yield table.slice(begin, rows)


def _inlined(
    rows: Mapping[str, ArrangedRows],
    entries: Iterator[tuple[int, _KeyGroup]],
    limit_bytes: int,
) -> tuple[InlineHandle | None, list[tuple[int, _KeyGroup]]]:
    """Returns the whole state if it is small, and the part of `entries` that was consumed to find
    out.
    """
    seen: list[tuple[int, _KeyGroup]] = []
    left_bytes = limit_bytes - sum(arranged.table.nbytes for arranged in rows.values())
    if left_bytes < 0:
        return None, seen
    groups: list[tuple[int, bytes]] = []
    for key_group, group in entries:
        seen.append((key_group, group))
        group.encoded = group.to_bytes()
        groups.append((key_group, group.encoded))
        left_bytes -= len(group.encoded)
        if left_bytes < 0:
            return None, seen
    used = {group for group, _ in groups}
    used.update(group for arranged in rows.values() for group, _ in arranged.counts)
    if not used:
        return None, seen
    tables = ((name, arranged.rows, arranged.counts) for name, arranged in rows.items())
    content = encode_inline(groups, tables)
    if len(content) > limit_bytes:
        return None, seen
    return InlineHandle(key_groups=KeyGroupRange(min(used), max(used) + 1), content=content), seen


def _read_keyed(
    storage: CheckpointStorage, snapshot: OperatorSnapshot
) -> Iterator[KeyedStateEntry | RowsSlice]:
    for inline in snapshot.inline:
        yield from decode_inline(inline.content, inline.key_groups)
    for handle in snapshot.keyed:
        contents = storage.read_slices(handle.file, handle.tables)
        for part, content in zip(handle.tables, contents, strict=True):
            yield decode_table(content, part.name, part.key_groups)
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
    """Returns an error that names the value that cannot be pickled."""
    for entry in entries:
        try:
            pickle.dumps((entry.key, entry.namespace, entry.value), protocol=5)
        except Exception:
            return not_pickled(f"the state {entry.name!r} of key {entry.key!r}", entry.value, error)
    return FiresteelError(f"keyed state cannot be pickled: {text_of(error)}")
