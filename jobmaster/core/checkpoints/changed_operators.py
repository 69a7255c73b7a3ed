"""Whether the operators of a program, as the analysis finds them, can go on with their states in a
checkpoint.
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
    """What is wrong with the first one that cannot; empty: all can. Those whose states are not
    known before they run are missing in `now`.
    """
    for vertex in job.vertices:
        for operator in vertex.operators:
            was, declared = before.get(operator.operator_id), now.get(operator.operator_id)
            if was and declared is not None and (problem := changed_states(was, declared)):
                uid = f"uid {operator.uid}" if operator.uid else "without a uid"
                return operator.says(
                    f"operator {operator.name!r} ({uid}) does not fit the checkpoint: {problem}."
                    " Or give it another uid, and its state up (--allow-non-restored-state)"
                )
    return ""
