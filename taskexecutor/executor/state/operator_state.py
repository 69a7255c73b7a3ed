"""The state of one operator's subtask, as passed to `initialize_state`: its keyed backend and its
operator state.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from taskexecutor.executor.state.keyed import KeyedState, KeyedStateEntry, KeyedStateSnapshot


@dataclass(frozen=True, slots=True, kw_only=True)
class RestoredOperatorState:
    """What a subtask restores, already redistributed to its parallelism."""

    keyed: Iterable[KeyedStateEntry] = ()
    lists: dict[str, list[Any]] = field(default_factory=dict)  # this subtask's share
    union_lists: dict[str, list[Any]] = field(default_factory=dict)  # every subtask's, concatenated
    broadcasts: dict[str, dict[Any, Any]] = field(default_factory=dict)
    finished: bool = False  # all subtasks of the operator had finished


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorStateSnapshot:
    """Operator state is small and copied; keyed state is not copied."""

    keyed: KeyedStateSnapshot
    lists: dict[str, list[Any]]
    union_lists: dict[str, list[Any]]
    broadcasts: dict[str, dict[Any, Any]]
    # All subtasks of the operator had finished before this attempt: once finished, for good.
    finished: bool = False


class TaskOperatorState:
    """The `firesteel.operator.OperatorState` of one operator."""

    def __init__(self, keyed: KeyedState, restored: RestoredOperatorState | None) -> None:
        self._keyed = keyed
        self._restored = restored is not None
        self.finished_before = restored is not None and restored.finished
        state = restored or RestoredOperatorState()
        if restored is not None:
            keyed.restore(restored.keyed)
        self._lists = {name: list(items) for name, items in state.lists.items()}
        self._union_lists = {name: list(items) for name, items in state.union_lists.items()}
        self._broadcasts = {name: dict(items) for name, items in state.broadcasts.items()}

    @property
    def restored(self) -> bool:
        return self._restored

    @property
    def keyed(self) -> KeyedState:
        return self._keyed

    def list_state(self, name: str) -> list[Any]:
        return self._lists.setdefault(name, [])

    def union_list_state(self, name: str) -> list[Any]:
        return self._union_lists.setdefault(name, [])

    def broadcast_state(self, name: str) -> dict[Any, Any]:
        return self._broadcasts.setdefault(name, {})

    def snapshot(self) -> OperatorStateSnapshot:
        return OperatorStateSnapshot(
            keyed=self._keyed.snapshot(),
            lists=copy.deepcopy(self._lists),
            union_lists=copy.deepcopy(self._union_lists),
            broadcasts=copy.deepcopy(self._broadcasts),
            finished=self.finished_before,
        )

    def close(self) -> None:
        self._keyed.close()
