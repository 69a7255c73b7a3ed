"""Keyed state in columns: how a table is stored and restored.

A snapshot takes no time in the task's thread: another thread makes and writes the table. A
checkpoint stores the rows unsorted, because checkpoints are frequent; a task that restores other
key groups filters the rows itself. Savepoints slice them by key group, like all keyed state.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from firesteel.column_names import column_index
from firesteel.common.checkpoints.descriptions import StateDescription, StateKind
from firesteel.common.checkpoints.evolution import changed_state
from firesteel.common.checkpoints.key_group_content import Rows, RowsSlice
from firesteel.common.checkpoints.storage import StorageError
from firesteel.common.key_groups import KeyGroupRange
from firesteel.common.logs import get_logger
from firesteel.common.units import MIB
from firesteel.errors import FiresteelError
from taskexecutor.executor.column_memory import SlotColumnMemory
from taskexecutor.executor.columnar.grouping.row_log import taken
from taskexecutor.executor.exchange import UnsupportedKey
from taskexecutor.executor.exchange.partitioning import hash_columns

_log = get_logger("task")
ARRANGED_BYTES = 16 * MIB  # of rows, arranged at a time
HASHED_ROWS = 65_536  # at a time
MakeTable = Callable[[], pa.Table | None]
_DESCRIPTION = b"firesteel.state"  # in the metadata of a table's schema, as JSON


class ArrangedRows(NamedTuple):
    """Rows in ascending order of key groups; within one, a key's rows stay in order."""

    table: pa.Table
    order: npt.NDArray[np.intp] | None  # their indices in `table`; None: all are of one key group
    counts: tuple[tuple[int, int], ...]  # key groups and their numbers of rows

    @property
    def rows(self) -> Rows:
        """All rows; for small tables."""
        if self.order is None:
            return self.table
        return taken(self.table.to_batches(), self.order)

    def by_key_group(self) -> Iterator[tuple[int, Rows]]:
        """Yields the rows of each key group. Few of them are copied at a time."""
        if self.order is None:
            yield self.counts[0][0], self.table
            return
        batches, begin = self.table.to_batches(), 0
        for run in self._runs():
            end = begin + sum(count for _, count in run)
            rows, place = taken(batches, self.order[begin:end]), 0
            for key_group, count in run:
                yield key_group, rows.slice(place, count)
                place += count
            begin = end

    def _runs(self) -> Iterator[list[tuple[int, int]]]:
        """Yields consecutive `counts` of limited size, at least one at a time."""
        most = self.table.num_rows * ARRANGED_BYTES // max(1, self.table.nbytes)
        run: list[tuple[int, int]] = []
        rows = 0
        for key_group, count in self.counts:
            if run and rows + count > most:
                yield run
                run, rows = [], 0
            run.append((key_group, count))
            rows += count
        if run:
            yield run


@dataclass(frozen=True, slots=True)
class RowsSnapshot:
    """A snapshot of the rows passed to `KeyedRows.keep`."""

    make: MakeTable
    key_columns: tuple[str, ...]
    description: StateDescription
    max_parallelism: int
    key_groups: KeyGroupRange  # of the subtask that wrote them
    made: Callable[[int], None]  # called with the table's size in bytes

    def table(self) -> pa.Table | None:
        """Makes the table; call it once. Returns None if there are no rows."""
        table = self.make()
        if table is None or not table.num_rows:
            return None
        self.made(table.nbytes)
        return table.replace_schema_metadata({_DESCRIPTION: self.description.to_json()})

    def arranged(self, table: pa.Table) -> ArrangedRows:
        """Returns the rows of `table`, a result of `table()`, arranged by key group."""
        groups = _key_groups(table, self.key_columns, self.max_parallelism)
        counts = np.bincount(groups)
        present = np.flatnonzero(counts)
        order = np.argsort(groups, kind="stable") if len(present) > 1 else None
        return ArrangedRows(
            table, order, tuple(zip(present.tolist(), counts[present].tolist(), strict=True))
        )


