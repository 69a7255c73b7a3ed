"""Keyed state in columns: how a table is cut by key group for its file, and put together again.

A snapshot takes no time in the task's thread: the table is made, cut and written by another one.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from firesteel.column_names import column_index
from firesteel.errors import FiresteelError
from taskexecutor.executor.exchange import UnsupportedKey
from taskexecutor.executor.exchange.partitioning import hash_columns

MakeTable = Callable[[], pa.Table | None]
_MEANING = b"firesteel.meaning"  # in the metadata of a table's schema, as JSON


@dataclass(frozen=True, slots=True)
class RowsSnapshot:
    """What `KeyedRows.keep` was given."""

    make: MakeTable
    key_columns: tuple[str, ...]
    meaning: Mapping[str, str]
    max_parallelism: int

    def by_key_group(self) -> Iterator[tuple[int, pa.Table]]:
        """The rows by ascending key group; within one, a key's rows stay in order."""
        table = self.make()
        if table is None or not table.num_rows:
            return
        table = table.replace_schema_metadata({_MEANING: json.dumps(self.meaning).encode()})
        groups = self._key_groups(table)
        first = int(groups[0])
        if (groups == first).all():
            yield first, table
            return
        arranged = table.take(pa.array(np.argsort(groups, kind="stable")))
        counts = np.bincount(groups)
        ends = np.cumsum(counts)
        for group in np.flatnonzero(counts).tolist():
            count = int(counts[group])
            yield group, arranged.slice(int(ends[group]) - count, count)

    def _key_groups(self, table: pa.Table) -> npt.NDArray[np.unsignedinteger]:
        # The narrowest type: numpy sorts 16-bit words by radix, in linear time.
        narrow = np.uint16 if self.max_parallelism <= 2**16 else np.uint32
        nowhere = np.zeros(table.num_rows, narrow)
        if not self.key_columns:
            return nowhere  # one subtask has all of them
        keys = [table.column(column_index(table.schema, name)) for name in self.key_columns]
        try:
            hashes = hash_columns([pa.concat_arrays(key.chunks) for key in keys])
        except UnsupportedKey:  # which the exchange takes for a single subtask
            return nowhere
        return (hashes % np.uint32(self.max_parallelism)).astype(narrow)


class TaskKeyedRows:
    """The `firesteel.operator.KeyedRows` of one name."""

    def __init__(
        self,
        name: str,
        key_columns: Sequence[str],
        meaning: Mapping[str, str],
        max_parallelism: int,
    ) -> None:
        self._name = name
        self._key_columns = tuple(key_columns)
        self._meaning = {"key": ", ".join(key_columns), **meaning}
        self._max_parallelism = max_parallelism
        self._restored: list[pa.Table] = []
        self._make: MakeTable | None = None

    def restored(self) -> pa.Table | None:
        tables, self._restored = self._restored, []
        for table in tables:
            self._check(json.loads((table.schema.metadata or {}).get(_MEANING, b"{}")))
        return pa.concat_tables(tables).replace_schema_metadata(None) if tables else None

    def _check(self, before: Mapping[str, str]) -> None:
        now = self._meaning
        for what in sorted(now.keys() | before.keys()):
            was, is_now = before.get(what, ""), now.get(what, "")
            if was != is_now:
                raise FiresteelError(
                    f"the {self._name} that are restored do not fit the program: {what}"
                    f" {was or 'none'} then, {is_now or 'none'} now. Give the operator another uid"
                    " to begin without them"
                )

    def keep(self, make: MakeTable) -> None:
        self._make = make

    def restore(self, tables: list[pa.Table]) -> None:
        self._restored = tables

    def snapshot(self) -> RowsSnapshot | None:
        """What `keep` was given since the last one."""
        make, self._make = self._make, None
        if make is None:
            return None
        return RowsSnapshot(make, self._key_columns, self._meaning, self._max_parallelism)
