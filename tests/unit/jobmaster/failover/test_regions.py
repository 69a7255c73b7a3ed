"""Regions and restart sets, beside a reference that follows every edge."""

from __future__ import annotations

import time
from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from firesteel.common.ids import AttemptId, IdSource, JobId, stable_id
from firesteel.common.job_graph import JobGraph, Partitioner, ResultPartitionId, ResultType
from firesteel.common.states import ExecutionState, TaskEvent
from jobmaster.core.execution_graph import ExecutionGraph, ExecutionVertex, build
from jobmaster.core.failover.regions import (
    Failure,
    PartitionUnreadable,
    Regions,
    SlotsLost,
    TaskFailed,
    tasks_to_restart,
)
from tests.job_master import edge, vertex

PIPELINED, BLOCKING = ResultType.PIPELINED, ResultType.BLOCKING
FORWARD, REBALANCE, RESCALE, HASH, BROADCAST, WATERMARKS = Partitioner
S = ExecutionState
Edge = tuple[str, str, Partitioner, ResultType]
Name = tuple[str, int]


def graph_of(parallelism: dict[str, int], *edges: Edge) -> ExecutionGraph:
    vertices = {name: vertex(name, count) for name, count in parallelism.items()}
    return build(
        JobGraph(
            job_id=JobId(stable_id("job")),
            name="a job",
            vertices=tuple(vertices.values()),
            edges=tuple(
                edge(vertices[source], vertices[target], partitioner, result_type, number=number)
                for number, (source, target, partitioner, result_type) in enumerate(edges)
            ),
        ),
        IdSource(b"test"),
        0,
    )


def name_of(vertex: ExecutionVertex) -> Name:
    return vertex.job_vertex.vertex.name, vertex.subtask


def subtask(graph: ExecutionGraph, name: str, number: int) -> ExecutionVertex:
    return next(v for v in graph.execution_vertices() if name_of(v) == (name, number))


def become(vertices: Iterable[ExecutionVertex], state: ExecutionState) -> None:
    steps = {
        S.CREATED: (),
        S.SCHEDULED: (TaskEvent.SCHEDULE,),
        S.RUNNING: (TaskEvent.SCHEDULE, TaskEvent.DEPLOY, TaskEvent.REPORTED_RUNNING),
        S.FINISHED: (TaskEvent.SCHEDULE, TaskEvent.DEPLOY, TaskEvent.REPORTED_FINISHED),
    }
    for each in vertices:
        for event in steps[state]:
            each.current.apply(event, 0)


def all_of(graph: ExecutionGraph, *names: str) -> list[ExecutionVertex]:
    return [v for v in graph.execution_vertices() if v.job_vertex.vertex.name in names]


def restarted(graph: ExecutionGraph, failure: Failure) -> list[Name]:
    return [name_of(v) for v in tasks_to_restart(Regions(graph), failure)]


def partition(graph: ExecutionGraph, number: int, producer: int) -> ResultPartitionId:
    result = graph.results[number]
    return ResultPartitionId(
        result.edge.result_id, producer, result.producer.vertices[producer].current.attempt
    )


# ---- the cases of spec 003

SPEC = {"a": 2, "b": 2, "c": 2}  # a and b are one region, c is downstream of it


def spec_graph(partitioner: Partitioner) -> ExecutionGraph:
    """a → b, pipelined; b → c, blocking. Half of c has finished, the other half runs."""
    graph = graph_of(SPEC, ("a", "b", HASH, PIPELINED), ("b", "c", partitioner, BLOCKING))
    become(all_of(graph, "a", "b"), S.FINISHED)
    become([subtask(graph, "c", 0)], S.FINISHED)
    become([subtask(graph, "c", 1)], S.RUNNING)
    return graph


@pytest.mark.parametrize("partitioner", Partitioner)
def test_a_failed_tasks_region_restarts_and_reads_cached_results(
    partitioner: Partitioner,
) -> None:
    graph = spec_graph(partitioner)
    assert restarted(graph, TaskFailed(subtask(graph, "c", 1))) == [("c", 1)]


@pytest.mark.parametrize("partitioner", [HASH, BROADCAST, WATERMARKS])
def test_a_result_that_cannot_be_read_restarts_its_producers_too(partitioner: Partitioner) -> None:
    graph = spec_graph(partitioner)
    failure = PartitionUnreadable(subtask(graph, "c", 1), partition(graph, 1, 0))
    assert restarted(graph, failure) == [("a", 0), ("a", 1), ("b", 0), ("b", 1), ("c", 1)]


