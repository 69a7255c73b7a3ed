"""Checks whether a program's operators, as the analysis describes them, can restore their states
from a checkpoint.
"""

from __future__ import annotations

from collections.abc import Mapping

from firesteel.common.checkpoints.descriptions import StateDescriptions
from firesteel.common.checkpoints.evolution import changed_states
from firesteel.common.ids import OperatorId
from firesteel.common.job_graph import JobGraph


def changed_operators(
    job: JobGraph,
    before: Mapping[OperatorId, StateDescriptions],
    now: Mapping[OperatorId, StateDescriptions],
) -> str:
    """Returns the problem of the first operator that cannot; empty if all can. Operators whose
    states are unknown until they run are missing in `now`.
    """
    for vertex in job.vertices:
        for operator in vertex.operators:
            was, declared = before.get(operator.operator_id), now.get(operator.operator_id)
            if was and declared is not None and (problem := changed_states(was, declared)):
                uid = f"uid {operator.uid}" if operator.uid else "without a uid"
                return operator.says(
                    f"operator {operator.name!r} ({uid}) does not fit the checkpoint: {problem}."
                    " Or give it a different uid and discard its state (--allow-non-restored-state)"
                )
    return ""
