"""Which tasks start when, and in whose slots: jobs with BLOCKING results."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import pytest

from firesteel.common.ids import TaskExecutorId
from firesteel.common.job_graph import JobGraph, Partitioner, ResultPartitionId, ResultType
from firesteel.common.operator_messages import SplitAssigned, SplitRequested, SplitsExhausted
from firesteel.common.states import ExecutionState, JobStatus
from firesteel.errors import ErrorInfo
from jobmaster.core import commands, events
from jobmaster.core.execution_graph import Execution
from jobmaster.core.failover.restart_strategy import FixedDelay
from jobmaster.core.scheduling.strategies import SchedulingPolicy
from jobmaster.core.settings import JobSettings
from jobmaster.core.slots.slot import SlotOffer
from tests.job_master import World, job, operator_id, vertex

S = ExecutionState
HASH, FORWARD, REBALANCE = Partitioner.HASH, Partitioner.FORWARD, Partitioner.REBALANCE
BOOM = ErrorInfo(summary="boom")
SEQUENCE = ("sequence-source", {"start": 0, "end": 60, "split_rows": 10})


def batch(
    sizes: dict[str, int], partitioner: Partitioner = HASH, *, pipelined: tuple[int, ...] = ()
) -> JobGraph:
    """A row of vertices; the edges with these numbers are pipelined, the others blocking."""
    first = next(iter(sizes))
    vertices = (
        vertex(name, size, coordinator=SEQUENCE if name == first else None)
        for name, size in sizes.items()
    )
    graph = job(*vertices, partitioner=partitioner)
    edges = (
        edge if n in pipelined else replace(edge, result_type=ResultType.BLOCKING)
        for n, edge in enumerate(graph.edges)
    )
    return replace(graph, batch=True, edges=tuple(edges))


def begun(
    graph: JobGraph,
    slots: int,
    *,
    not_repeatable: Iterable[str] = (),
    restart_delay_s: float = 0.0,
    **fields: object,
) -> World:
    """`not_repeatable`: vertices of which another attempt may produce other rows."""
    settings = JobSettings(
        restart=FixedDelay(attempts=9, delay_s=restart_delay_s),
        heartbeat_timeout_s=1000.0,
        **fields,  # type: ignore[arg-type]
    )
    world = World(graph, settings)
    world.start()
    if slots:
        world.give_slots("te-1", slots)
        world.analyze([operator_id(name) for name in not_repeatable])
    return world


def deployed(world: World) -> list[str]:
    """Returns the names of running tasks and tasks about to run."""
    return [
        f"{e.vertex.job_vertex.vertex.name}{e.vertex.subtask}"
        for e in world.executions()
        if e.state in (S.DEPLOYING, S.INITIALIZING, S.RUNNING)
    ]


def finish(world: World, *names: str) -> list[commands.Command]:
    """Finishes the running tasks of these vertices, or with these names."""
    found = [
        e
        for e in world.executions()
        if e.state is S.DEPLOYING
        and {
            e.vertex.job_vertex.vertex.name,
            f"{e.vertex.job_vertex.vertex.name}{e.vertex.subtask}",
        }
        & set(names)
    ]
    assert found
    return world.report(found, S.FINISHED)


def test_a_region_starts_when_what_it_reads_is_complete() -> None:
    world = begun(batch({"a": 2, "b": 2, "c": 2}), 2)
    assert deployed(world) == ["a0", "a1"]
    finish(world, "a0")
    assert deployed(world) == ["a1"]
    sent = finish(world, "a1")
    assert deployed(world) == ["b0", "b1"]
    assert world.of(commands.DeclareRequirements, sent) == [], "in the same slots"
    finish(world, "b")
    finish(world, "c")
    assert world.core.graph.status is JobStatus.FINISHED


def test_with_forward_edges_each_subtask_goes_its_own_way() -> None:
    world = begun(batch({"a": 2, "b": 2}, FORWARD), 2)
    finish(world, "a1")
    assert deployed(world) == ["a0", "b1"]


def test_lazy_from_sources_waits_for_whole_vertices() -> None:
    world = begun(
        batch({"a": 2, "b": 2}, FORWARD), 2, scheduling=SchedulingPolicy.LAZY_FROM_SOURCES
    )
    finish(world, "a1")
    assert deployed(world) == ["a0"]
    finish(world, "a0")
    assert deployed(world) == ["b0", "b1"]


def test_lazy_from_sources_restarts_single_subtasks_of_a_vertex() -> None:
    world = begun(batch({"a": 2, "b": 2}), 2, scheduling=SchedulingPolicy.LAZY_FROM_SOURCES)
    world.report(world.executions("a")[:1], S.FAILED, error=BOOM)
    assert deployed(world) == ["a0", "a1"], "a1 goes on"
    finish(world, "a")
    assert deployed(world) == ["b0", "b1"]


def test_eager_starts_all_tasks_together() -> None:
    world = begun(batch({"a": 2, "b": 2}), 2, scheduling=SchedulingPolicy.EAGER)
    assert deployed(world) == ["a0", "a1", "b0", "b1"]


def test_pipelined_edges_start_together() -> None:
    world = begun(batch({"a": 2, "b": 2, "c": 1}, pipelined=(0,)), 2)
    assert deployed(world) == ["a0", "a1", "b0", "b1"]
    finish(world, "a", "b")
    assert deployed(world) == ["c0"]


def test_a_batch_job_gets_along_with_fewer_slots_than_subtasks() -> None:
    world = begun(batch({"a": 4, "b": 4}), 1, slot_request_timeout_s=60.0)
    for name in ("a0", "a1", "a2", "a3", "b0", "b1", "b2"):
        assert deployed(world) == [name]
        world.pass_time(50.0)
        world.post(events.TaskExecutorSeen(task_executor_id=TaskExecutorId("te-1")))
        finish(world, name)
    finish(world, "b3")
    assert world.core.graph.status is JobStatus.FINISHED


def test_a_batch_job_without_any_slot_fails_in_time() -> None:
    world = begun(batch({"a": 2, "b": 2}), 0, slot_request_timeout_s=60.0)
    world.pass_time(61.0)
    assert world.core.graph.status is JobStatus.FAILED


def test_consumers_read_where_their_producers_taskexecutor_serves() -> None:
    world = begun(batch({"a": 1, "b": 1}), 0)
    world.post(
        events.TaskExecutorConnected(
            task_executor_id=TaskExecutorId("te-1"),
            connection=1,
            host="127.0.0.1",
            slots=(),
            tasks=(),
            data_address="127.0.0.1:7777",
        )
    )
    world.give_slots("te-1", 1)
    world.analyze()
    (locations,) = world.one(commands.DeployTasks, finish(world, "a")).locations
    assert locations.addresses == ("127.0.0.1:7777",)


# ---- failures


def fail(world: World, name: str, unreadable: ResultPartitionId | None = None) -> None:
    (failed,) = (
        e
        for e in world.executions()
        if f"{e.vertex.job_vertex.vertex.name}{e.vertex.subtask}" == name
    )
    assert failed.slot is not None
    update = events.TaskUpdate(failed.attempt_id, S.FAILED, BOOM, unreadable=unreadable)
    world.post(
        events.TaskStatesReported(task_executor_id=failed.slot.task_executor_id, updates=(update,))
    )
    world.pass_time(0.0)


def reconnect(world: World, kept: Iterable[ResultPartitionId]) -> None:
    """Reconnects te-1 with its slots, tasks and kept results."""
    slots = tuple(
        SlotOffer(
            allocation_id=slot.allocation_id,
            slot_index=slot.slot_index,
            profile=slot.profile,
            executor_id=slot.executor_id,
            data_address=slot.data_address,
        )
        for slot in world.core.pool.slots.values()
    )
    running = [e for e in world.executions() if e.state in (S.DEPLOYING, S.RUNNING)]
    world.post(
        events.TaskExecutorConnected(
            task_executor_id=TaskExecutorId("te-1"),
            connection=9,
            host="127.0.0.1",
            slots=slots,
            tasks=tuple(events.TaskUpdate(e.attempt_id, e.state) for e in running),
            partitions=tuple(kept),
        )
    )


def attempts(world: World, name: str) -> list[int]:
    return [e.attempt for e in world.executions(name)]


def test_a_task_that_fails_reads_the_cached_results_again() -> None:
    world = begun(batch({"a": 2, "b": 2}), 2)
    finish(world, "a")
    fail(world, "b1")
    assert (attempts(world, "a"), attempts(world, "b")) == ([0, 0], [0, 1])
    assert deployed(world) == ["b0", "b1"]
    finish(world, "b")
    assert world.core.graph.status is JobStatus.FINISHED
    assert world.core.job.full_restarts == 0


@pytest.mark.parametrize(("partitioner", "again"), [(HASH, [0, 1]), (REBALANCE, [1, 1])])
def test_a_partition_that_cannot_be_read_is_produced_again(
    partitioner: Partitioner, again: list[int]
) -> None:
    world = begun(batch({"a": 2, "b": 2}, partitioner), 2)
    finish(world, "a")
    finish(world, "b0")
    result_id = world.core.graph.results[0].edge.result_id
    fail(world, "b1", ResultPartitionId(result_id, 0, 0))
    assert deployed(world) == ["a0"]
    assert attempts(world, "a") == [1, 0]
    finish(world, "a0")
    assert attempts(world, "b") == again
    assert deployed(world) == (["b1"] if partitioner is HASH else ["b0", "b1"])
    finish(world, "b")
    assert world.core.graph.status is JobStatus.FINISHED


@pytest.mark.parametrize(
    ("not_repeatable", "again"),
    [
        ("", {"a": [1, 1], "b": [1, 0], "c": [0, 1]}),
        ("a", {"a": [1, 1], "b": [1, 1], "c": [1, 1]}),
        ("b", {"a": [1, 1], "b": [1, 0], "c": [1, 1]}),
        ("c", {"a": [1, 1], "b": [1, 0], "c": [0, 1]}),
    ],
)
@pytest.mark.parametrize("pipelined", [(), (0,)], ids=["blocking", "pipelined"])
def test_all_readers_of_rows_that_have_changed_restart(
    not_repeatable: str, again: dict[str, list[int]], pipelined: tuple[int, ...]
) -> None:
    """b0's result cannot be read, and a's have been released, as b had read them."""
    graph = batch({"a": 2, "b": 2, "c": 2}, pipelined=pipelined)
    world = begun(graph, 2 + len(pipelined) * 2, not_repeatable=not_repeatable)
    finish(world, "a")
    finish(world, "b")
    finish(world, "c0")
    fail(world, "c1", ResultPartitionId(graph.edges[1].result_id, 0, 0))
    if pipelined:
        again = again | {"b": [1, 1]}  # a region
    finish(world, "a")
    finish(world, "b")
    assert {name: attempts(world, name) for name in "abc"} == again
    finish(world, "c")
    assert world.core.graph.status is JobStatus.FINISHED


def test_readers_of_rows_that_still_exist_continue() -> None:
    world = begun(batch({"a": 2, "b": 2, "c": 2}), 2, not_repeatable="ab")
    finish(world, "a")
    finish(world, "b0")
    fail(world, "b1")
    assert (attempts(world, "a"), attempts(world, "b")) == ([0, 0], [0, 1])
    finish(world, "b")
    assert deployed(world) == ["c0", "c1"]


def test_a_fully_read_result_is_kept_for_a_reader_that_restarts() -> None:
    """It finishes while it is cancelled because a downstream task has failed."""
    world = begun(batch({"a": 1, "b": 1, "c": 1}, pipelined=(1,)), 1)
    finish(world, "a")
    assert deployed(world) == ["b0", "c0"]
    fail(world, "c0")
    world.report(world.executions("b"), S.FINISHED)
    assert not world.of(commands.ReleasePartitions)
    assert deployed(world) == ["b0", "c0"]
    assert (attempts(world, "a"), attempts(world, "b")) == ([0], [1])
    finish(world, "b")
    assert world.of(commands.ReleasePartitions)


def test_no_task_starts_to_read_rows_that_will_be_produced_again() -> None:
    """b1 finishes while it is cancelled with its region, because b0's result cannot be read."""
    graph = batch({"a": 2, "b": 2, "c": 2}, pipelined=(0,))
    forward = replace(graph.edges[1], partitioner=Partitioner.FORWARD)
    world = begun(replace(graph, edges=(graph.edges[0], forward)), 3)
    finish(world, "a", "b0")
    assert deployed(world) == ["b1", "c0"]
    fail(world, "c0", ResultPartitionId(forward.result_id, 0, 0))
    world.report(world.executions("b")[1:], S.FINISHED)
    assert (attempts(world, "b"), attempts(world, "c")) == ([1, 1], [1, 0])
    assert deployed(world) == ["a0", "a1", "b0", "b1"]
    finish(world, "a", "b")
    finish(world, "c")
    assert world.core.graph.status is JobStatus.FINISHED


