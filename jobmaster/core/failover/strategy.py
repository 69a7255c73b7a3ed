"""jobmanager.execution.failover-strategy: which tasks restart when some have failed."""

from __future__ import annotations

from enum import Enum

from firesteel.common.config import options
from firesteel.common.job_graph import JobGraph
from jobmaster.core.execution_graph import InvalidJobGraph


class Failover(Enum):
    REGION = "region"
    FULL = "full"
    INDIVIDUAL = "individual"


def check_individual(job_graph: JobGraph, *, takes_checkpoints: bool) -> None:
    """Raises InvalidJobGraph unless each task can restart without the others."""
    key = f"{options.FAILOVER_STRATEGY.key}: individual"
    for edge in job_graph.edges:
        source, target = (
            job_graph.vertex(edge.source_vertex_id),
            job_graph.vertex(edge.target_vertex_id),
        )
        operator = target.operators[edge.target_operator]
        raise InvalidJobGraph(
            operator.says(
                f"{key} restarts tasks without those that they exchange data with, and"
                f" {operator.name!r} reads the output of"
                f" {source.operators[edge.source_operator].name!r}. Use region"
            )
        )
    if takes_checkpoints:
        raise InvalidJobGraph(
            f"{key} restarts a task from the start, and {options.CHECKPOINT_INTERVAL.key} is"
            " set: a checkpoint is restored by all subtasks of an operator. Use region"
        )
    for vertex in job_graph.vertices:
        for operator in vertex.operators:
            if operator.coordinator_kind == "collect":
                raise InvalidJobGraph(
                    operator.says(
                        f"{key} restarts a subtask from the start, and the rows that"
                        f" {operator.name!r} collects are replaced together. Use region"
                    )
                )
