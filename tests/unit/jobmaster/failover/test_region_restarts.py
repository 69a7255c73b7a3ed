"""Stories of jobs with several pipelines, of which one fails."""

from __future__ import annotations

from dataclasses import replace

import pytest

from firesteel.common.checkpoints.messages import Snapshot
from firesteel.common.ids import TaskExecutorId
from firesteel.common.job_graph import JobGraph
from firesteel.common.operator_messages import SplitAssigned, SplitRequested
from firesteel.common.states import ExecutionState, JobStatus
from firesteel.errors import ErrorInfo
from jobmaster.core import commands, events
from jobmaster.core.checkpoints.settings import CheckpointSettings
from jobmaster.core.execution_graph import Execution
from jobmaster.core.failover.restart_strategy import FixedDelay
from jobmaster.core.failover.strategy import Failover
from jobmaster.core.settings import JobSettings
from jobmaster.core.slots.slot import SlotOffer
from tests.job_master import World, job, operator_id, vertex

S = ExecutionState
SEQUENCE = ("sequence-source", {"start": 0, "end": 100, "split_rows": 10})
BOOM = ErrorInfo(summary="boom")


def pipelines(*names: str) -> JobGraph:
    """Returns pipelines from source "a0" to sink "a1", each in a separate slot."""
    vertices = [
        vertex(f"{name}{n}", 1, coordinator=SEQUENCE if n == 0 else None, slot_sharing_group=name)
        for name in names
        for n in range(2)
    ]
    graph = job(*vertices)
    return replace(graph, edges=graph.edges[::2])


def settings(*, checkpoints: bool = False, **fields: object) -> JobSettings:
    return JobSettings(
        restart=FixedDelay(attempts=2, delay_s=1.0),
        checkpoints=CheckpointSettings(directory="/d", interval_s=10.0) if checkpoints else None,
        heartbeat_timeout_s=1000.0,
        **fields,  # type: ignore[arg-type]
    )


def running(*names: str, checkpoints: bool = False, **fields: object) -> World:
    world = World(pipelines(*names), settings(checkpoints=checkpoints, **fields))
    world.run(("te-1", len(names)))
    return world


def of_pipeline(world: World, name: str) -> list[Execution]:
    return [*world.executions(f"{name}0"), *world.executions(f"{name}1")]


def fail(world: World, name: str) -> list[commands.Command]:
    """Fails the pipeline's source; its sink is cancelled."""
    sent = world.report(world.executions(f"{name}0"), S.FAILED, error=BOOM)
    return [*sent, *world.report(world.executions(f"{name}1"), S.CANCELED)]


def run(world: World, name: str) -> None:
    world.report(of_pipeline(world, name), S.INITIALIZING, S.RUNNING)


def ask(world: World, name: str, received: int = 0) -> object:
    (source,) = world.executions(f"{name}0")
    sent = world.post(
        events.OperatorMessageReceived(
            task_executor_id=TaskExecutorId("te-1"),
            operator_id=operator_id(f"{name}0"),
            attempt_id=source.attempt_id,
            message=SplitRequested(received=received),
        )
    )
    message = world.one(commands.SendOperatorMessage, sent).message
    assert isinstance(message, SplitAssigned)
    return message.split_json


def statuses(world: World) -> list[str]:
    return [status.name for status, _ in world.core.graph.timestamps]


# ---- without checkpoints


def test_a_failure_restarts_its_pipeline_in_its_old_slot_and_no_other() -> None:
    world = running("a", "b")
    others = of_pipeline(world, "b")
    cancelled = world.one(commands.CancelTasks, fail(world, "a"))
    assert cancelled.attempt_ids == (world.executions("a1")[0].attempt_id,)
    deployed = world.one(commands.DeployTasks, world.pass_time(1.0))
    assert [task.attempt_id for task in deployed.tasks] == [
        e.attempt_id for e in of_pipeline(world, "a")
    ]
    assert [(e.attempt, e.state) for e in of_pipeline(world, "a")] == [(1, S.DEPLOYING)] * 2
    assert of_pipeline(world, "b") == others
    assert {e.state for e in others} == {S.RUNNING}
    assert statuses(world)[-1] == "RUNNING"
    assert "RESTARTING" not in statuses(world)
    assert (world.core.restarts, world.core.job.full_restarts) == (1, 0)
    run(world, "a")
    world.report(world.executions(), S.FINISHED)
    assert world.core.graph.status is JobStatus.FINISHED


