"""Jobs that follow the slots that there are."""

from __future__ import annotations

from collections import Counter

from firesteel.common.ids import TaskExecutorId
from firesteel.common.job_graph import JobGraph, Partitioner
from firesteel.common.resources import UNKNOWN
from firesteel.common.states import ExecutionState, JobStatus
from jobmaster.core import commands, events
from jobmaster.core.checkpoints.settings import CheckpointSettings
from jobmaster.core.elasticity import Elasticity, ElasticSettings, SchedulerMode, fitted
from jobmaster.core.settings import JobSettings
from tests.job_master import World, job, vertex
from tests.unit.jobmaster.test_rescaling import acknowledge, rescale, run_all, sizes

S = ExecutionState
ONE, OTHER = TaskExecutorId("te-1"), TaskExecutorId("te-2")
SETTINGS = ElasticSettings(mode=SchedulerMode.REACTIVE)
GRAPH = job(
    vertex("source", 2, max_parallelism=4), vertex("sink", 2, max_parallelism=4),
    partitioner=Partitioner.HASH,
)  # fmt: skip


def elastic(graph: JobGraph = GRAPH, mode: SchedulerMode = SchedulerMode.REACTIVE) -> World:
    checkpoints = CheckpointSettings(directory="/d", interval_s=1000.0)
    settings = JobSettings(
        checkpoints=checkpoints, elastic=ElasticSettings(mode=mode), heartbeat_timeout_s=1e6
    )
    return World(graph, settings)


def checkpoints(world: World) -> int:
    return len({trigger.checkpoint_id for trigger in world.of(commands.TriggerCheckpoint)})


def restart(world: World) -> None:
    """All tasks end, and those that follow them run."""
    live = [e for e in world.executions() if not e.terminal and e.slot is not None]
    world.report(live, S.CANCELED)
    world.pass_time(0.0)


def started(slots: int) -> World:
    """Returns a reactive job that runs in these slots, which may be fewer than requested."""
    world = elastic()
    world.start()
    world.give_slots(ONE, slots)
    world.pass_time(10.0)
    if world.of(commands.StoreParallelism):
        world.post(events.ParallelismStored())
        world.pass_time(0.0)
    world.analyze()
    run_all(world)
    return world


def test_a_job_starts_with_fewer_slots_after_a_while() -> None:
    world = elastic()
    world.start()
    world.give_slots(ONE, 1)
    world.pass_time(9.0)
    assert not world.of(commands.StoreParallelism)
    world.pass_time(1.0)
    store = world.one(commands.StoreParallelism)
    assert set(store.by_vertex.values()) == {1} and set(store.upper.values()) == {4}
    world.post(events.ParallelismStored())
    world.pass_time(0.0)
    world.analyze()
    run_all(world)
    assert sizes(world) == [1, 1] and world.core.graph.status is JobStatus.RUNNING


def test_more_slots_are_used_once_their_number_is_stable() -> None:
    world = started(1)
    world.pass_time(40.0)
    world.give_slots(OTHER, 1)
    world.pass_time(30.0)
    world.give_slots(OTHER, 1)
    world.pass_time(59.0)
    assert not world.of(commands.TriggerCheckpoint)
    world.pass_time(1.0)
    acknowledge(world)
    world.post(events.ParallelismStored())
    restart(world)
    run_all(world)
    assert sizes(world) == [3, 3]
    world.give_slots(OTHER, 1)
    world.pass_time(29.0)
    assert checkpoints(world) == 1, "it cools down"
    world.pass_time(1.0)
    assert checkpoints(world) == 2, "it uses the new slot"


def test_a_lost_task_executor_makes_it_smaller_without_a_checkpoint() -> None:
    world = started(1)
    world.give_slots(OTHER, 3)
    world.pass_time(60.0)
    acknowledge(world)
    world.post(events.ParallelismStored())
    restart(world)
    run_all(world)
    assert sizes(world) == [4, 4]
    world.pass_time(100.0)
    world.core.job.restart_strategy.delay_s = lambda now: 0.0  # type: ignore[method-assign]
    world.post(events.TaskExecutorLost(task_executor_id=OTHER, cause="its machine is gone"))
    restart(world)
    world.pass_time(10.0)
    store = world.of(commands.StoreParallelism)[-1]
    assert set(store.by_vertex.values()) == {1}
    world.post(events.ParallelismStored())
    world.pass_time(0.0)
    run_all(world)
    assert sizes(world) == [1, 1] and world.core.graph.status is JobStatus.RUNNING


