"""Lists, union lists and broadcast states, which are part of the metadata."""

from __future__ import annotations

import pickle
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from firesteel.common.checkpoints.descriptions import (
    DECLARED,
    StateDescription,
    StateDescriptions,
)
from firesteel.common.checkpoints.metadata import CheckpointedOperator
from firesteel.savepoint.tables import ValuesTable, cannot_import


def operator_states(operator: CheckpointedOperator) -> dict[str, ValuesTable]:
    """Returns the operator's states by name."""
    tables: dict[str, ValuesTable] = {}
    parts = sorted(operator.subtasks.items())
    lists = [(subtask, part.lists) for subtask, part in parts]
    union_lists = [(subtask, part.union_lists) for subtask, part in parts]
    for kind, states in (("operator list", lists), ("union list", union_lists)):
        for name in sorted({name for _, of_part in states for name in of_part}):
            items = [(n, item) for n, of_part in states for item in of_part.get(name, ())]
            tables[name] = _Items(kind, f"the state {name!r} of {operator}", items)
    for name in sorted({name for _, part in parts for name in part.broadcasts} - {DECLARED}):
        content = next(p.broadcasts[name] for _, p in parts if name in p.broadcasts)
        tables[name] = _Broadcast("broadcast", f"the state {name!r} of {operator}", content)
    return tables


def declared_states(operator: CheckpointedOperator) -> StateDescriptions:
    """Returns the keyed states that tasks have declared, by name."""
    for part in operator.subtasks.values():
        if (content := part.broadcasts.get(DECLARED)) is not None:
            described = _loaded(f"the states of {operator}", content)
            return {name: StateDescription.from_json(text) for name, text in described.items()}
    return {}


@dataclass(frozen=True)
class _Items(ValuesTable):
    kind: str
    what: str
    items: Sequence[tuple[int, bytes]]  # with the subtask

    def columns(self) -> Mapping[str, Sequence[Any]]:
        return {
            "subtask": [subtask for subtask, _ in self.items],
            "value": [_loaded(self.what, item) for _, item in self.items],
        }


@dataclass(frozen=True)
class _Broadcast(ValuesTable):
    """A state that is equal in all subtasks."""

    kind: str
    what: str
    content: bytes

    def columns(self) -> Mapping[str, Sequence[Any]]:
        items = _loaded(self.what, self.content)
        return {"key": list(items), "value": list(items.values())}


def _loaded(what: str, content: bytes) -> Any:
    try:
        return pickle.loads(content)
    except (ImportError, AttributeError) as error:
        raise cannot_import(what, error) from error