@pytest.mark.parametrize(
    ("what", "ends"),
    [
        ({}, False),
        ({"user_traceback": "ValueError: no such page"}, True),
        ({"condition": "DIVIDE_BY_ZERO", "sql_state": "22012"}, True),
        ({"condition": "USER_RAISED_EXCEPTION", "sql_state": "P0001"}, True),
        ({"condition": "FAILED_READ_FILE.NO_HINT", "sql_state": "KD001"}, False),
    ],
)
def test_an_error_of_the_program_ends_the_job_if_it_is_configured_to(
    what: dict[str, str], ends: bool
) -> None:
    world = running("a", "b", restarts_after_user_errors=False)
    error = replace(BOOM, **what)  # type: ignore[arg-type]
    world.report(world.executions("a0"), S.FAILED, error=error)
    world.report(world.executions("a1"), S.CANCELED)
    assert (world.core.graph.status is JobStatus.FAILING) == ends
    if ends:
        world.report(of_pipeline(world, "b"), S.CANCELED)
        assert world.core.graph.status is JobStatus.FAILED


def test_sources_of_other_pipelines_keep_what_they_were_assigned() -> None:
    world = running("a", "b")
    first = [ask(world, name) for name in "ab"]
    fail(world, "a")
    world.pass_time(1.0)
    run(world, "a")
    assert ask(world, "a") == first[0], "from the beginning"
    assert ask(world, "b", received=1) == '{"start": 10, "end": 20}'


def test_only_what_a_restarted_sink_collected_is_replaced() -> None:
    world = running("a", "b")
    fail(world, "a")
    begin = world.one(commands.BeginResults, world.pass_time(1.0))
    assert begin.operator_ids == (operator_id("a0"), operator_id("a1"))
    assert begin.restart == 1


def test_a_job_does_not_finish_while_a_pipeline_is_to_be_restarted() -> None:
    world = running("a", "b")
    fail(world, "a")
    world.report(of_pipeline(world, "b"), S.FINISHED)
    assert world.core.graph.status is JobStatus.RUNNING
    assert "restart of 2 tasks" in world.core.waiting_for(world.now)
    world.pass_time(1.0)
    run(world, "a")
    world.report(of_pipeline(world, "a"), S.FINISHED)
    assert world.core.graph.status is JobStatus.FINISHED
    assert [e.attempt for e in world.executions()] == [1, 1, 0, 0]


def test_one_cause_uses_up_one_attempt_however_many_tasks_it_ends() -> None:
    world = World(pipelines("a", "b", "c"), settings())
    world.run(("te-1", 2), ("te-2", 1))
    lost = sorted({e.vertex.job_vertex.vertex.name[0] for e in world.executions() if e.slot
                   and e.slot.task_executor_id == "te-1"})  # fmt: skip
    world.post(events.TaskExecutorLost(task_executor_id=TaskExecutorId("te-1"), cause="gone"))
    world.pass_time(1.0)
    world.give_slots("te-3", 2)
    for name in lost:
        run(world, name)
    assert world.core.restarts == 1
    assert world.core.job.restart_strategy.history.used == 1
    assert sorted(e.attempt for e in world.executions()) == [0, 0, 1, 1, 1, 1]


def test_a_worker_that_comes_back_with_less_is_one_cause() -> None:
    """Without the slot of one pipeline, and without the tasks of the other."""
    world = running("a", "b")
    kept = world.executions("b0")[0].slot
    assert kept is not None
    slot = SlotOffer(
        allocation_id=kept.allocation_id,
        slot_index=kept.slot_index,
        profile=kept.profile,
        executor_id=kept.executor_id,
        data_address=kept.data_address,
    )
    world.disconnect("te-1")
    world.connect("te-1", slots=[slot])
    assert {e.state for e in world.executions()} == {S.FAILED}
    assert world.core.job.restart_strategy.history.used == 1


def test_what_fails_while_it_is_cancelled_joins_the_failure() -> None:
    world = running("a", "b")
    world.report(world.executions("a0"), S.FAILED, error=BOOM)
    world.report(world.executions("a1"), S.FAILED, error=ErrorInfo(summary="while closing"))
    world.pass_time(1.0)
    assert world.core.restarts == 1
    assert [e.summary for e in world.core.exceptions.newest_first()] == ["boom", "while closing"]


def test_pipelines_are_restarted_independently_of_each_other() -> None:
    world = running("a", "b", "c")
    fail(world, "a")
    world.pass_time(0.6)
    world.report(world.executions("b0"), S.FAILED, error=BOOM)
    world.pass_time(0.6)
    assert {e.state for e in of_pipeline(world, "a")} == {S.DEPLOYING}
    assert [e.state for e in of_pipeline(world, "b")] == [S.FAILED, S.CANCELING]
    world.pass_time(5.0)
    world.report(world.executions("b1"), S.CANCELED)
    assert {e.state for e in of_pipeline(world, "b")} == {S.DEPLOYING}
    assert [e.attempt for e in world.executions()] == [1, 1, 1, 1, 0, 0]


