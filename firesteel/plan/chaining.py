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

import heapq

from firesteel.common.job_graph import Partitioner
from firesteel.plan.stream_graph import Chaining, StreamEdge, StreamGraph, StreamNode


class _Chain:
    """The members of a chain, with what the rules need to know about its edges."""

    __slots__ = ("exits", "incoming", "nodes", "sources")

    def __init__(self, node: StreamNode, incoming: int) -> None:
        self.nodes = [node]
        self.sources = int(node.is_source)
        self.incoming = incoming  # the number of edges from other chains
        self.exits: set[StreamEdge] = set()  # to nodes of other chains that were visited


def chains(graph: StreamGraph, *, enabled: bool = True) -> list[list[StreamNode]]:
    """Groups the nodes of a resolved graph into chains, both in topological order."""
    chain_of = {node: _Chain(node, len(graph.in_edges(node))) for node in graph.nodes}
    if enabled:
        for node in graph.nodes:
            for edge in graph.in_edges(node):
                chain_of[edge.source].exits.add(edge)
            for edge in graph.in_edges(node):
                if chain_of[edge.source] is not chain_of[node] and is_chainable(edge):
                    _try_to_merge(graph, chain_of, edge)
    return _topological(graph, chain_of)


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


def _try_to_merge(graph: StreamGraph, chain_of: dict[StreamNode, _Chain], edge: StreamEdge) -> None:
    source, target = chain_of[edge.source], chain_of[edge.target]
    smaller, larger = sorted((source, target), key=lambda chain: len(chain.nodes))
    between = [
        e
        for node in smaller.nodes
        for e in (*graph.in_edges(node), *graph.out_edges(node))
        if chain_of[e.source] is not chain_of[e.target]
        and larger in (chain_of[e.source], chain_of[e.target])
    ]
    if not all(map(is_chainable, between)):
        return
    sources = source.sources + target.sources
    incoming = source.incoming + target.incoming - len(between)
    if sources > 1 or (sources and incoming):
        return
    if incoming and _leaves_and_returns(chain_of, source, target):
        return
    larger.nodes += smaller.nodes
    larger.exits |= smaller.exits
    larger.exits.difference_update(between)
    larger.sources, larger.incoming = sources, incoming
    for node in smaller.nodes:
        chain_of[node] = larger


def _leaves_and_returns(chain_of: dict[StreamNode, _Chain], source: _Chain, target: _Chain) -> bool:
    """Follows the edges to visited nodes alone: nodes after them are not in chains yet, and lead to
    later nodes.
    """
    merged = (source, target)
    reached: set[_Chain] = set()
    waiting = [
        chain_of[e.target]
        for chain in merged
        for e in chain.exits
        if chain_of[e.target] not in merged
    ]
    while waiting:
        chain = waiting.pop()
        if chain in reached:
            continue
        # Rows that enter a chain at any point may leave it at any point.
        reached.add(chain)
        for e in chain.exits:
            following = chain_of[e.target]
            if following in merged:
                return True
            if following is not chain:
                waiting.append(following)
    return False


def _topological(graph: StreamGraph, chain_of: dict[StreamNode, _Chain]) -> list[list[StreamNode]]:
    """Returns the chains; of those that may come next, the one with the earliest node comes."""
    by_first = {chain_of[node]: node.index for node in reversed(graph.nodes)}
    missing = dict.fromkeys(by_first, 0)  # the number of edges from chains that come before
    followers: dict[_Chain, list[_Chain]] = {chain: [] for chain in by_first}
    for edge in graph.edges:
        source, target = chain_of[edge.source], chain_of[edge.target]
        if source is not target:
            missing[target] += 1
            followers[source].append(target)
    ready = [(first, chain) for chain, first in by_first.items() if not missing[chain]]
    heapq.heapify(ready)
    result: list[list[StreamNode]] = []
    while ready:
        _, chain = heapq.heappop(ready)
        result.append(sorted(chain.nodes, key=lambda node: node.index))
        for following in followers[chain]:
            missing[following] -= 1
            if not missing[following]:
                heapq.heappush(ready, (by_first[following], following))
    return result