def test_a_lost_task_executor_takes_its_partitions_with_it() -> None:
    world = begun(batch({"a": 2, "b": 2}), 1)
    finish(world, "a0")  # on te-1
    world.give_slots("te-2", 1)
    assert deployed(world) == ["a1"]
    world.post(events.TaskExecutorLost(task_executor_id=TaskExecutorId("te-1"), cause="gone"))
    world.pass_time(0.0)
    world.give_slots("te-3", 2)
    assert (attempts(world, "a"), attempts(world, "b")) == ([1, 1], [0, 0])
    assert world.core.job.restart_strategy.history.used == 1, "one cause"


def test_a_lost_task_executor_whose_partitions_are_read_costs_nothing() -> None:
    world = begun(batch({"a": 1, "b": 1, "c": 1}), 1)
    sent = [*finish(world, "a"), *finish(world, "b")]
    released = world.one(commands.ReleasePartitions, sent)
    assert released.task_executor_id == "te-1"
    assert [partition[1:] for partition in released.partitions] == [(0, 0)], "a's, b has read it"
    world.give_slots("te-2", 1)
    fail(world, "c0")
    assert (attempts(world, "a"), attempts(world, "b")) == ([0], [0])


def test_lost_partitions_of_consumers_without_a_slot_are_reproduced() -> None:
    """In batch mode, a loss restarts only regions, even if every task is lost."""
    world = begun(batch({"a": 1, "b": 1}), 1)
    finish(world, "a")
    world.post(events.TaskExecutorLost(task_executor_id=TaskExecutorId("te-1"), cause="gone"))
    world.pass_time(0.0)
    assert (attempts(world, "a"), attempts(world, "b")) == ([1], [1])
    assert world.core.graph.status is JobStatus.RUNNING
    world.give_slots("te-2", 1)
    finish(world, "a")
    finish(world, "b")
    assert world.core.graph.status is JobStatus.FINISHED