def test_attempts_are_used_up_by_all_pipelines_together() -> None:
    world = running("a", "b")
    for name in "ab":
        fail(world, name)
        world.pass_time(1.0)
        run(world, name)
    fail(world, "a")
    assert world.core.graph.status is JobStatus.FAILING
    world.report(of_pipeline(world, "b"), S.CANCELED)
    assert world.core.graph.status is JobStatus.FAILED


def test_no_attempt_is_used_up_while_a_pipeline_has_no_slot() -> None:
    world = World(pipelines("a", "b"), settings(slot_request_timeout_s=60.0))
    world.run(("te-1", 1), ("te-2", 1))
    others = [e for e in world.executions() if e.slot and e.slot.task_executor_id == "te-1"]
    world.post(events.TaskExecutorLost(task_executor_id=TaskExecutorId("te-2"), cause="gone"))
    for name in ("te-3", "te-4"):  # each dies before the tasks are deployed
        world.pass_time(5.0)
        world.connect(name)
        world.post(events.TaskExecutorLost(task_executor_id=TaskExecutorId(name), cause="gone"))
    assert world.core.restarts == 1
    assert {e.state for e in others} == {S.RUNNING}
    world.give_slots("te-5", 1)
    assert world.core.graph.count(S.DEPLOYING) == 2
    assert world.core.restarts == 1


def test_a_pipeline_that_gets_no_slot_in_time_fails_the_job() -> None:
    world = World(pipelines("a", "b"), settings(slot_request_timeout_s=60.0))
    world.run(("te-1", 1), ("te-2", 1))
    world.post(events.TaskExecutorLost(task_executor_id=TaskExecutorId("te-2"), cause="gone"))
    world.pass_time(61.5)
    world.report([e for e in world.executions() if e.state is S.CANCELING], S.CANCELED)
    assert world.core.graph.status is JobStatus.FAILED
    assert "slot.request.timeout" in world.core.exceptions.newest_first()[0].summary


@pytest.mark.parametrize("moment", ["cancelling", "waiting", "deploying"])
def test_a_job_can_be_cancelled_while_a_pipeline_is_restarted(moment: str) -> None:
    world = running("a", "b")
    world.report(world.executions("a0"), S.FAILED, error=BOOM)
    if moment != "cancelling":
        world.report(world.executions("a1"), S.CANCELED)
    if moment == "deploying":
        world.pass_time(1.0)
    world.post(events.CancelRequested())
    world.report([e for e in world.executions() if not e.terminal], S.CANCELED)
    assert world.core.graph.status is JobStatus.CANCELED
    assert world.core.next_deadline() is None


def test_with_full_failover_everything_is_restarted() -> None:
    world = running("a", "b", failover=Failover.FULL)
    fail(world, "a")
    world.report(of_pipeline(world, "b"), S.CANCELED)
    assert world.core.graph.status is JobStatus.RESTARTING
    world.pass_time(1.0)
    assert [e.attempt for e in world.executions()] == [1] * 4


# ---- with checkpoints


def trigger(world: World) -> int:
    return world.one(commands.TriggerCheckpoint, world.pass_time(10.0)).checkpoint_id


def acknowledge(world: World, checkpoint_id: int) -> None:
    for execution in world.executions():
        world.post(
            events.CheckpointAcknowledged(
                task_executor_id=TaskExecutorId("te-1"),
                attempt_id=execution.attempt_id,
                checkpoint_id=checkpoint_id,
                snapshot=Snapshot(operators=()),
            )
        )


def complete(world: World) -> int:
    checkpoint_id = trigger(world)
    acknowledge(world, checkpoint_id)
    world.post(events.CheckpointStored(checkpoint_id=checkpoint_id))
    return checkpoint_id


def test_a_pipeline_restores_the_latest_checkpoint_beside_running_ones() -> None:
    world = running("a", "b", checkpoints=True)
    for name in "ab":
        ask(world, name)
    complete(world)
    for name in "ab":
        assert ask(world, name, received=1) == '{"start": 10, "end": 20}'
    fail(world, "a")
    deployed = world.one(commands.DeployTasks, world.pass_time(1.0))
    assert all(task.restored is not None for task in deployed.tasks)
    run(world, "a")
    assert ask(world, "a", received=0) == '{"start": 10, "end": 20}'
    assert ask(world, "b", received=2) == '{"start": 20, "end": 30}'