class TaskKeyedRows:
    """Implements `firesteel.operator.KeyedRows` for one name."""

    def __init__(
        self,
        name: str,
        key_columns: Sequence[str],
        meaning: Mapping[str, str],
        columns: Mapping[str, str],
        max_parallelism: int,
        key_groups: KeyGroupRange,
        memory: SlotColumnMemory,
    ) -> None:
        """`key_groups` are the subtask's. `memory` holds the rows, if the operator uses it."""
        self._name = name
        self._key_columns = tuple(key_columns)
        self.description = StateDescription(
            kind=StateKind.ROWS,
            meaning={"key": ", ".join(key_columns), **meaning},
            columns=dict(columns),
        )
        self._max_parallelism = max_parallelism
        self._key_groups = key_groups
        self._memory = memory
        self._warned_bytes = memory.budget_bytes
        self._restored: list[RowsSlice] = []
        self._make: MakeTable | None = None

    def restored(self) -> pa.Table | None:
        """Returns this subtask's rows. Raises FiresteelError if they do not fit the program, and
        StorageError for rows of other key groups than they are stored under.
        """
        restored, self._restored = self._restored, []
        tables = [table for rows in restored if (table := self._as_now(rows)).num_rows]
        return pa.concat_tables(tables) if tables else None

    def _as_now(self, rows: RowsSlice) -> pa.Table:
        """Returns this subtask's rows with the columns of the current program."""
        table = rows.table
        before = StateDescription.from_json((table.schema.metadata or {})[_DESCRIPTION].decode())
        if problem := changed_state(before, self.description):
            raise FiresteelError(
                f"the restored {self._name} do not fit the program: {problem}. Give the"
                " operator a new uid to start without them"
            )
        table = table.replace_schema_metadata(None)
        if rows.key_groups is not None and not self._key_groups.covers(rows.key_groups):
            table = self._own(table, rows.key_groups)
        if before.columns == self.description.columns:
            return table
        named = {text: name for name, text in before.columns.items()}
        chosen: list[tuple[str, str]] = []  # the current name, and the name in the table
        for name in table.column_names:
            if name not in before.columns:
                chosen.append((name, name))
            elif name == next(iter(before.columns)):
                chosen += [(now, named[text]) for now, text in self.description.columns.items()]
        return table.select([was for _, was in chosen]).rename_columns([now for now, _ in chosen])

    def _own(self, table: pa.Table, stored: KeyGroupRange) -> pa.Table:
        groups = _key_groups(table, self._key_columns, self._max_parallelism)
        if not stored.first <= int(groups.min()) <= int(groups.max()) < stored.end:
            raise StorageError(
                f"the restored {self._name} are stored under the key groups"
                f" {stored.first} to {stored.end - 1}, but contain rows of the key groups"
                f" {groups.min()} to {groups.max()}"
            )
        own = (groups >= self._key_groups.first) & (groups < self._key_groups.end)
        return self._memory.kept_table(table.filter(pa.array(own)))

    def keep(self, make: MakeTable) -> None:
        self._make = make

    def restore(self, rows: list[RowsSlice]) -> None:
        self._restored = rows

    def snapshot(self) -> RowsSnapshot | None:
        """Returns a snapshot of the rows passed to `keep` since the last one."""
        make, self._make = self._make, None
        if make is None:
            return None
        return RowsSnapshot(
            make,
            self._key_columns,
            self.description,
            self._max_parallelism,
            self._key_groups,
            self._made,
        )

    def _made(self, size_bytes: int) -> None:
        if self._warned_bytes is None or size_bytes <= self._warned_bytes:
            return
        if self._memory.in_files_bytes:
            return
        _log.warning(
            "state in columns is larger than the slot's managed memory, and this operator keeps"
            " it in memory even with state.backend.type: rocksdb; give slots more"
            " (taskmanager.memory.process.size), or the job a higher parallelism",
            state=self._name,
            size_bytes=size_bytes,
            managed_bytes=self._memory.budget_bytes,
        )
        self._warned_bytes = 2 * size_bytes  # the next warning is due when it has doubled


def _key_groups(
    table: pa.Table, key_columns: Sequence[str], max_parallelism: int
) -> npt.NDArray[np.unsignedinteger]:
    """Returns the key group of each row."""
    # The narrowest type, because numpy sorts 16-bit words by radix, in linear time.
    narrow = np.uint16 if max_parallelism <= 2**16 else np.uint32
    nowhere = np.zeros(table.num_rows, narrow)
    if not key_columns:
        return nowhere  # one subtask owns all rows
    keys = table.select([column_index(table.schema, name) for name in key_columns])
    try:
        hashes = [hash_columns(batch.columns) for batch in keys.to_batches(HASHED_ROWS)]
    except UnsupportedKey:  # the exchange routes such keys to a single subtask
        return nowhere
    groups = [(each % np.uint32(max_parallelism)).astype(narrow) for each in hashes]
    return np.concatenate(groups) if groups else nowhere
