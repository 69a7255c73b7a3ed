"""Chaining: which operators end up in one task."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from firesteel.common.job_graph import Partitioner
from firesteel.errors import InvalidProgram
from firesteel.operators import CustomSpec
from firesteel.plan.chaining import chains, is_chainable
from firesteel.plan.runtime_mode import check_ends
from firesteel.plan.stream_graph import Chaining, StreamEdge, StreamGraph, StreamNode

SPEC = CustomSpec(factory=object)


class Program:
    """A few words to write stream graphs with: `a = p.node("a", source)`; partitioners as
    arguments.
    """

    def __init__(self) -> None:
        self.graph = StreamGraph()

    def node(
        self, name: str, *producers: StreamNode | tuple[StreamNode, Partitioner], **settings: object
    ) -> StreamNode:
        inputs = int(settings.pop("inputs", 1 if producers else 0))  # type: ignore[call-overload]
        node = self.graph.add_node(name, SPEC, inputs=inputs)
        for key, value in settings.items():
            setattr(node, key, value)
        for number, producer in enumerate(producers):
            source, partitioner = producer if isinstance(producer, tuple) else (producer, None)
            target_input = number if inputs == 2 else 0
            self.graph.add_edge(
                StreamEdge(
                    source=source, target=node, target_input=target_input, partitioner=partitioner
                )
            )
        return node

    def resolved(self) -> StreamGraph:
        return self.graph.resolved(default_parallelism=2, default_max_parallelism=128)

    def chains(self) -> list[str]:
        return ["".join(node.name for node in chain) for chain in chains(self.resolved())]


def test_a_pipeline_is_one_chain_up_to_the_shuffle() -> None:
    p = Program()
    b = p.node("b", p.node("a"))
    p.node("d", p.node("c", (b, Partitioner.HASH)))
    assert p.chains() == ["ab", "cd"]


def test_different_parallelism_breaks_the_chain_and_rebalances() -> None:
    p = Program()
    p.node("b", p.node("a"), parallelism=3)
    assert p.chains() == ["a", "b"]
    assert p.resolved().edges[0].partitioner is Partitioner.REBALANCE


def test_start_new_chain_and_disable_chaining() -> None:
    p = Program()
    b = p.node("b", p.node("a"), chaining=Chaining.HEAD)
    d = p.node("d", p.node("c", b), chaining=Chaining.NEVER)
    p.node("e", d)
    assert p.chains() == ["a", "bc", "d", "e"]


def test_a_two_input_operator_is_in_the_middle_of_a_chain_of_one_source() -> None:
    p = Program()
    a = p.node("a")
    left, right = p.node("l", a), p.node("r", a)
    p.node("z", p.node("j", left, right, inputs=2))
    assert p.chains() == ["alrjz"]


def test_a_two_input_operator_joins_two_fed_chains() -> None:
    p = Program()
    left = p.node("l", (p.node("a"), Partitioner.HASH))
    right = p.node("r", (p.node("b"), Partitioner.HASH))
    p.node("j", left, right, inputs=2)
    assert p.chains() == ["a", "b", "lrj"]


def test_two_sources_never_share_a_chain() -> None:
    p = Program()
    p.node("j", p.node("a"), p.node("b"), inputs=2)
    assert p.chains() == ["a", "b", "j"]


def test_a_source_is_not_chained_to_an_operator_with_other_inputs() -> None:
    p = Program()
    shuffled = p.node("s", (p.node("a"), Partitioner.REBALANCE))
    p.node("j", shuffled, p.node("b"), inputs=2)
    assert p.chains() == ["a", "b", "sj"]


def test_a_path_that_leaves_and_returns_is_not_closed_into_a_cycle() -> None:
    # a -> j directly, and a -> (shuffle) m -> j: chaining a with j would make the task wait for
    # itself.
    p = Program()
    fed = p.node("f", (p.node("s"), Partitioner.HASH))
    around = p.node("m", (fed, Partitioner.REBALANCE))
    p.node("j", fed, (around, Partitioner.REBALANCE), inputs=2)
    assert p.chains() == ["s", "f", "m", "j"]


def test_a_shuffled_edge_between_two_members_keeps_them_apart() -> None:
    p = Program()
    fed = p.node("f", (p.node("s"), Partitioner.HASH))
    p.node("j", fed, (fed, Partitioner.HASH), inputs=2)
    assert p.chains() == ["s", "f", "j"]


def test_groups_break_chains_and_are_inherited() -> None:
    p = Program()
    b = p.node("b", p.node("a"), slot_sharing_group="heavy")
    p.node("c", b)
    assert p.chains() == ["a", "bc"]
    assert [n.slot_sharing_group for n in p.resolved().nodes] == ["default", "heavy", "heavy"]


def test_errors_name_the_operators() -> None:
    p = Program()
    a = p.node("a", uid="x")
    p.node("b", a, uid="x")
    with pytest.raises(
        InvalidProgram,
        match=r"uid 'x' is used by two operators, 'a' \(.*, line \d+\) and 'b' \(uid",
    ):
        p.resolved()
    p = Program()
    p.node("b", (p.node("a"), Partitioner.FORWARD), parallelism=5)
    with pytest.raises(InvalidProgram, match="needs equal parallelism"):
        p.resolved()
    p = Program()
    p.node("a", parallelism=200, max_parallelism=100)
    with pytest.raises(InvalidProgram, match="over its max parallelism 100"):
        p.resolved()
    p = Program()
    p.node(
        "b", p.node("a", co_location_group="g"), co_location_group="g", slot_sharing_group="other"
    )
    with pytest.raises(InvalidProgram, match="can never share a slot"):
        p.resolved()


@given(st.data())
def test_any_program_becomes_a_dag_of_tasks(data: st.DataObject) -> None:
    p = Program()
    nodes = [p.node("0")]
    partitioners = st.sampled_from([None, None, None, Partitioner.HASH, Partitioner.REBALANCE])
    for i in range(1, data.draw(st.integers(1, 9))):
        inputs = data.draw(st.sampled_from([0, 1, 1, 2]))
        producers = [
            (data.draw(st.sampled_from(nodes)), data.draw(partitioners)) for _ in range(inputs)
        ]
        chaining = data.draw(
            st.sampled_from([Chaining.ALWAYS] * 4 + [Chaining.HEAD, Chaining.NEVER])
        )
        nodes.append(p.node(str(i), *producers, inputs=inputs, chaining=chaining))
    graph = p.resolved()
    grouped = chains(graph)
    chain_of = {node: i for i, chain in enumerate(grouped) for node in chain}
    assert sorted(chain_of, key=lambda n: n.index) == graph.nodes, (
        "every operator is in exactly one chain"
    )
    for edge in graph.edges:
        source, target = chain_of[edge.source], chain_of[edge.target]
        assert source <= target, "chains are in topological order, so tasks form a DAG"
        assert source != target or is_chainable(edge), "only chainable edges stay inside a task"
    for number, chain in enumerate(grouped):
        sources = sum(node.is_source for node in chain)
        fed = any(chain_of[e.target] == number != chain_of[e.source] for e in graph.edges)
        assert sources + fed >= 1
        assert sources <= 1
        assert not (sources and fed), "a source task has no input"


class Counted(list[StreamEdge]):
    """A list that counts how often it was read from end to end."""

    scans = 0

    def __iter__(self) -> Iterator[StreamEdge]:
        self.scans += 1
        return super().__iter__()


def long_chain(p: Program, length: int) -> None:
    last = p.node("0")
    for i in range(1, length):
        last = p.node(str(i), last)


def fan(p: Program, length: int) -> None:
    source = p.node("0")
    for i in range(1, length, 2):
        p.node(str(i + 1), p.node(str(i), (source, Partitioner.REBALANCE)))


def fed_chain_with_exits(p: Program, length: int) -> None:
    last = p.node("1", (p.node("0"), Partitioner.HASH))
    for i in range(2, length, 2):
        last = p.node(str(i), last)
        p.node(str(i + 1), (last, Partitioner.HASH))


@pytest.mark.parametrize(
    ("shape", "tasks"), [(long_chain, 1), (fan, 1_001), (fed_chain_with_exits, 1_002)]
)
def test_a_large_program_is_chained_without_a_scan_of_its_edges_per_operator(
    shape: Callable[[Program, int], None], tasks: int
) -> None:
    def planned(length: int) -> tuple[int, int]:
        p = Program()
        shape(p, length)
        p.graph.edges = Counted(p.graph.edges)
        graph = p.resolved()
        graph.edges = Counted(graph.edges)
        grouped = chains(graph)
        check_ends(graph)
        assert p.graph.ends() and p.graph.leading_to(p.graph.ends()).edges
        assert isinstance(p.graph.edges, Counted) and isinstance(graph.edges, Counted)
        return p.graph.edges.scans + graph.edges.scans, len(grouped)

    few, _ = planned(10)
    assert planned(2_001)[0] == few
    assert planned(2_001)[1] == tasks
