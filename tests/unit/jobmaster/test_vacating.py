"""Tasks move away from a TaskExecutor that is to stop."""

from __future__ import annotations

from dataclasses import replace

from firesteel.common.checkpoints.messages import Snapshot
from firesteel.common.ids import TaskExecutorId
from firesteel.common.job_graph import JobGraph, Partitioner, ResultType
from firesteel.common.states import ExecutionState, JobStatus
from jobmaster.core import commands, events
from jobmaster.core.checkpoints.settings import CheckpointSettings
from jobmaster.core.execution_graph import Execution
from jobmaster.core.settings import JobSettings
from tests.job_master import World, job, offer, vertex

S = ExecutionState
ONE, OTHER = TaskExecutorId("te-1"), TaskExecutorId("te-2")


def pipelines(*names: str) -> JobGraph:
    """Returns pipelines from source "a0" to sink "a1", each in a separate slot."""
    vertices = [vertex(f"{x}{n}", 1, slot_sharing_group=x) for x in names for n in range(2)]
    graph = job(*vertices)
    return replace(graph, edges=graph.edges[::2])


def running(graph: JobGraph, *slots: tuple[str, int], checkpoints: bool = True) -> World:
    """Without a restart strategy: nothing that moves may count as a failure."""
    taken = CheckpointSettings(directory="/d", interval_s=10.0) if checkpoints else None
    world = World(graph, JobSettings(checkpoints=taken, heartbeat_timeout_s=1000.0))
    world.run(*slots)
    return world


def vacate(world: World, name: TaskExecutorId, *, forced: bool = False) -> list[commands.Command]:
    return world.post(events.VacateRequested(task_executor_id=name, forced=forced))


def required(world: World) -> int:
    declared = world.of(commands.DeclareRequirements)[-1]
    return sum(requirement.count for requirement in declared.requirements)


def complete_checkpoint(world: World) -> list[commands.Command]:
    """The one that was triggered last."""
    checkpoint_id = world.of(commands.TriggerCheckpoint)[-1].checkpoint_id
    for execution in world.executions():
        assert execution.slot is not None
        world.post(
            events.CheckpointAcknowledged(
                task_executor_id=execution.slot.task_executor_id,
                attempt_id=execution.attempt_id,
                checkpoint_id=checkpoint_id,
                snapshot=Snapshot(operators=()),
            )
        )
    return world.post(events.CheckpointStored(checkpoint_id=checkpoint_id))


def on(world: World, name: TaskExecutorId) -> list[Execution]:
    return [e for e in world.executions() if e.slot and e.slot.task_executor_id == name]


def test_a_pipeline_moves_once_it_has_a_slot_and_a_complete_checkpoint() -> None:
    world = running(pipelines("a", "b"), (ONE, 1), (OTHER, 1))
    others = on(world, OTHER)
    sent = vacate(world, ONE)
    assert required(world) == 3, "one beside those that it has"
    assert not world.of(commands.TriggerCheckpoint, sent)
    world.give_slots(OTHER, 1)
    assert world.of(commands.TriggerCheckpoint), "it has the slot"
    assert not world.of(commands.CancelTasks)
    sent = complete_checkpoint(world)
    (cancelled,) = world.of(commands.CancelTasks, sent)
    leaving = on(world, ONE)
    assert set(cancelled.attempt_ids) == {e.attempt_id for e in leaving}
    sent = world.report(leaving, S.CANCELED)
    assert world.one(commands.FreeSlots, sent).task_executor_id == ONE
    deployed = world.one(commands.DeployTasks, sent)
    assert deployed.task_executor_id == OTHER and len(deployed.tasks) == 2
    assert required(world) == 2
    assert [e for e in on(world, OTHER) if e.attempt == 0] == others, "they go on"
    assert world.core.graph.status is JobStatus.RUNNING
    assert world.core.exceptions.newest_first() == []


def test_at_the_limit_tasks_wait_for_the_slots_of_the_replacement() -> None:
    world = running(pipelines("a", "b"), (ONE, 1), (OTHER, 1))
    leaving = on(world, ONE)
    sent = world.post(events.VacateRequested(task_executor_id=ONE, without_slots=True))
    assert world.of(commands.TriggerCheckpoint, sent), "it has no slot elsewhere"
    complete_checkpoint(world)
    world.report(leaving, S.CANCELED)
    assert required(world) == 2
    new = TaskExecutorId("te-3")
    world.give_slots(new, 1)
    assert len(on(world, new)) == 2
    assert world.core.exceptions.newest_first() == []


def test_a_job_without_checkpoints_stays_also_without_slots_elsewhere() -> None:
    world = running(pipelines("a"), (ONE, 1), checkpoints=False)
    sent = world.post(events.VacateRequested(task_executor_id=ONE, without_slots=True))
    assert not world.of(commands.CancelTasks, sent)


def test_a_job_of_one_region_starts_again_without_a_restart_strategy() -> None:
    graph = job(vertex("source", 2), vertex("sink", 2), partitioner=Partitioner.REBALANCE)
    world = running(graph, (ONE, 1), (OTHER, 1))
    vacate(world, ONE)
    world.give_slots(OTHER, 1)
    complete_checkpoint(world)
    assert world.core.graph.status is JobStatus.FAILING
    world.report(world.executions(), S.CANCELED)
    world.pass_time(0.0)
    assert {e.slot.task_executor_id for e in world.executions() if e.slot} == {OTHER}
    world.report(world.executions(), S.INITIALIZING, S.RUNNING)
    assert world.core.graph.status is JobStatus.RUNNING
    assert world.core.job.restart_strategy.delay_s(0.0) is None


