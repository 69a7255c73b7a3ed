"""Which tasks a checkpoint is triggered in, and who takes part."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from firesteel.common.ids import IdSource, ResultId, stable_id
from firesteel.common.job_graph import JobEdge, JobGraph, Partitioner
from firesteel.common.states import ExecutionState
from jobmaster.core.checkpoints.plan import (
    CheckpointPlan,
    NotPossible,
    plan_checkpoint,
    tasks_to_trigger,
)
from jobmaster.core.execution_graph import Execution, ExecutionGraph, build
from tests.job_master import job, vertex
from tests.unit.jobmaster.checkpoints.graphs import finish, running, task


def plan(graph: ExecutionGraph) -> CheckpointPlan:
    return plan_checkpoint(graph, after_tasks_finish=True)


def names(executions: tuple[Execution, ...]) -> list[str]:
    return [execution.name for execution in executions]


def edge(source: str, target: str, partitioner: Partitioner) -> JobEdge:
    (example,) = job(vertex(source, 1), vertex(target, 1), partitioner=partitioner).edges
    return replace(example, result_id=ResultId(stable_id("result", source, target)))


def test_while_all_run_the_sources_are_triggered_and_all_acknowledge() -> None:
    graph = running(job(vertex("source", 2), vertex("sink", 3)))
    found = plan(graph)
    assert names(found.to_trigger) == ["source (1/2)#0", "source (2/2)#0"]
    assert set(found.to_acknowledge) == set(graph.attempts)
    assert not found.finished
    assert not found.finished_subtasks


def test_one_running_source_feeds_all_consumers_of_an_all_to_all_edge() -> None:
    graph = running(job(vertex("source", 2), vertex("sink", 3)))
    finish(task(graph, "source"))
    found = plan(graph)
    assert names(found.to_trigger) == ["source (2/2)#0"]
    assert len(found.to_acknowledge) == 4
    assert found.finished_subtasks == {
        task(graph, "source").vertex.job_vertex.vertex.vertex_id: (0,)
    }


def test_when_all_sources_have_finished_their_consumers_are_triggered() -> None:
    graph = running(job(vertex("source", 2), vertex("sink", 3)))
    for subtask in range(2):
        finish(task(graph, "source", subtask))
    found = plan(graph)
    assert names(found.to_trigger) == [f"sink ({n}/3)#0" for n in (1, 2, 3)]
    assert found.finished == {task(graph, "source").vertex.job_vertex.vertex.vertex_id}


def test_on_pointwise_edges_consumers_of_finished_producers_are_triggered() -> None:
    graph = running(job(vertex("a", 3), vertex("b", 3), partitioner=Partitioner.FORWARD))
    finish(task(graph, "a", 1))
    assert names(plan(graph).to_trigger) == ["a (1/3)#0", "a (3/3)#0", "b (2/3)#0"]


def test_a_second_input_that_runs_brings_the_barrier() -> None:
    """Spec 001, figure 2: A has finished, C has to be triggered by B alone."""
    graph = JobGraph(
        job_id=job(vertex("a", 1)).job_id,
        name="two inputs",
        vertices=(vertex("a", 1), vertex("b", 1), vertex("c", 2)),
        edges=(edge("a", "c", Partitioner.REBALANCE), edge("b", "c", Partitioner.REBALANCE)),
    )
    built = running(graph)
    finish(task(built, "a"))
    assert names(plan(built).to_trigger) == ["b (1/1)#0"]


def test_nothing_is_possible_while_a_task_does_not_run_yet() -> None:
    graph = build(job(vertex("source", 1)), IdSource(b"test"), 1000)
    with pytest.raises(NotPossible, match=r"task source \(1/1\)#0 is CREATED, not RUNNING"):
        plan(graph)


def test_nothing_is_possible_when_all_tasks_have_finished() -> None:
    graph = running(job(vertex("source", 1)))
    finish(task(graph, "source"))
    with pytest.raises(NotPossible, match="all tasks have finished"):
        plan(graph)


def test_the_feature_can_be_switched_off() -> None:
    graph = running(job(vertex("source", 1), vertex("sink", 1)))
    assert plan_checkpoint(graph, after_tasks_finish=False).to_trigger
    finish(task(graph, "source"))
    with pytest.raises(NotPossible, match=r"source \(1/1\)#0 has finished, and .* is false"):
        plan_checkpoint(graph, after_tasks_finish=False)


@st.composite
def graphs(draw: st.DrawFn) -> ExecutionGraph:
    """Any DAG of a few vertices, of which any tasks have finished whose producers all have."""
    sizes = draw(st.lists(st.integers(1, 5), min_size=1, max_size=5))
    vertices = tuple(vertex(f"v{n}", size) for n, size in enumerate(sizes))
    pairs = [(a, b) for b in range(len(sizes)) for a in range(b)]
    edges = tuple(
        edge(f"v{a}", f"v{b}", draw(st.sampled_from([Partitioner.HASH, Partitioner.RESCALE])))
        for a, b in pairs
        if draw(st.booleans())
    )
    base = job(vertices[0])
    built = running(replace(base, vertices=vertices, edges=edges))
    for job_vertex in built.vertices:
        for subtask in job_vertex.vertices:
            if not _running_producers(built, subtask.current) and draw(st.booleans()):
                finish(subtask.current)
    return built


def _running_producers(graph: ExecutionGraph, execution: Execution) -> list[Execution]:
    """Edge by edge, as slowly as it is plain."""
    return [
        producer
        for result in graph.inputs_of(execution.vertex.job_vertex.vertex.vertex_id)
        for index in result.producers_of(execution.vertex.subtask)
        if (producer := result.producer.vertices[index].current).state is ExecutionState.RUNNING
    ]


@given(graphs())
def test_running_tasks_without_a_running_producer_are_triggered(
    graph: ExecutionGraph,
) -> None:
    expected = [
        execution
        for execution in graph.executions()
        if execution.state is ExecutionState.RUNNING and not _running_producers(graph, execution)
    ]
    assert list(tasks_to_trigger(graph)) == expected


@given(graphs())
def test_every_running_task_is_reached_by_a_barrier(graph: ExecutionGraph) -> None:
    reached = {execution.attempt_id for execution in tasks_to_trigger(graph)}
    for execution in graph.executions():  # in topological order
        if any(p.attempt_id in reached for p in _running_producers(graph, execution)):
            reached.add(execution.attempt_id)
    running_ids = {e.attempt_id for e in graph.executions() if e.state is ExecutionState.RUNNING}
    assert reached >= running_ids
