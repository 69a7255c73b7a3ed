"""The order in which the flows of a pipeline run."""

from __future__ import annotations

import pytest

from firesteel.spark_connect.flow_order import FlowNode, FlowOrder, FlowState

ROOM = {True: 8, False: 8}


def _flow(name: str, *upstream: str, streaming: bool = True) -> FlowNode:
    return FlowNode(name=name, streaming=streaming, upstream=frozenset(upstream))


def test_a_flow_starts_once_those_upstream_have_completed() -> None:
    order = FlowOrder([_flow("c", "a", "b"), _flow("a"), _flow("b", "a")], ROOM)
    assert order.start() == ["a"]
    assert order.start() == []
    order.completed("a")
    assert order.start() == ["b"]
    order.completed("b")
    assert order.start() == ["c"]
    order.completed("c")
    assert order.start() == []
    assert not order.running


def test_flows_downstream_of_a_failed_one_are_skipped_and_others_run() -> None:
    flows = [_flow("a"), _flow("b", "a"), _flow("c", "b"), _flow("d")]
    order = FlowOrder(flows, {True: 1, False: 1})
    assert order.start() == ["a"]
    assert order.failed("a") == ["b", "c"]
    assert order.start() == ["d"]
    order.completed("d")
    assert not order.running
    states = [order.state(name) for name in "abcd"]
    assert states == [
        FlowState.FAILED,
        FlowState.SKIPPED,
        FlowState.SKIPPED,
        FlowState.COMPLETED,
    ]


def test_flows_upstream_that_are_not_part_of_the_run_do_not_count() -> None:
    order = FlowOrder([_flow("b", "a")], ROOM)
    assert order.start() == ["b"]


def test_batch_and_streaming_flows_have_separate_room() -> None:
    flows = [_flow("s1"), _flow("s2"), _flow("b1", streaming=False), _flow("b2", streaming=False)]
    order = FlowOrder(flows, {True: 1, False: 2})
    assert order.start() == ["s1", "b1", "b2"]
    order.completed("b1")
    assert order.start() == []
    order.completed("s1")
    assert order.start() == ["s2"]


def test_a_flow_ends_once() -> None:
    order = FlowOrder([_flow("a")], ROOM)
    order.start()
    order.completed("a")
    with pytest.raises(AssertionError, match="flow a is completed, and cannot become failed"):
        order.failed("a")
