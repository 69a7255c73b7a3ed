"""Encodes the slices of a keyed state file, which hold the state of one key group or rows of a
state in columns, and the small state in a checkpoint's `_metadata`.

The state of a key group is a pickled pair: a list of (name, key, namespace, value), which includes
timers, and a list of (name, table), with each table as an Arrow stream. Pickle holds values of the
user's classes. Whoever can write the checkpoint directory can therefore run code in the job, and in
every program that reads its savepoints.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import pyarrow as pa

from firesteel.common.key_groups import KeyGroupRange

Rows: TypeAlias = pa.Table | pa.RecordBatch

_END_OF_STREAM = b"\xff\xff\xff\xff\x00\x00\x00\x00"

# The names of timers, as entries: the namespace is (time, namespace), and the value is a number
# that orders timers with equal times.
EVENT_TIME_TIMERS = "firesteel.event_time_timers"
PROCESSING_TIME_TIMERS = "firesteel.processing_time_timers"
# Prefixes the name of a state with a TTL. The entries say when which keys must be examined. Only
# the backend that wrote them reads them: they follow from the state.
EXPIRIES = "firesteel.expiries."


def has_timers(name: str) -> bool:
    """Whether the entries of this name are timers."""
    return name in (EVENT_TIME_TIMERS, PROCESSING_TIME_TIMERS) or name.startswith(EXPIRIES)


@dataclass(frozen=True, slots=True)
class KeyedStateEntry:
    name: str
    key: Any
    namespace: Any
    value: Any


@dataclass(frozen=True, slots=True)
class RowsSlice:
    """Rows of a state in columns."""

    name: str
    table: pa.Table
    key_groups: KeyGroupRange | None = None  # whose rows they may be; None: the reader's only


def encode_key_group(
    entries: Iterable[KeyedStateEntry], tables: Iterable[tuple[str, bytes]]
) -> bytes:
    """Encodes the state of one key group; `tables` come from a StreamEncoder. Raises what pickle
    raises for a value that cannot be pickled.
    """
    rows = [(entry.name, entry.key, entry.namespace, entry.value) for entry in entries]
    return pickle.dumps((rows, list(tables)), protocol=5)


def decode_key_group(content: bytes) -> Iterator[KeyedStateEntry | RowsSlice]:
    rows, tables = pickle.loads(content)
    for row in rows:
        yield KeyedStateEntry(*row)
    for name, table in tables:
        yield RowsSlice(name, _from_bytes(table))


def encode_inline(
    entries: Iterable[tuple[int, bytes]],
    tables: Iterable[tuple[str, Rows, Sequence[tuple[int, int]]]],
) -> bytes:
    """Encodes small state of several key groups. `entries` come from `encode_key_group`, by key
    group. `tables` have the row counts of their key groups, whose rows are consecutive. A table is
    one stream, which takes a tenth of the bytes of one stream per key group.
    """
    streams = [
        (name, StreamEncoder(rows.schema).encode(rows), list(counts))
        for name, rows, counts in tables
    ]
    return pickle.dumps((list(entries), streams), protocol=5)


def decode_inline(
    content: bytes, key_groups: KeyGroupRange
) -> Iterator[KeyedStateEntry | RowsSlice]:
    """Returns the contents that belong to these key groups."""
    entries, streams = pickle.loads(content)
    for key_group, encoded in entries:
        if key_group in key_groups:
            yield from decode_key_group(encoded)
    for name, stream, counts in streams:
        table, begin = _from_bytes(stream), 0
        for key_group, count in counts:
            if key_group in key_groups:
                yield RowsSlice(name, table.slice(begin, count))
            begin += count


def encode_table(table: pa.Table) -> memoryview:
    """Encodes the rows of a `TableSlice`. Lets other threads run."""
    size = pa.MockOutputStream()
    with pa.ipc.new_stream(size, table.schema) as writer:
        writer.write_table(table)
    content = pa.allocate_buffer(size.size())
    with pa.ipc.new_stream(pa.FixedSizeBufferWriter(content), table.schema) as writer:
        writer.write_table(table)
    return memoryview(content)


def decode_table(content: bytes, name: str, key_groups: KeyGroupRange) -> RowsSlice:
    return RowsSlice(name, _from_bytes(content), key_groups)


class StreamEncoder:
    """Makes Arrow streams of rows of one schema: the bytes that pyarrow's writer would write. It
    takes several times as long as the row or two of a key group in a small state.
    """

    def __init__(self, schema: pa.Schema) -> None:
        self._schema = schema
        self._head: bytes = schema.serialize().to_pybytes()
        self._has_dictionaries = any(_may_have_dictionary(field.type) for field in schema)

    def encode(self, rows: Rows) -> bytes:
        if self._has_dictionaries:  # dictionaries are separate messages
            return self._written(rows)
        batches = [rows] if isinstance(rows, pa.RecordBatch) else rows.to_batches()
        return b"".join((self._head, *(batch.serialize() for batch in batches), _END_OF_STREAM))

    def _written(self, rows: Rows) -> bytes:
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, self._schema) as writer:
            writer.write(rows)
        written: bytes = sink.getvalue().to_pybytes()
        return written


def _may_have_dictionary(kind: pa.DataType) -> bool:
    return isinstance(kind, pa.DictionaryType | pa.BaseExtensionType) or any(
        _may_have_dictionary(kind.field(n).type) for n in range(kind.num_fields)
    )


def _from_bytes(content: bytes) -> pa.Table:
    with pa.ipc.open_stream(content) as reader:
        return reader.read_all()