def test_finished_consumers_restart_where_rows_may_be_routed_differently() -> None:
    graph = spec_graph(REBALANCE)
    failure = PartitionUnreadable(subtask(graph, "c", 1), partition(graph, 1, 0))
    everything = [(name, n) for name in "abc" for n in range(2)]
    assert restarted(graph, failure) == everything


def test_a_pipelined_producer_that_fails_takes_only_its_region_with_it() -> None:
    graph = graph_of(SPEC, ("a", "b", HASH, PIPELINED), ("b", "c", REBALANCE, BLOCKING))
    become(all_of(graph, "a", "b"), S.RUNNING)
    failed = TaskFailed(subtask(graph, "a", 1))
    assert restarted(graph, failed) == [("a", 0), ("a", 1), ("b", 0), ("b", 1)]


# ---- more cases


def test_disjoint_pipelines_are_regions_of_their_own() -> None:
    graph = graph_of(
        {"a": 2, "b": 2, "c": 3, "d": 1},
        ("a", "b", HASH, PIPELINED),
        ("c", "d", REBALANCE, PIPELINED),
    )
    assert len(Regions(graph)) == 2
    assert restarted(graph, TaskFailed(subtask(graph, "d", 0))) == [
        ("c", 0), ("c", 1), ("c", 2), ("d", 0),
    ]  # fmt: skip


def test_pointwise_edges_divide_a_vertex_unless_it_is_to_stay_whole() -> None:
    graph = graph_of({"a": 4, "b": 2}, ("a", "b", RESCALE, PIPELINED))
    regions = Regions(graph)
    assert [[name_of(v) for v in regions.members(n)] for n in range(len(regions))] == [
        [("a", 0), ("a", 1), ("b", 0)],
        [("a", 2), ("a", 3), ("b", 1)],
    ]
    assert len(Regions(graph, whole=[v.vertex.vertex_id for v in graph.vertices])) == 1


def test_a_lost_task_executor_restarts_its_tasks_and_unread_results() -> None:
    graph = graph_of(
        {"a": 2, "b": 2, "c": 1, "d": 1},
        ("a", "b", FORWARD, BLOCKING),
        ("b", "c", HASH, BLOCKING),
        ("c", "d", FORWARD, BLOCKING),
    )
    become(all_of(graph, "a"), S.FINISHED)
    become([subtask(graph, "b", 0)], S.FINISHED)
    become([subtask(graph, "b", 1)], S.RUNNING)
    lost = SlotsLost((subtask(graph, "b", 1),), (partition(graph, 0, 0), partition(graph, 1, 0)))
    # b 0 has not been read, and for it a 0 is needed again; a 1 is elsewhere.
    assert restarted(graph, lost) == [("a", 0), ("b", 0), ("b", 1)]


def test_a_consumer_without_a_slot_waits_for_its_producers_new_attempt() -> None:
    """a 0 has finished, a 1 fails with it, being in its region."""
    graph = graph_of(
        {"s": 1, "a": 2, "b": 2}, ("s", "a", RESCALE, PIPELINED), ("a", "b", FORWARD, BLOCKING)
    )
    become([*all_of(graph, "s"), subtask(graph, "a", 1)], S.RUNNING)
    become([subtask(graph, "a", 0)], S.FINISHED)
    failure = TaskFailed(subtask(graph, "a", 1))
    become([subtask(graph, "b", 0)], S.SCHEDULED)
    assert restarted(graph, failure) == [("s", 0), ("a", 0), ("a", 1), ("b", 0)]


def test_what_was_lost_earlier_is_produced_again_once_it_is_needed() -> None:
    graph = graph_of({"a": 2, "b": 2}, ("a", "b", FORWARD, BLOCKING))
    become(all_of(graph, "a", "b"), S.FINISHED)
    assert restarted(graph, SlotsLost((), (partition(graph, 0, 0),))) == []
    graph.results[0].lost.add(0)
    assert restarted(graph, TaskFailed(subtask(graph, "b", 1))) == [("b", 1)]
    assert restarted(graph, TaskFailed(subtask(graph, "b", 0))) == [("a", 0), ("b", 0)]


def test_a_partition_that_is_there_again_is_not_lost() -> None:
    graph = spec_graph(HASH)
    old = partition(graph, 1, 0)
    producer = subtask(graph, "b", 0)
    producer.new_attempt(AttemptId("again"), producer.current.timestamps[0])
    assert restarted(graph, PartitionUnreadable(subtask(graph, "c", 1), old)) == [("c", 1)]