def test_checkpoints_wait_until_all_pipelines_run_again() -> None:
    world = running("a", "b", checkpoints=True)
    first = complete(world)
    pending = trigger(world)
    sent = fail(world, "a")
    notice = world.one(commands.NotifyCheckpoint, sent)
    assert (notice.checkpoint_id, notice.completed) == (pending, False)
    assert set(notice.attempt_ids) >= {e.attempt_id for e in of_pipeline(world, "b")}
    history = world.core.job.checkpoints.history
    assert "are being restarted" in history[-1].failure
    assert world.of(commands.TriggerCheckpoint, world.pass_time(50.0)) == []
    run(world, "a")
    assert complete(world) == pending + 1
    assert first < pending


def test_a_pipeline_waits_until_it_is_known_which_checkpoint_is_the_latest() -> None:
    world = running("a", "b", checkpoints=True)
    acknowledge(world, checkpoint_id := trigger(world))
    fail(world, "a")
    assert world.of(commands.DeployTasks, world.pass_time(30.0)) == []
    sent = world.post(events.CheckpointStored(checkpoint_id=checkpoint_id))
    assert all(task.restored is not None for task in world.one(commands.DeployTasks, sent).tasks)


def stop(world: World, *, drains: bool) -> list[commands.Command]:
    return world.post(
        events.CheckpointRequested(
            request="r", savepoint_path="/s/1", stops=True, drains=drains, full=False
        )
    )


@pytest.mark.parametrize("moment", ["collecting", "storing", "complete", "draining"])
def test_a_failure_while_the_job_is_being_stopped_restarts_all_of_it(moment: str) -> None:
    """Tasks of other pipelines have ended or will: invariant 12."""
    world = running("a", "b", checkpoints=True)
    sent = stop(world, drains=moment == "draining")
    if moment != "draining":
        checkpoint_id = world.one(commands.TriggerCheckpoint, sent).checkpoint_id
    if moment in ("storing", "complete"):
        acknowledge(world, checkpoint_id)
    if moment == "complete":
        world.post(events.CheckpointStored(checkpoint_id=checkpoint_id))
        world.report(of_pipeline(world, "b"), S.FINISHED)
    fail(world, "a")
    world.report([e for e in world.executions("") if e.state is S.CANCELING], S.CANCELED)
    if moment == "storing":
        world.post(events.CheckpointStored(checkpoint_id=checkpoint_id))
    world.pass_time(1.0)
    assert [(e.attempt, e.state) for e in world.executions()] == [(1, S.DEPLOYING)] * 4


# ---- each task by itself


def test_individual_tasks_are_restarted_without_their_neighbours() -> None:
    world = World(job(vertex("a", 3, coordinator=SEQUENCE)), settings(failover=Failover.INDIVIDUAL))
    world.run(("te-1", 3))
    first, second, third = world.executions()

    def ask_split(execution: Execution, received: int = 0) -> object:
        sent = world.post(
            events.OperatorMessageReceived(
                task_executor_id=TaskExecutorId("te-1"),
                operator_id=operator_id("a"),
                attempt_id=execution.attempt_id,
                message=SplitRequested(received=received),
            )
        )
        return world.one(commands.SendOperatorMessage, sent).message

    ask_split(first)
    asked = ask_split(second)
    world.report([third], S.FINISHED)
    world.report([second], S.FAILED, error=BOOM)
    world.pass_time(1.0)
    assert [(e.attempt, e.state) for e in world.executions()] == [
        (0, S.RUNNING),
        (1, S.DEPLOYING),
        (0, S.FINISHED),
    ]
    again = world.executions()[1]
    world.report([again], S.RUNNING)
    assert ask_split(again) == asked, "it starts from the beginning"


@pytest.mark.parametrize(
    ("graph", "checkpoints", "why"),
    [
        (job(vertex("a", 1), vertex("b", 1)), False, "'b' reads the output of 'a'"),
        (job(vertex("a", 1)), True, "execution.checkpointing.interval is set"),
        (job(vertex("a", 1, coordinator=("collect", {}))), False, "'a' collects"),
    ],
)
def test_individual_restarts_are_refused_where_tasks_need_each_other(
    graph: JobGraph, checkpoints: bool, why: str
) -> None:
    world = World(graph, settings(checkpoints=checkpoints, failover=Failover.INDIVIDUAL))
    world.start()
    assert world.core.graph.status is JobStatus.FAILED
    summary = world.core.exceptions.newest_first()[0].summary
    assert why in summary
    assert "jobmanager.execution.failover-strategy: individual" in summary
