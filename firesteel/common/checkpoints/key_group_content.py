"""What a slice of a keyed state file holds: the state of one key group.

A pickled pair: a list of (name, key, namespace, value), timers among them, and a list of (name,
table), with each table as an Arrow stream. Pickle holds values of the user's classes; who can write
the checkpoint directory can run code in the job, and in whatever reads its savepoints.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

# The names of timers, as entries: their namespace is (time, namespace), their value a number in
# the order of which equal times fire.
EVENT_TIME_TIMERS = "firesteel.event_time_timers"
PROCESSING_TIME_TIMERS = "firesteel.processing_time_timers"


@dataclass(frozen=True, slots=True)
class KeyedStateEntry:
    name: str
    key: Any
    namespace: Any
    value: Any


@dataclass(frozen=True, slots=True)
class RowsSlice:
    """The rows of one key group: state in columns."""

    name: str
    table: pa.Table


def encode_key_group(
    entries: Iterable[KeyedStateEntry], tables: Iterable[tuple[str, pa.Table]]
) -> bytes:
    """Raises what pickle raises for a value that cannot be pickled."""
    rows = [(entry.name, entry.key, entry.namespace, entry.value) for entry in entries]
    return pickle.dumps((rows, [(name, _to_bytes(table)) for name, table in tables]), protocol=5)


def decode_key_group(content: bytes) -> Iterator[KeyedStateEntry | RowsSlice]:
    rows, tables = pickle.loads(content)
    for row in rows:
        yield KeyedStateEntry(*row)
    for name, table in tables:
        yield RowsSlice(name, _from_bytes(table))


def _to_bytes(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    written: bytes = sink.getvalue().to_pybytes()
    return written


def _from_bytes(content: bytes) -> pa.Table:
    with pa.ipc.open_stream(content) as reader:
        return reader.read_all()
