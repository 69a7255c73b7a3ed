"""JobGraph -> ExecutionGraph, and the states of its vertices."""

from __future__ import annotations

import dataclasses

import pytest

from firesteel.common.ids import IdSource
from firesteel.common.job_graph import JobGraph, Partitioner
from firesteel.common.states import (
    ExecutionState,
    IllegalTransition,
    JobEvent,
    JobStatus,
    TaskEvent,
)
from jobmaster.core.execution_graph import ExecutionGraph, InvalidJobGraph, build
from jobmaster.core.execution_graph.vertex import PartitionState
from tests.job_master import job, vertex


def built(graph: JobGraph) -> ExecutionGraph:
    return build(graph, IdSource(b"test"), 1000)


def test_every_subtask_has_a_vertex_and_a_first_execution() -> None:
    graph = built(job(vertex("a", 3), vertex("b", 2)))
    assert [job_vertex.parallelism for job_vertex in graph.vertices] == [3, 2]
    assert len(graph.attempts) == graph.live == 5
    assert {e.state for e in graph.executions()} == {ExecutionState.CREATED}
    assert graph.status is JobStatus.CREATED
    assert [e.name for e in graph.executions()][:2] == ["a (1/3)#0", "a (2/3)#0"]


def test_all_to_all_results_connect_all_subtasks_without_storing_edges() -> None:
    result = built(job(vertex("a", 3), vertex("b", 2))).results[0]
    assert len(result.partitions) == 3
    assert result.consumers_of(1) == range(2)
    assert result.producers_of(1) == range(3)


@pytest.mark.parametrize(("producers", "consumers"), [(2, 4), (4, 2), (3, 3), (5, 3)])
def test_pointwise_results_are_the_same_seen_from_both_sides(
    producers: int, consumers: int
) -> None:
    result = built(
        job(vertex("a", producers), vertex("b", consumers), partitioner=Partitioner.RESCALE)
    ).results[0]
    seen = {(p, c) for p in range(producers) for c in result.consumers_of(p)}
    assert seen == {(p, c) for c in range(consumers) for p in result.producers_of(c)}
    assert {c for _, c in seen} == set(range(consumers))


def test_counts_follow_every_transition() -> None:
    graph = built(job(vertex("a", 2), vertex("b", 1)))
    first = graph.vertices[0].vertices[0].current
    for event in (TaskEvent.SCHEDULE, TaskEvent.DEPLOY, TaskEvent.REPORTED_RUNNING):
        first.apply(event, 2000)
    assert graph.tasks_by_state() == {"CREATED": 2, "RUNNING": 1}
    assert graph.vertices[0].aggregate_state is ExecutionState.CREATED
    first.apply(TaskEvent.REPORTED_FINISHED, 3000)
    assert graph.live == 2
    assert [state.name for state, _ in first.timestamps] == [
        "CREATED",
        "SCHEDULED",
        "DEPLOYING",
        "RUNNING",
        "FINISHED",
    ]


def test_an_illegal_transition_shows_the_history_of_the_task() -> None:
    execution = built(job(vertex("a", 2))).vertices[0].vertices[1].current
    execution.apply(TaskEvent.SCHEDULE, 2000)
    with pytest.raises(
        IllegalTransition,
        match=r"a \(2/2\)#0 .*CREATED at 1000, SCHEDULED at 2000 by SCHEDULE.*REPORTED_FINISHED is "
        "illegal in SCHEDULED",
    ):
        execution.apply(TaskEvent.REPORTED_FINISHED, 3000)
    assert execution.state is ExecutionState.SCHEDULED


def test_an_illegal_transition_shows_the_history_of_the_job() -> None:
    graph = built(job(vertex("a", 1)))
    with pytest.raises(
        IllegalTransition,
        match="INITIALIZING at 1000, CREATED at 1000 by BUILD.*FINISH is illegal in CREATED",
    ):
        graph.apply(JobEvent.FINISH, 2000)


def test_a_partition_is_as_far_as_its_producer() -> None:
    partition = built(job(vertex("a", 1), vertex("b", 1))).results[0].partitions[0]
    producer = partition.producer.current
    assert partition.state is PartitionState.CREATED
    producer.apply(TaskEvent.SCHEDULE, 1)
    producer.apply(TaskEvent.DEPLOY, 1)
    producer.apply(TaskEvent.REPORTED_RUNNING, 1)
    assert partition.state is PartitionState.CONSUMABLE
    producer.apply(TaskEvent.FAIL, 1)
    assert partition.state is PartitionState.LOST


def test_a_new_attempt_keeps_the_prior_ones_and_is_the_only_one_known() -> None:
    graph = built(job(vertex("a", 1)))
    old = graph.vertices[0].vertices[0].current
    old.apply(TaskEvent.CANCEL, 2000)
    graph.start_over(graph.execution_vertices(), IdSource(b"again"), 3000)
    new = graph.vertices[0].vertices[0].current
    assert new.attempt == 1
    assert graph.vertices[0].vertices[0].attempts == [old, new]
    assert list(graph.attempts) == [new.attempt_id]
    assert graph.live == 1


@pytest.mark.parametrize(
    ("graph", "words"),
    [
        (job(), "no vertices"),
        (job(vertex("a", 0)), "parallelism 0"),
        (job(vertex("a", 200, max_parallelism=128)), "parallelism 200"),
        (
            dataclasses.replace(job(vertex("a", 1), vertex("b", 1)), vertices=(vertex("a", 1),)),
            "names vertex",
        ),
        (
            dataclasses.replace(
                job(vertex("a", 1), vertex("b", 1)), vertices=(vertex("b", 1), vertex("a", 1))
            ),
            "backwards",
        ),
    ],
)
def test_a_bad_graph_is_refused_with_its_fault(graph: JobGraph, words: str) -> None:
    with pytest.raises(InvalidJobGraph, match=words):
        built(graph)