# ---- beside the reference


@st.composite
def graphs(draw: st.DrawFn) -> tuple[ExecutionGraph, Failure]:
    names = "abcdef"[: draw(st.integers(1, 6))]
    parallelism = {name: draw(st.integers(1, 4)) for name in names}
    edges: list[Edge] = []
    for target in range(1, len(names)):
        for source in draw(st.sets(st.integers(0, target - 1), max_size=2)):
            partitioner = draw(st.sampled_from(Partitioner))
            kind = draw(st.sampled_from(ResultType))
            if partitioner is FORWARD:
                parallelism[names[target]] = parallelism[names[source]]
            edges.append((names[source], names[target], partitioner, kind))
    graph = graph_of(parallelism, *edges)
    vertices = list(graph.execution_vertices())
    for each in vertices:
        become([each], draw(st.sampled_from([S.CREATED, S.SCHEDULED, S.RUNNING, S.FINISHED])))
    results = [r for r in graph.results if r.edge.result_type is BLOCKING]
    found = [
        (number, p.producer.subtask)
        for number, r in enumerate(graph.results)
        if r in results
        for p in r.partitions
        if p.producer.current.state is S.FINISHED
    ]
    for number, producer in draw(st.lists(st.sampled_from(found), max_size=3)) if found else []:
        graph.results[number].lost.add(producer)
    lost = (
        tuple(partition(graph, *p) for p in draw(st.lists(st.sampled_from(found), max_size=3)))
        if found
        else ()
    )
    failed = tuple(draw(st.lists(st.sampled_from(vertices), max_size=3)))
    return graph, SlotsLost(failed, lost)


def reference(graph: ExecutionGraph, failure: Failure) -> set[Name]:
    """The three rules, edge by edge, until nothing more follows."""
    assert isinstance(failure, SlotsLost)
    edges = [
        (result, p, c)
        for result in graph.results
        for p in range(result.producer.parallelism)
        for c in result.consumers_of(p)
    ]
    lost = {(r.edge.result_id, p) for r in graph.results for p in r.lost}
    lost |= {(p.result_id, p.producer) for p in failure.partitions}
    found = {name_of(v) for v in failure.vertices}
    newly = {(p.result_id, p.producer) for p in failure.partitions}
    for result, p, c in edges:
        consumer = result.consumer.vertices[c]
        if (result.edge.result_id, p) in newly and consumer.current.state is not S.FINISHED:
            found.add(name_of(result.producer.vertices[p]))
            if consumer.current.state is not S.CREATED:
                found.add(name_of(consumer))
    while True:
        before = len(found)
        for result, p, c in edges:
            producer, consumer = result.producer.vertices[p], result.consumer.vertices[c]
            ends = {name_of(producer), name_of(consumer)}
            if result.edge.result_type is PIPELINED:
                if found & ends:
                    found |= ends
                continue
            if name_of(consumer) in found and (result.edge.result_id, p) in lost:
                found.add(name_of(producer))
            deterministic = result.edge.partitioner in (HASH, BROADCAST, FORWARD, WATERMARKS)
            begun = consumer.current.state is not S.CREATED
            on_its_way = consumer.current.state is S.SCHEDULED
            if name_of(producer) in found and (on_its_way or (begun and not deterministic)):
                found.add(name_of(consumer))
        if len(found) == before:
            return found


@given(graphs())
def test_restart_sets_are_those_of_the_reference(drawn: tuple[ExecutionGraph, Failure]) -> None:
    graph, failure = drawn
    found = restarted(graph, failure)
    assert len(found) == len(set(found))
    assert set(found) == reference(graph, failure)


def test_ten_thousand_by_ten_thousand_are_looked_at_as_groups() -> None:
    """10 ms is the goal; edge by edge it would be 10^8 steps, minutes."""
    graph = graph_of({"a": 10_000, "b": 10_000}, ("a", "b", REBALANCE, BLOCKING))
    become(all_of(graph, "a"), S.FINISHED)
    become(all_of(graph, "b"), S.RUNNING)
    regions = Regions(graph)
    failure = PartitionUnreadable(subtask(graph, "b", 77), partition(graph, 0, 5))
    began = time.process_time()
    found = tasks_to_restart(regions, failure)
    took_s = time.process_time() - began
    assert len(found) == 10_001
    assert took_s < 1.0, f"{took_s * 1000:.0f} ms"
