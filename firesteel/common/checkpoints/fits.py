"""Whether a program can begin with the state of a checkpoint. Operators are matched by their ids:
those of their uids, or else of their places in the program.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from firesteel.common.checkpoints.metadata import CheckpointedOperator
from firesteel.common.job_graph import JobGraph, JobVertex, Operator
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
        operator.operator_id: (operator, vertex)
        for vertex in graph.vertices
        for operator in vertex.operators
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
        if operator.operator_id not in present:
            continue
        now, vertex = present[operator.operator_id]
        if operator.has_state and not operator.uid and now.name != operator.name:
            raise CannotRestore(
                now.says(
                    f"operator {now.name!r} is where {operator.name!r} was, whose state the"
                    " checkpoint has. Without uids, it cannot be told whether the program has"
                    " changed: give operators with state a uid, and take another savepoint"
                )
            )
        if operator.keyed:
            _check_max_parallelism(operator, vertex)


def _check_max_parallelism(operator: CheckpointedOperator, vertex: JobVertex) -> None:
    if vertex.max_parallelism != operator.max_parallelism:
        raise CannotRestore(
            f"operator {operator} has max parallelism {vertex.max_parallelism} and was"
            f" checkpointed with {operator.max_parallelism}: its keyed state is cut into that many"
            f" key groups, for good. Set max_parallelism={operator.max_parallelism}"
        )


def _named(operator: Operator) -> str:
    uid = f"uid {operator.uid}" if operator.uid else "without a uid"
    return operator.says(f"{operator.name!r} ({uid})")


def _enumerated(names: Iterable[str], limit: int = 5) -> str:
    found = list(names)
    shown = ", ".join(found[:limit]) or "none"
    return f"{shown} and {len(found) - limit} more" if found[limit:] else shown
