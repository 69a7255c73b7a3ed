"""The state of one operator's subtask, as passed to `initialize_state`: its keyed backend and its
operator state.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from firesteel.common.checkpoints.descriptions import StateDescription, StateDescriptions
from firesteel.common.checkpoints.key_group_content import KeyedStateEntry, RowsSlice
from taskexecutor.executor.column_memory import SlotColumnMemory
from taskexecutor.executor.state.in_flight import RestoredInFlight
from taskexecutor.executor.state.keyed import KeyedState, KeyedStateSnapshot, RestoredDatabase
from taskexecutor.executor.state.keyed_rows import RowsSnapshot, TaskKeyedRows


@dataclass(frozen=True, slots=True, kw_only=True)
class RestoredOperatorState:
    """The state that a subtask restores, already redistributed to its parallelism."""

    keyed: Iterable[KeyedStateEntry | RowsSlice] = ()
    databases: Sequence[RestoredDatabase] = ()
    in_flight: Sequence[RestoredInFlight] = ()  # batches for the operator's inputs
    lists: dict[str, list[Any]] = field(default_factory=dict)  # this subtask's share
    # of every subtask, concatenated
    union_lists: dict[str, list[Any]] = field(default_factory=dict)
    broadcasts: dict[str, dict[Any, Any]] = field(default_factory=dict)
    states: StateDescriptions = field(default_factory=dict)  # descriptions of keyed states
    watermark_us: int | None = None  # the operator's event time, if it keeps it
    finished: bool = False  # all subtasks of the operator had finished


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorStateSnapshot:
    """A snapshot of an operator's state. Operator state is small and copied; keyed state is not
    copied.
    """

    keyed: KeyedStateSnapshot
    rows: Mapping[str, RowsSnapshot]
    lists: dict[str, list[Any]]
    union_lists: dict[str, list[Any]]
    broadcasts: dict[str, dict[Any, Any]]
    watermark_us: int | None = None
    # All subtasks of the operator had finished before this attempt. Never reset.
    finished: bool = False

    @property
    def small(self) -> bool:
        """Whether it only contains operator state, which the task's thread has already copied."""
        return self.keyed.empty and not self.rows


class TaskOperatorState:
    """Implements `firesteel.operator.OperatorState` for one operator."""

    def __init__(
        self, keyed: KeyedState, restored: RestoredOperatorState | None, *, max_parallelism: int
    ) -> None:
        self._keyed = keyed
        self._restored = restored is not None
        self._max_parallelism = max_parallelism
        self.finished_before = restored is not None and restored.finished
        self._rows: dict[str, TaskKeyedRows] = {}
        self._restored_rows: dict[str, list[RowsSlice]] = {}
        state = restored or RestoredOperatorState()
        self.restored_states = state.states
        self.restored_watermark_us = state.watermark_us
        if restored is not None:
            keyed.restore(self._entries(restored.keyed), restored.databases)
        self._lists = {name: list(items) for name, items in state.lists.items()}
        self._union_lists = {name: list(items) for name, items in state.union_lists.items()}
        self._broadcasts = {name: dict(items) for name, items in state.broadcasts.items()}

    def _entries(
        self, elements: Iterable[KeyedStateEntry | RowsSlice]
    ) -> Iterator[KeyedStateEntry]:
        """Yields the entries and sets rows aside, in files if memory is short."""
        for entry in elements:
            if isinstance(entry, RowsSlice):
                entry = replace(entry, table=self._keyed.columns.kept_table(entry.table))
                self._restored_rows.setdefault(entry.name, []).append(entry)
            else:
                yield entry

    @property
    def restored(self) -> bool:
        return self._restored

    @property
    def keyed(self) -> KeyedState:
        return self._keyed

    @property
    def columns(self) -> SlotColumnMemory:
        return self._keyed.columns

    def keyed_rows(
        self,
        name: str,
        key_columns: Sequence[str],
        meaning: Mapping[str, str] | None = None,
        columns: Mapping[str, str] | None = None,
    ) -> TaskKeyedRows:
        rows = self._rows.get(name)
        if rows is None:
            rows = TaskKeyedRows(
                name,
                key_columns,
                meaning or {},
                columns or {},
                self._max_parallelism,
                self._keyed.key_groups,
                self._keyed.columns,
            )
            self._rows[name] = rows
            rows.restore(self._restored_rows.pop(name, []))
        return rows

    @property
    def described_rows(self) -> dict[str, StateDescription]:
        """Returns descriptions of the rows that `keyed_rows` was called for."""
        return {name: rows.description for name, rows in self._rows.items()}

    @property
    def not_taken(self) -> list[str]:
        """Returns the names of restored rows that `keyed_rows` was not called for."""
        return sorted(self._restored_rows)

    def list_state(self, name: str) -> list[Any]:
        return self._lists.setdefault(name, [])

    def union_list_state(self, name: str) -> list[Any]:
        return self._union_lists.setdefault(name, [])

    def broadcast_state(self, name: str) -> dict[Any, Any]:
        return self._broadcasts.setdefault(name, {})

    def snapshot(self, watermark_us: int | None = None) -> OperatorStateSnapshot:
        rows = {name: kept.snapshot() for name, kept in self._rows.items()}
        return OperatorStateSnapshot(
            keyed=self._keyed.snapshot(),
            rows={name: kept for name, kept in rows.items() if kept is not None},
            lists=copy.deepcopy(self._lists),
            union_lists=copy.deepcopy(self._union_lists),
            broadcasts=copy.deepcopy(self._broadcasts),
            watermark_us=watermark_us,
            finished=self.finished_before,
        )

    def close(self) -> None:
        self._keyed.close()
