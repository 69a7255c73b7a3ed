"""Decides which operators of a chain become one operator of the task: neighbours that run on Spark
form one Catalyst plan, also after an operator that applies a function to all rows; others stay
separate.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from firesteel.common.job_graph import JobEdge, JobGraph, JobVertex

# The kind of an operator that waits for all rows and then passes them to Spark together.
_OF_ALL_ROWS = "Apply"


def group_operators(
    vertex: JobVertex, in_edges: Sequence[JobEdge], out_edges: Sequence[JobEdge]
) -> list[tuple[int, ...]]:
    """Groups a vertex's operators, by index, into operators of the task, in topological order.

    A group of several is a maximal linear run: each member runs on Spark and has one input with one
    producer, and its predecessor has no other consumer, in the chain or outside. The first member
    may wait for all rows.
    """
    operators = vertex.operators
    consumers = [chained_consumers(vertex, index) for index in range(len(operators))]
    fed_by_edges = {edge.target_operator for edge in in_edges}
    # A side output may leave from the middle of a run; only a consumer of the main output ends the
    # run.
    leaves_task = {edge.source_operator for edge in out_edges if not edge.side_output_tag}

    def continues(producer: int, consumer: int) -> bool:
        return (
            (operators[producer].runs_on_spark or operators[producer].kind == _OF_ALL_ROWS)
            and operators[consumer].runs_on_spark
            and operators[consumer].inputs == ((producer,),)
            and len(consumers[producer]) == 1
            and producer not in leaves_task
            and consumer not in fed_by_edges
        )

    groups: list[tuple[int, ...]] = []
    group_of: dict[int, int] = {}
    for index, operator in enumerate(operators):
        producers = [producer for inputs in operator.inputs for producer in inputs]
        if len(producers) == 1 and continues(producers[0], index):
            position = group_of[producers[0]]
            groups[position] = (*groups[position], index)
        else:
            position = len(groups)
            groups.append((index,))
        group_of[index] = position
    # Only the last member has consumers outside its group, so this order is topological.
    return sorted(groups, key=lambda group: group[-1])


class OperatorInput(NamedTuple):
    operator: int  # index in the vertex
    input_index: int


def chained_consumers(vertex: JobVertex, producer: int) -> list[OperatorInput]:
    """Returns the inputs in the chain that an operator feeds."""
    return [
        OperatorInput(consumer, input_index)
        for consumer, operator in enumerate(vertex.operators)
        for input_index, producers in enumerate(operator.inputs)
        for fed_by in producers
        if fed_by == producer
    ]


def fused(graph: JobGraph, vertex: JobVertex) -> list[tuple[int, ...]]:
    """Returns the groups of `group_operators` for a vertex of a complete graph."""
    return group_operators(
        vertex,
        [edge for edge in graph.edges if edge.target_vertex_id == vertex.vertex_id],
        [edge for edge in graph.edges if edge.source_vertex_id == vertex.vertex_id],
    )
