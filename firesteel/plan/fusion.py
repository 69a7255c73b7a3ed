"""Decides which operators of a chain become one operator of the task: neighbours that run on Spark
form one Catalyst plan, also after an operator that applies a function to all rows; others stay
separate.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from firesteel.common.ids import VertexId
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
    consumers = chained_consumers(vertex)
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

    groups: list[list[int]] = []
    group_of: dict[int, int] = {}
    for index, operator in enumerate(operators):
        producers = [producer for inputs in operator.inputs for producer in inputs]
        if len(producers) == 1 and continues(producers[0], index):
            position = group_of[producers[0]]
            groups[position].append(index)
        else:
            position = len(groups)
            groups.append([index])
        group_of[index] = position
    # Only the last member has consumers outside its group, so this order is topological.
    return sorted(map(tuple, groups), key=lambda group: group[-1])


class OperatorInput(NamedTuple):
    operator: int  # index in the vertex
    input_index: int


def chained_consumers(vertex: JobVertex) -> list[list[OperatorInput]]:
    """Returns, for each operator, the inputs in the chain that it feeds."""
    consumers: list[list[OperatorInput]] = [[] for _ in vertex.operators]
    for consumer, operator in enumerate(vertex.operators):
        for input_index, producers in enumerate(operator.inputs):
            for producer in producers:
                consumers[producer].append(OperatorInput(consumer, input_index))
    return consumers


def fused(graph: JobGraph) -> dict[VertexId, list[tuple[int, ...]]]:
    """Returns the groups of `group_operators` for each vertex of a complete graph."""
    in_edges: dict[VertexId, list[JobEdge]] = {vertex.vertex_id: [] for vertex in graph.vertices}
    out_edges: dict[VertexId, list[JobEdge]] = {vertex_id: [] for vertex_id in in_edges}
    for edge in graph.edges:
        in_edges[edge.target_vertex_id].append(edge)
        out_edges[edge.source_vertex_id].append(edge)
    return {
        vertex.vertex_id: group_operators(
            vertex, in_edges[vertex.vertex_id], out_edges[vertex.vertex_id]
        )
        for vertex in graph.vertices
    }
