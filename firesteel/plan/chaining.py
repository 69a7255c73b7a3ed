"""Operator chaining: decides which operators run in one task (spec 004, "Tasks and Operator
Chains").

A chain is a DAG that may contain operators with one and with two inputs. An edge is chainable if it
is FORWARD, both ends agree in parallelism, max parallelism and groups, and neither end forbids it.
Chains grow along such edges, in topological order, as long as

1. every edge between two members of the chain is chainable (none of them needs the network),
2. no path leaves the chain and returns to it (the tasks of a job must also form a DAG), and
3. a chain with a source has no other source and no input from another task (a source task polls
   and has no input gates).
"""

from __future__ import annotations

from firesteel.common.job_graph import Partitioner
from firesteel.plan.stream_graph import Chaining, StreamEdge, StreamGraph, StreamNode

Chain = frozenset[StreamNode]


def chains(graph: StreamGraph, *, enabled: bool = True) -> list[list[StreamNode]]:
    """Groups the nodes of a resolved graph into chains, both in topological order."""
    chain_of: dict[StreamNode, Chain] = {node: frozenset({node}) for node in graph.nodes}
    if enabled:
        for node in graph.nodes:
            for edge in graph.in_edges(node):
                if chain_of[edge.source] is not chain_of[node] and is_chainable(edge):
                    _try_to_merge(graph, chain_of, edge)
    ordered = [
        sorted(chain, key=lambda n: n.index)
        for chain in {id(c): c for c in chain_of.values()}.values()
    ]
    return _topological(graph, chain_of, ordered)


def is_chainable(edge: StreamEdge) -> bool:
    source, target = edge.source, edge.target
    return (
        edge.partitioner is Partitioner.FORWARD
        and not edge.side_output_tag
        and edge.result_type is None
        and source.chaining is not Chaining.NEVER
        and target.chaining is Chaining.ALWAYS
        and source.parallelism == target.parallelism
        and source.max_parallelism == target.max_parallelism
        and source.slot_sharing_group == target.slot_sharing_group
        and source.resource_group == target.resource_group
        and source.co_location_group == target.co_location_group
    )


def _try_to_merge(graph: StreamGraph, chain_of: dict[StreamNode, Chain], edge: StreamEdge) -> None:
    merged = chain_of[edge.source] | chain_of[edge.target]
    inner = [e for e in graph.edges if e.source in merged and e.target in merged]
    if not all(is_chainable(e) for e in inner):
        return
    sources = sum(node.is_source for node in merged)
    fed = any(e.target in merged and e.source not in merged for e in graph.edges)
    if sources > 1 or (sources and fed):
        return
    if _leaves_and_returns(graph, chain_of, merged):
        return
    for node in merged:
        chain_of[node] = merged


def _leaves_and_returns(
    graph: StreamGraph, chain_of: dict[StreamNode, Chain], merged: Chain
) -> bool:
    reached: set[StreamNode] = set()
    frontier = [e.target for e in graph.edges if e.source in merged and e.target not in merged]
    while frontier:
        node = frontier.pop()
        if node in reached:
            continue
        # Rows that enter a chain at any point may leave it at any point.
        reached |= chain_of[node]
        for e in graph.edges:
            if e.source in chain_of[node] and e.target not in reached:
                if e.target in merged:
                    return True
                frontier.append(e.target)
    return False


def _topological(
    graph: StreamGraph, chain_of: dict[StreamNode, Chain], ordered: list[list[StreamNode]]
) -> list[list[StreamNode]]:
    waiting = {id(chain_of[chain[0]]): chain for chain in sorted(ordered, key=lambda c: c[0].index)}
    producers: dict[int, set[int]] = {key: set() for key in waiting}
    for edge in graph.edges:
        source, target = id(chain_of[edge.source]), id(chain_of[edge.target])
        if source != target:
            producers[target].add(source)
    result: list[list[StreamNode]] = []
    while waiting:
        key = next(k for k in waiting if not producers[k] & waiting.keys())
        result.append(waiting.pop(key))
    return result
