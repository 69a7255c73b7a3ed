"""Decides whether a program can start from a checkpoint. Operators are matched by their ids, which
come from their uids, or otherwise from their positions in the program.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Sequence, Set

from firesteel.common.checkpoints.metadata import CheckpointedOperator
from firesteel.common.ids import ResultId
from firesteel.common.job_graph import JobGraph, JobVertex, Operator, Partitioner
from firesteel.errors import FiresteelError

# Starts the uids of operators whose state is dropped if the next program lacks them.
DISPOSABLE = "disposable "
_EPOCH = datetime.datetime(1970, 1, 1)
_OWNED_BY_SUBTASKS = (Partitioner.FORWARD, Partitioner.BROADCAST)


class CannotRestore(FiresteelError):
    """The job and the checkpoint do not match; the message names what differs."""


def check_fits(
    graph: JobGraph,
    operators: Sequence[CheckpointedOperator],
    *,
    allow_non_restored_state: bool = False,
) -> None:
    """Checks that the job can start from the checkpoint. Raises CannotRestore."""
    present = {
        operator.operator_id: (operator, vertex)
        for vertex in graph.vertices
        for operator in vertex.operators
    }
    left = [
        each
        for each in operators
        if each.has_state
        and each.operator_id not in present
        and not each.uid.startswith(DISPOSABLE)
    ]
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
        if operator.operator_id not in present:
            continue
        now, vertex = present[operator.operator_id]
        if operator.has_state and not operator.uid and now.name != operator.name:
            raise CannotRestore(
                now.says(
                    f"operator {now.name!r} is where {operator.name!r} was, whose state the"
                    " checkpoint has. Without uids, Firesteel cannot know whether the program has"
                    " changed: give operators with state a uid, and take another savepoint"
                )
            )
        if operator.keyed:
            _check_max_parallelism(operator, vertex)
        _check_event_time(operator, vertex)
        _check_in_flight(operator, vertex, {edge.result_id for edge in graph.edges})


def _check_max_parallelism(operator: CheckpointedOperator, vertex: JobVertex) -> None:
    if vertex.max_parallelism != operator.max_parallelism:
        raise CannotRestore(
            f"operator {operator} has max parallelism {vertex.max_parallelism} and was"
            f" checkpointed with {operator.max_parallelism}: its keyed state is cut into that many"
            f" key groups, for good. Set max_parallelism={operator.max_parallelism}"
        )


def event_times(operator: CheckpointedOperator) -> list[int]:
    """Returns the event times of the operator's subtasks with state, in ascending order; if none
    has state, the latest of all.
    """
    parts = operator.subtasks.values()
    times_us = {(part.watermark_us, part.empty) for part in parts if part.watermark_us is not None}
    with_state = sorted(time_us for time_us, empty in times_us if not empty)
    return with_state or sorted(time_us for time_us, _ in times_us)[-1:]


def _check_event_time(operator: CheckpointedOperator, vertex: JobVertex) -> None:
    """Refuses a new parallelism if the subtasks had different event times: which windows have
    fired, and which rows are late, would differ between the keys of a merged subtask.
    """
    if vertex.parallelism == operator.parallelism:
        return
    if len(reached := event_times(operator)) > 1:
        raise CannotRestore(
            f"the subtasks of operator {operator} had reached different event times when it was"
            f" checkpointed ({_shown_time(reached[0])} to {_shown_time(reached[-1])}), so it has to"
            f" keep the parallelism {operator.parallelism}; the program has {vertex.parallelism}."
            " A savepoint that is taken while no source is idle can be restored with any, an"
            " unaligned checkpoint often not"
        )


def _shown_time(time_us: int) -> str:
    try:
        at = _EPOCH + datetime.timedelta(microseconds=time_us)
    except OverflowError:
        return f"{time_us} us"
    return at.isoformat(sep=" ", timespec="milliseconds")


def _check_in_flight(
    operator: CheckpointedOperator, vertex: JobVertex, results: Set[ResultId]
) -> None:
    """Checks that the rows in flight of an unaligned checkpoint still have an exchange to take."""
    handles = [handle for part in operator.subtasks.values() for handle in part.in_flight]
    if any(handle.result_id not in results for handle in handles):
        raise CannotRestore(
            f"the checkpoint is unaligned, and has rows on their way to operator {operator} by an"
            " exchange that the program no longer has: restore a savepoint, which has none"
        )
    stay = [handle.partitioner for handle in handles if handle.partitioner in _OWNED_BY_SUBTASKS]
    if stay and vertex.parallelism != operator.parallelism:
        raise CannotRestore(
            f"operator {operator} has parallelism {vertex.parallelism} and was checkpointed with"
            f" {operator.parallelism}, by an unaligned checkpoint with rows on their way to it:"
            f" where the rows of a {stay[0].name.lower()} exchange belong, nothing but their"
            f" subtask says. Run it with parallelism {operator.parallelism}, or restore a"
            " savepoint, which has no rows on their way"
        )


def _named(operator: Operator) -> str:
    uid = f"uid {operator.uid}" if operator.uid else "without a uid"
    return operator.says(f"{operator.name!r} ({uid})")


def _enumerated(names: Iterable[str], limit: int = 5) -> str:
    all_names = list(names)
    shown = ", ".join(all_names[:limit]) or "none"
    return f"{shown} and {len(all_names) - limit} more" if all_names[limit:] else shown