def test_a_request_sets_the_highest_parallelism() -> None:
    world = started(2)
    rescale(world, 1)
    acknowledge(world)
    world.post(events.ParallelismStored())
    restart(world)
    sent = run_all(world)
    assert sizes(world) == [1, 1]
    assert world.of(commands.FreeSlots, sent), "it will not use the other slot"
    world.pass_time(300.0)
    assert len(world.of(commands.TriggerCheckpoint)) == 1


def test_bounds_without_enough_slots_give_what_there_is() -> None:
    world = elastic(mode=SchedulerMode.DEFAULT)
    world.run((ONE, 2))
    vertices = [v.vertex_id for v in GRAPH.vertices]
    world.post(
        events.RescaleRequested(
            request="r",
            by_vertex=dict.fromkeys(vertices, 4),
            lower_bounds=dict.fromkeys(vertices, 1),
        )
    )
    world.give_slots(OTHER, 1)
    world.pass_time(10.0)
    acknowledge(world)
    store = world.one(commands.StoreParallelism)
    assert [set(m.values()) for m in (store.by_vertex, store.lower, store.upper)] == [{3}, {1}, {4}]


def test_bounds_alone_restart_nothing() -> None:
    world = elastic(mode=SchedulerMode.DEFAULT)
    world.run((ONE, 2))
    lower = {vertex.vertex_id: 1 for vertex in GRAPH.vertices}
    upper = {vertex.vertex_id: 2 for vertex in GRAPH.vertices}
    world.post(events.RescaleRequested(request="r", by_vertex=upper, lower_bounds=lower))
    assert world.one(commands.StoreParallelism).version == 0
    world.post(events.ParallelismStored())
    assert not world.one(commands.AnswerRescale).problem
    assert not world.of(commands.TriggerCheckpoint) and not world.of(commands.CancelTasks)


def test_lower_bounds_above_upper_ones_are_refused() -> None:
    world = elastic(mode=SchedulerMode.DEFAULT)
    world.run((ONE, 2))
    world.post(
        events.RescaleRequested(request="r", by_vertex={"sink": 1}, lower_bounds={"sink": 2})
    )
    answer = world.one(commands.AnswerRescale)
    assert answer.invalid and "above its upper bound 1" in answer.problem


def test_slots_are_shared_as_equally_as_the_bounds_allow() -> None:
    a, b = (vertex(name, 1, slot_sharing_group=name) for name in ("a", "b"))
    graph = job(a, b)
    lower, upper = {a.vertex_id: 1, b.vertex_id: 1}, {a.vertex_id: 2, b.vertex_id: 8}

    def sized(slots: int) -> list[int] | None:
        found = fitted(graph, lower, upper, Counter({UNKNOWN: slots}))
        return None if found is None else list(found.values())

    assert sized(1) is None
    assert sized(3) == [1, 1]
    assert sized(4) == [2, 2]
    assert sized(7) == [2, 5]


def test_slots_that_come_and_go_restart_nothing() -> None:
    elasticity = Elasticity(SETTINGS)
    for second in range(0, 600, 20):
        possible = 3 if second % 40 else 2
        assert not elasticity.may_change(
            possible=possible, current=2, most=8, runs=True, now=float(second)
        )


def test_slots_that_come_while_fewer_are_accepted_do_not_lose_the_change() -> None:
    world = elastic()
    world.start()
    world.give_slots(ONE, 1)
    world.pass_time(10.0)
    assert world.of(commands.StoreParallelism)
    world.give_slots(ONE, 1)
    assert world.of(commands.AnalyzeJob), "it has all slots of its program"
    world.post(events.ParallelismStored())
    world.analyze()
    world.pass_time(0.0)
    restart(world)
    run_all(world)
    stored = world.core.job.parallelism
    assert sizes(world) == [1, 1] and stored.applied == stored.stored and not stored.unproven