def test_a_checkpoint_that_fails_keeps_no_task_where_it_is() -> None:
    world = running(pipelines("a", "b"), (ONE, 1), (OTHER, 1))
    vacate(world, ONE)
    world.give_slots(OTHER, 1)
    trigger = world.of(commands.TriggerCheckpoint)[-1]
    first = world.executions()[0]
    assert first.slot is not None
    sent = world.post(
        events.CheckpointDeclined(
            task_executor_id=first.slot.task_executor_id,
            attempt_id=first.attempt_id,
            checkpoint_id=trigger.checkpoint_id,
            cause="the disk is full",
        )
    )
    assert world.of(commands.CancelTasks, sent)
    assert "the disk is full" in str(world.of(commands.Log, sent))


def test_a_drain_waits_for_replacement_slots_and_can_be_withdrawn() -> None:
    world = running(pipelines("a", "b"), (ONE, 1), (OTHER, 1))
    vacate(world, ONE)
    world.pass_time(5.0)
    assert not world.of(commands.CancelTasks) and not world.of(commands.FreeSlots)
    world.post(events.VacateWithdrawn(task_executor_id=ONE))
    assert required(world) == 2
    world.give_slots(OTHER, 1)
    assert world.of(commands.AnswerSlots)[-1].rejected, "no task waits for it"
    assert {e.state for e in world.executions()} == {S.RUNNING}


def test_a_job_without_checkpoints_is_left_to_end_unless_it_is_forced() -> None:
    world = running(pipelines("a", "b"), (ONE, 1), (OTHER, 1), checkpoints=False)
    vacate(world, ONE)
    world.give_slots(OTHER, 1)
    assert not world.of(commands.CancelTasks)
    assert required(world) == 2
    sent = vacate(world, ONE, forced=True)
    leaving = on(world, ONE)
    assert set(world.one(commands.CancelTasks, sent).attempt_ids) == {e.attempt_id for e in leaving}
    sent = world.report(leaving, S.CANCELED)
    assert world.one(commands.FreeSlots, sent).task_executor_id == ONE
    world.give_slots(OTHER, 1)
    assert {e.slot.task_executor_id for e in world.executions() if e.slot} == {OTHER}
    assert world.core.graph.status is JobStatus.RUNNING


def test_a_vacated_task_executor_frees_slots_and_gets_no_new_ones() -> None:
    graph = job(vertex("source", 1), vertex("sink", 1))
    blocking = tuple(replace(e, result_type=ResultType.BLOCKING) for e in graph.edges)
    graph = replace(graph, edges=blocking, batch=True)
    world = World(graph, JobSettings(heartbeat_timeout_s=1000.0))
    world.start()
    (first,) = world.give_slots(ONE, 1)
    world.analyze()
    vacate(world, ONE)
    source, sink = world.executions("source"), world.executions("sink")
    world.report(source, S.INITIALIZING, S.RUNNING)
    sent = world.report(source, S.FINISHED)
    assert world.one(commands.FreeSlots, sent).allocation_ids == (first.allocation_id,)
    late = offer(99)
    sent = world.post(events.SlotsOffered(task_executor_id=ONE, slots=(late,)))
    assert world.one(commands.AnswerSlots, sent).rejected == (late.allocation_id,)
    world.give_slots(OTHER, 1)
    assert sink[0].slot is not None and sink[0].slot.task_executor_id == OTHER


def test_a_forced_drain_reproduces_results_and_is_not_a_failure() -> None:
    graph = job(vertex("source", 1), vertex("sink", 1))
    blocking = tuple(replace(e, result_type=ResultType.BLOCKING) for e in graph.edges)
    graph = replace(graph, edges=blocking, batch=True)
    world = World(graph, JobSettings(heartbeat_timeout_s=1000.0))
    world.start()
    world.give_slots(ONE, 1)
    world.analyze()
    world.report(world.executions("source"), S.INITIALIZING, S.RUNNING, S.FINISHED)
    world.report(world.executions("sink"), S.INITIALIZING, S.RUNNING)
    sent = vacate(world, ONE, forced=True)
    assert world.of(commands.CancelTasks, sent)
    world.report(world.executions("sink"), S.CANCELED)
    world.post(events.TaskExecutorLost(task_executor_id=ONE, cause="it was drained"))
    world.give_slots(OTHER, 1)
    (source,) = world.executions("source")
    assert (source.attempt, source.state) == (1, S.DEPLOYING)
    assert world.core.graph.status is JobStatus.RUNNING


def test_a_job_that_stops_with_a_savepoint_is_left_alone() -> None:
    world = running(pipelines("a", "b"), (ONE, 1), (OTHER, 1))
    asked = events.CheckpointRequested(request="r", savepoint_path="/s/one", stops=True)
    world.post(asked)
    vacate(world, ONE)
    world.give_slots(OTHER, 1)
    assert not world.of(commands.CancelTasks)


def test_another_resource_manager_knows_of_no_drain_until_it_says_so() -> None:
    world = running(pipelines("a", "b"), (ONE, 1), (OTHER, 1))
    vacate(world, ONE)
    world.post(events.ResourceManagerConnected())
    assert required(world) == 2
    vacate(world, ONE)
    assert required(world) == 3
    world.give_slots(OTHER, 1)
    assert world.of(commands.TriggerCheckpoint)
