"""Which subtask restores what: a checkpoint's state, matched with a graph's operators by their ids
and cut for their parallelism (spec 004, spec 001 "Operator state").
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from firesteel.common.checkpoints.metadata import CheckpointedOperator
from firesteel.common.checkpoints.state import Items, KeyedHandle, OperatorSnapshot
from firesteel.common.job_graph import JobGraph, JobVertex, Operator
from firesteel.common.key_groups import KeyGroupRange, key_group_range
from firesteel.errors import FiresteelError


class CannotRestore(FiresteelError):
    """The job and the checkpoint do not fit; the message names what differs."""


def check_fits(
    graph: JobGraph,
    operators: Sequence[CheckpointedOperator],
    *,
    allow_non_restored_state: bool = False,
) -> None:
    """Raises CannotRestore."""
    present = {
        operator.operator_id: vertex for vertex in graph.vertices for operator in vertex.operators
    }
    left = [o for o in operators if o.has_state and o.operator_id not in present]
    if left and not allow_non_restored_state:
        restored = {o.operator_id for o in operators}
        new = [o for v in graph.vertices for o in v.operators if o.operator_id not in restored]
        raise CannotRestore(
            f"the checkpoint has state of {_enumerated(map(str, left))}, which the program has not;"
            f" the program's operators without state are {_enumerated(map(_named, new))}."
            " Give operators a uid and keep it, or drop the state:"
            " --allow-non-restored-state"
        )
    for operator in operators:
        vertex = present.get(operator.operator_id)
        if vertex is not None and operator.keyed:
            _check_max_parallelism(operator, vertex)


def _check_max_parallelism(operator: CheckpointedOperator, vertex: JobVertex) -> None:
    if vertex.max_parallelism != operator.max_parallelism:
        raise CannotRestore(
            f"operator {operator} has max parallelism {vertex.max_parallelism} and was"
            f" checkpointed with {operator.max_parallelism}: its keyed state is cut into that many"
            f" key groups, for good. Set max_parallelism={operator.max_parallelism}"
        )


def assign(operator: CheckpointedOperator, parallelism: int) -> list[OperatorSnapshot]:
    """What each subtask restores, at the parallelism that the operator has now (at most its max
    parallelism).

    Keyed state goes where its keys go. Lists stay where they were, or, with another parallelism,
    are dealt out evenly in their order; a union list goes to everyone whole; of a broadcast state
    all subtasks had the same, so everyone gets any of them.
    """
    snapshots = [operator.subtasks[subtask] for subtask in sorted(operator.subtasks)]
    handles = [handle for snapshot in snapshots for handle in snapshot.keyed]
    unchanged = parallelism == operator.parallelism
    nothing = OperatorSnapshot(operator_id=operator.operator_id)
    lists = _by_name([snapshot.lists for snapshot in snapshots])
    dealt = {} if unchanged else {name: _dealt(v, parallelism) for name, v in lists.items()}
    union_lists = {
        name: tuple(item for part in parts for item in part)
        for name, parts in _by_name([snapshot.union_lists for snapshot in snapshots]).items()
    }
    broadcasts: dict[str, bytes] = {}
    for snapshot in snapshots:
        for name, value in snapshot.broadcasts.items():
            broadcasts.setdefault(name, value)
    return [
        OperatorSnapshot(
            operator_id=operator.operator_id,
            keyed=_cut(handles, key_group_range(subtask, parallelism, operator.max_parallelism)),
            lists=(
                operator.subtasks.get(subtask, nothing).lists
                if unchanged
                else {name: parts[subtask] for name, parts in dealt.items() if parts[subtask]}
            ),
            union_lists=union_lists,
            broadcasts=broadcasts,
            finished=operator.finished,
        )
        for subtask in range(parallelism)
    ]


def _cut(handles: Sequence[KeyedHandle], key_groups: KeyGroupRange) -> tuple[KeyedHandle, ...]:
    cut = []
    for handle in handles:
        slices = tuple(s for s in handle.slices if s.key_group in key_groups)
        if slices:
            cut.append(replace(handle, slices=slices))
    return tuple(cut)


def _by_name(states: Sequence[Mapping[str, Items]]) -> dict[str, list[Items]]:
    by_name: dict[str, list[Items]] = {}
    for state in states:
        for name, items in state.items():
            by_name.setdefault(name, []).append(items)
    return by_name


def _dealt(parts: Sequence[Items], parallelism: int) -> list[Items]:
    items = tuple(item for part in parts for item in part)
    bounds = [len(items) * n // parallelism for n in range(parallelism + 1)]
    return [items[first:end] for first, end in itertools.pairwise(bounds)]


def _named(operator: Operator) -> str:
    uid = f"uid {operator.uid}" if operator.uid else "without a uid"
    return operator.says(f"{operator.name!r} ({uid})")


def _enumerated(names: Iterable[str], limit: int = 5) -> str:
    found = list(names)
    shown = ", ".join(found[:limit]) or "none"
    return f"{shown} and {len(found) - limit} more" if found[limit:] else shown
