"""Renders a JobGraph before it runs, for `firesteel info`."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import RenderableType
from rich.text import Text
from rich.tree import Tree

from firesteel.client.render.tables import (
    one_plan_text,
    operator_text,
)
from firesteel.common.ids import VertexId
from firesteel.common.job_graph import JobEdge, JobGraph, JobVertex
from firesteel.common.units import counted
from firesteel.plan.fusion import fused


def plan(graph: JobGraph) -> Iterator[RenderableType]:
    """Renders a JobGraph: one branch per vertex, with its chain and its inputs."""
    tasks = sum(vertex.parallelism for vertex in graph.vertices)
    counts = (
        counted(len(graph.vertices), "vertex", "vertices"),
        counted(tasks, "task"),
        f"{counted(_slots(graph), 'slot')} needed",
    )
    yield Text.assemble("Job ", (graph.name, "bold"), f": {', '.join(counts)}")
    names = {
        vertex.vertex_id: f"[{number}] {vertex.name}"
        for number, vertex in enumerate(graph.vertices, 1)
    }
    groups = fused(graph)
    in_edges: dict[VertexId, list[JobEdge]] = {vertex.vertex_id: [] for vertex in graph.vertices}
    for edge in graph.edges:
        in_edges[edge.target_vertex_id].append(edge)
    for vertex in graph.vertices:
        tree = Tree(Text(names[vertex.vertex_id], style="bold"), guide_style="dim")
        tree.add(_placement(vertex))
        chain = tree.add(Text(_chain(vertex, len(groups[vertex.vertex_id]))))
        for group in groups[vertex.vertex_id]:
            branch = (
                chain.add(Text(one_plan_text(len(group)), style="cyan"))
                if 1 < len(group) < len(vertex.operators)
                else chain
            )
            for operator in (vertex.operators[index] for index in group):
                branch.add(
                    operator_text(
                        operator.name, operator.kind, operator.uid, operator.runs_on_spark
                    )
                )
        for edge in in_edges[vertex.vertex_id]:
            how = edge.partitioner.name + (
                f" by {', '.join(edge.key_columns)}" if edge.key_columns else ""
            )
            kind = f"{edge.pattern.name}, {edge.result_type.name.lower()}"
            tag = f", side output {edge.side_output_tag}" if edge.side_output_tag else ""
            tree.add(Text(f"from {names[edge.source_vertex_id]}: {how} ({kind}{tag})"))
        yield tree


def _chain(vertex: JobVertex, plans: int) -> str:
    count = len(vertex.operators)
    if count == 1:
        return "one operator"
    return f"chain of {count} operators" + (", one plan on Spark" if plans == 1 else "")


def _placement(vertex: JobVertex) -> Text:
    parts = [f"parallelism {vertex.parallelism} (max {vertex.max_parallelism})"]
    parts.append(f"slot sharing group {vertex.slot_sharing_group}")
    if vertex.co_location_group:
        parts.append(f"co-location group {vertex.co_location_group}")
    if vertex.resource_group:
        parts.append(f"resource group {vertex.resource_group}")
    if not vertex.resources.unknown:
        parts.append(str(vertex.resources))
    return Text(", ".join(parts))


def _slots(graph: JobGraph) -> int:
    """Returns the number of slots: a slot sharing group needs as many as its highest
    parallelism.
    """
    needed: dict[str, int] = {}
    for vertex in graph.vertices:
        needed[vertex.slot_sharing_group] = max(
            needed.get(vertex.slot_sharing_group, 0), vertex.parallelism
        )
    return sum(needed.values())
