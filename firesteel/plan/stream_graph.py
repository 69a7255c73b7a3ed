"""The program as recorded by the API: one node per operator, one edge per input, not chained."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from graphlib import TopologicalSorter

from firesteel.common.config import options
from firesteel.common.job_graph import Partitioner, ResultType, Scaling
from firesteel.common.resources import UNKNOWN, ResourceProfile
from firesteel.errors import InvalidProgram
from firesteel.operators import Spec
from firesteel.plan.bindings import Bindings
from firesteel.plan.source_lines import Place, place_of_call

DEFAULT_GROUP = "default"


class Chaining(Enum):
    ALWAYS = "always"  # with its producer and its consumers, if the edge allows it
    HEAD = "head"  # start_new_chain(): never with its producer
    NEVER = "never"  # disable_chaining()


@dataclass(slots=True, eq=False)
class StreamNode:
    """One operator of the program. uid(), name() and similar methods set its fields while the
    program is built.
    """

    index: int  # in order of creation
    name: str
    spec: Spec
    inputs: int  # 0 for sources
    place: Place  # where the program adds it
    parallelism: int | None = None  # None: parallelism.default
    max_parallelism: int | None = None
    uid: str = ""
    chaining: Chaining = Chaining.ALWAYS
    slot_sharing_group: str | None = None  # None: that of its producers, if they agree
    co_location_group: str = ""
    resource_group: str = ""
    resources: ResourceProfile = UNKNOWN
    coordinator_kind: str = ""
    coordinator_options_json: str = ""
    runs_on_spark: bool = False
    # Its default parallelism is that of its producers, not parallelism.default: the upstream half
    # of a split operator.
    follows_producer: bool = False
    # It processes the whole stream, so it has exactly one subtask.
    whole: bool = False
    scaling: Scaling = Scaling.DEFAULT  # decided by `resolved`
    bindings: Bindings | None = None  # of its functions

    @property
    def is_source(self) -> bool:
        return self.inputs == 0

    @property
    def is_sink(self) -> bool:
        return self.spec.is_sink

    @property
    def kind(self) -> str:
        return self.spec.kind

    def __str__(self) -> str:
        """Returns its name for messages, with its uid, if it has one, and its place in the
        program.
        """
        about = filter(None, (self.uid and f"uid {self.uid!r}", str(self.place)))
        shown = ", ".join(about)
        return f"{self.name!r} ({shown})" if shown else repr(self.name)


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamEdge:
    source: StreamNode
    target: StreamNode
    target_input: int
    partitioner: Partitioner | None  # None: FORWARD if the parallelism is equal, else REBALANCE
    key_columns: tuple[str, ...] = ()
    side_output_tag: str = ""
    result_type: ResultType | None = None  # None: the job's


class StreamGraph:
    """All nodes and edges of a program. The nodes are in topological order, which is that of their
    creation, unless `sort` has changed it.
    """

    def __init__(self) -> None:
        self.nodes: list[StreamNode] = []
        self.edges: list[StreamEdge] = []
        self._in_edges: dict[StreamNode, list[StreamEdge]] = {}
        self._out_edges: dict[StreamNode, list[StreamEdge]] = {}

    def add_node(self, name: str, spec: Spec, *, inputs: int) -> StreamNode:
        node = StreamNode(len(self.nodes), name, spec, inputs, place_of_call())
        node.bindings = Bindings(spec)
        node.runs_on_spark = spec.runs_on_spark
        self.nodes.append(node)
        return node

    def add_edge(self, edge: StreamEdge) -> None:
        self.edges.append(edge)
        self._in_edges.setdefault(edge.target, []).append(edge)
        self._out_edges.setdefault(edge.source, []).append(edge)

    def in_edges(self, node: StreamNode) -> Sequence[StreamEdge]:
        return self._in_edges.get(node, ())

    def out_edges(self, node: StreamNode) -> Sequence[StreamEdge]:
        return self._out_edges.get(node, ())

    def sort(self) -> None:
        """Restores the topological order, after an edge was added that contradicts it."""
        order = TopologicalSorter[StreamNode]()
        for node in self.nodes:
            order.add(node, *(edge.source for edge in self.in_edges(node)))
        self.nodes = list(order.static_order())

    def ends(self) -> list[StreamNode]:
        """Returns the nodes whose rows no other node reads."""
        return [node for node in self.nodes if not self.out_edges(node)]

    def leading_to(self, ends: Iterable[StreamNode]) -> StreamGraph:
        """Returns the part that computes the inputs of `ends`: these nodes and all upstream
        ones.
        """
        needed = set(ends)
        for node in reversed(self.nodes):
            if node in needed:
                needed.update(e.source for e in self.in_edges(node))
        part = StreamGraph()
        part.nodes = [node for node in self.nodes if node in needed]
        for edge in self.edges:
            if edge.target in needed:
                part.add_edge(edge)
        return part

    def resolved(
        self, *, default_parallelism: int, default_max_parallelism: int | None
    ) -> StreamGraph:
        """Returns a copy in which parallelism, max parallelism, groups and partitioners are
        decided. Without `default_max_parallelism`, it depends on the parallelism.

        Raises InvalidProgram for duplicate uids, FORWARD between different parallelisms, a
        parallelism above its maximum, and a co-location group that spans slot sharing groups or
        parallelisms.
        """
        graph = StreamGraph()
        copies: dict[StreamNode, StreamNode] = {}
        for node in self.nodes:
            producers = [copies[e.source] for e in self.in_edges(node)]
            copy = dataclasses.replace(node)
            copy.parallelism = _parallelism(node, producers, default_parallelism)
            copy.scaling = _scaling(node)
            copy.max_parallelism = _max_parallelism(
                copy, node.max_parallelism or default_max_parallelism
            )
            groups = {p.slot_sharing_group for p in producers}
            inherited = groups.pop() if len(groups) == 1 else DEFAULT_GROUP
            copy.slot_sharing_group = node.slot_sharing_group or inherited
            copies[node] = copy
            graph.nodes.append(copy)
        for edge in self.edges:
            source, target = copies[edge.source], copies[edge.target]
            graph.add_edge(
                dataclasses.replace(
                    edge,
                    source=source,
                    target=target,
                    partitioner=_partitioner(edge, source, target),
                )
            )
        _check_uids(graph)
        _check_co_location(graph)
        return graph


def _parallelism(node: StreamNode, producers: list[StreamNode], default: int) -> int:
    if node.parallelism is not None:
        return node.parallelism
    if node.follows_producer:
        return max(p.parallelism or default for p in producers)
    return default


def _scaling(node: StreamNode) -> Scaling:
    if node.whole or node.spec.fixed_parallelism is not None:
        return Scaling.FIXED
    return Scaling.DEFAULT if node.parallelism is None else Scaling.CHOSEN


_LARGEST_MAX_PARALLELISM = 2**15  # Flink's


def _max_parallelism(node: StreamNode, wanted: int | None) -> int:
    """Returns the max parallelism: unless it is `wanted`, that of the option's default, or above
    it, a power of two at least 1.5 times the parallelism.
    """
    parallelism = node.parallelism or 1
    if wanted is None:
        roomy = 1 << (parallelism + parallelism // 2 - 1).bit_length()
        default = options.MAX_PARALLELISM.default
        wanted = default if parallelism <= default else min(roomy, _LARGEST_MAX_PARALLELISM)
    if parallelism > wanted:
        raise InvalidProgram(
            f"operator {node} has parallelism {parallelism}, over its max parallelism {wanted}; "
            "lower the one or raise the other with set_max_parallelism() or "
            "pipeline.max-parallelism"
        )
    return wanted


def _partitioner(edge: StreamEdge, source: StreamNode, target: StreamNode) -> Partitioner:
    same = source.parallelism == target.parallelism
    if edge.partitioner is None:
        return Partitioner.FORWARD if same else Partitioner.REBALANCE
    if edge.partitioner is Partitioner.FORWARD and not same:
        raise InvalidProgram(
            f"forward() from {source} (parallelism {source.parallelism}) to {target} "
            f"(parallelism {target.parallelism}) needs equal parallelism; "
            "use rescale() or rebalance()"
        )
    return edge.partitioner


def _check_uids(graph: StreamGraph) -> None:
    seen: dict[str, StreamNode] = {}
    for node in graph.nodes:
        if node.uid and node.uid in seen:
            raise InvalidProgram(
                f"the uid {node.uid!r} is used by two operators, {seen[node.uid]} and {node}; "
                "give one of them a different uid: uids are unique in a job"
            )
        if node.uid:
            seen[node.uid] = node


def _check_co_location(graph: StreamGraph) -> None:
    first: dict[str, StreamNode] = {}
    for node in graph.nodes:
        if not node.co_location_group:
            continue
        other = first.setdefault(node.co_location_group, node)
        if (other.slot_sharing_group, other.resource_group) != (
            node.slot_sharing_group,
            node.resource_group,
        ):
            raise InvalidProgram(
                f"operators {other} and {node} are in co-location group "
                f"{node.co_location_group!r} but in different slot sharing or resource groups "
                f"({other.slot_sharing_group!r}, {node.slot_sharing_group!r}), "
                "so they can never share a slot"
            )
        if other.parallelism != node.parallelism:
            raise InvalidProgram(
                f"operators {other} and {node} are in co-location group "
                f"{node.co_location_group!r} with different parallelism "
                f"({other.parallelism} and {node.parallelism})"
            )
