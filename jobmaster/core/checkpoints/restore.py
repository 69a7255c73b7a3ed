"""Assigns an operator's state in a checkpoint to subtasks, for its parallelism (spec 004, spec 001
"Operator state").
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import assert_never

from firesteel.common.checkpoints.fits import event_times
from firesteel.common.checkpoints.metadata import CheckpointedOperator
from firesteel.common.checkpoints.state import InFlight, Items, KeyedHandle, OperatorSnapshot
from firesteel.common.job_graph import Partitioner
from firesteel.common.key_groups import KeyGroupRange, key_group_range


def assign(operator: CheckpointedOperator, parallelism: int) -> list[OperatorSnapshot]:
    """Returns the state that each subtask restores at the operator's current parallelism (at most
    its max parallelism).

    Keyed state follows its keys. Lists stay where they were; if the parallelism changed, they are
    distributed evenly in order. Every subtask gets a union list as a whole. In-flight batches also
    stay where they were. If the parallelism changed, every subtask reads all batches that are
    partitioned by keys and takes its own rows; where any subtask may take any row, batches are
    distributed; elsewhere the parallelism must not change (`check_fits`).

    A broadcast state stays where it was: an unaligned barrier may overtake a broadcast row on its
    way to one subtask but not on its way to another. If the parallelism changed, no broadcast row
    is in flight and all subtasks have the same state, so every subtask gets any copy of it, as a
    subtask does that had finished. The same applies to their event time.
    """
    snapshots = [operator.subtasks[subtask] for subtask in sorted(operator.subtasks)]
    handles = [handle for snapshot in snapshots for handle in snapshot.keyed]
    inline = [handle for snapshot in snapshots for handle in snapshot.inline]
    databases = [database for snapshot in snapshots for database in snapshot.databases]
    ranges = [
        key_group_range(subtask, parallelism, operator.max_parallelism)
        for subtask in range(parallelism)
    ]
    unchanged = parallelism == operator.parallelism
    nothing = OperatorSnapshot(operator_id=operator.operator_id)
    lists = _by_name([snapshot.lists for snapshot in snapshots])
    dealt = {} if unchanged else {name: _dealt(v, parallelism) for name, v in lists.items()}
    union_lists = {
        name: tuple(item for part in parts for item in part)
        for name, parts in _by_name([snapshot.union_lists for snapshot in snapshots]).items()
    }
    # If there are several, `check_fits` has refused a different parallelism.
    common_us = next(iter(event_times(operator)), None)
    in_flight = (
        [operator.subtasks.get(subtask, nothing).in_flight for subtask in range(parallelism)]
        if unchanged
        else _redistributed(operator, snapshots, parallelism)
    )
    broadcasts: dict[str, bytes] = {}
    for snapshot in snapshots:
        for name, value in snapshot.broadcasts.items():
            broadcasts.setdefault(name, value)
    return [
        OperatorSnapshot(
            operator_id=operator.operator_id,
            keyed=_cut(handles, own),
            inline=tuple(handle.of(own) for handle in inline if handle.key_groups.overlaps(own)),
            databases=tuple(
                database for database in databases if database.key_groups.overlaps(own)
            ),
            lists=(
                operator.subtasks.get(subtask, nothing).lists
                if unchanged
                else {name: parts[subtask] for name, parts in dealt.items() if parts[subtask]}
            ),
            union_lists=union_lists,
            broadcasts=(
                operator.subtasks[subtask].broadcasts
                if unchanged and subtask in operator.subtasks
                else broadcasts
            ),
            in_flight=in_flight[subtask],
            states=operator.states,
            watermark_us=(
                operator.subtasks.get(subtask, nothing).watermark_us if unchanged else common_us
            ),
            finished=operator.finished,
        )
        for subtask, own in enumerate(ranges)
    ]


def _cut(handles: Sequence[KeyedHandle], key_groups: KeyGroupRange) -> tuple[KeyedHandle, ...]:
    cut = []
    for handle in handles:
        slices = tuple(part for part in handle.slices if part.key_group in key_groups)
        tables = tuple(part for part in handle.tables if part.key_groups.overlaps(key_groups))
        if slices or tables:
            cut.append(replace(handle, slices=slices, tables=tables))
    return tuple(cut)


def _redistributed(
    operator: CheckpointedOperator, snapshots: Sequence[OperatorSnapshot], parallelism: int
) -> list[tuple[InFlight, ...]]:
    """Returns each subtask's files of in-flight batches."""
    found: list[tuple[InFlight, ...]] = [()] * parallelism
    for n, handle in enumerate(handle for snapshot in snapshots for handle in snapshot.in_flight):
        match handle.partitioner:
            case Partitioner.HASH:
                found = [(*handles, handle) for handles in found]
            case Partitioner.REBALANCE | Partitioner.RESCALE:
                found[n % parallelism] = (*found[n % parallelism], handle)
            case Partitioner.FORWARD | Partitioner.BROADCAST | Partitioner.WATERMARKS:
                raise ValueError(f"{handle} cannot move, and check_fits has not refused it")
            case _:
                assert_never(handle.partitioner)
    return found


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