def test_what_a_returning_task_executor_no_longer_keeps_is_produced_again() -> None:
    world = begun(batch({"a": 2, "b": 1}), 1)
    finish(world, "a0")
    result_id = world.core.graph.results[0].edge.result_id
    for kept, attempt in ((True, 0), (False, 1)):
        reconnect(world, [ResultPartitionId(result_id, 0, 0)] if kept else [])
        world.pass_time(0.0)
        assert attempts(world, "a") == [attempt, 0]


def test_what_is_about_to_be_restarted_needs_its_inputs_again() -> None:
    """They are lost while it waits for the delay, when all who read them have finished."""
    world = begun(batch({"a": 1, "b": 2, "c": 1}), 2, restart_delay_s=1.0)
    of_a, of_b = (result.edge.result_id for result in world.core.graph.results)
    finish(world, "a")
    finish(world, "b0")
    reconnect(world, [ResultPartitionId(of_a, 0, 0)])  # b0's is gone, and c needs it
    finish(world, "b1")
    reconnect(world, [ResultPartitionId(of_b, 1, 0)])
    world.pass_time(1.0)
    assert (attempts(world, "a"), attempts(world, "b")) == ([1], [1, 0])
    finish(world, "a")
    finish(world, "b0")
    finish(world, "c")
    assert world.core.graph.status is JobStatus.FINISHED


