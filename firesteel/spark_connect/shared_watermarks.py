"""Gives the operators of a streaming query the watermarks of all its inputs.

As in Spark, a query has one watermark: the lowest of all that it assigns, or the highest, by
`spark.sql.streaming.multipleWatermarkPolicy`. Operators below a join or a union get those of the
other inputs through edges that carry no rows.
"""

from __future__ import annotations

from firesteel.common.job_graph import Partitioner
from firesteel.operators import EventTimeWatermarkSpec
from firesteel.plan.stream_graph import StreamEdge, StreamGraph, StreamNode


def share_watermarks(graph: StreamGraph) -> None:
    """Adds the edges to all operators with keys that have some of the watermarks, but not all."""
    assigned = [node for node in graph.nodes if _assigns(node)]
    above: dict[StreamNode, set[StreamNode]] = {}  # the watermarks that reach each node
    for node in graph.nodes:
        sources = [edge.source for edge in graph.in_edges(node)]
        above[node] = {each for source in sources for each in above[source]}
        above[node].update(filter(_assigns, sources))
    added = False
    for node in graph.nodes:
        keyed = any(edge.partitioner is Partitioner.HASH for edge in graph.in_edges(node))
        if not keyed or not above[node]:
            continue
        for other in assigned:
            if other not in above[node]:
                added = True
                graph.add_edge(
                    StreamEdge(
                        source=other,
                        target=node,
                        target_input=0,
                        partitioner=Partitioner.WATERMARKS,
                    )
                )
    if added:
        graph.sort()


def _assigns(node: StreamNode) -> bool:
    return isinstance(node.spec, EventTimeWatermarkSpec) and bool(node.spec.column)