def test_a_source_that_is_produced_again_reads_the_splits_that_it_had() -> None:
    world = begun(batch({"a": 2, "b": 1}), 2)

    def splits(execution: Execution) -> list[str]:
        found: list[str] = []
        for received in range(9):
            assert execution.slot is not None
            sent = world.post(
                events.OperatorMessageReceived(
                    task_executor_id=execution.slot.task_executor_id,
                    operator_id=operator_id("a"),
                    attempt_id=execution.attempt_id,
                    message=SplitRequested(received=received),
                )
            )
            message = world.one(commands.SendOperatorMessage, sent).message
            if isinstance(message, SplitsExhausted):
                break
            assert isinstance(message, SplitAssigned)
            found.append(message.split_json)
        return found

    first, _ = world.executions("a")
    had = splits(first)
    assert len(had) == 6
    finish(world, "a0")
    result_id = world.core.graph.results[0].edge.result_id
    finish(world, "a1")
    fail(world, "b0", ResultPartitionId(result_id, 0, 0))
    assert splits(world.executions("a")[0])[:2] == had[:2]
    fail(world, "a0")  # in the middle of it
    again = world.executions("a")[0]
    assert (again.attempt, splits(again)) == (2, had)
    finish(world, "a0")
    assert deployed(world) == ["b0"]
