"""A running job gets a different parallelism."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest

from firesteel.common.checkpoints.messages import Snapshot
from firesteel.common.checkpoints.state import OperatorSnapshot
from firesteel.common.ids import TaskExecutorId
from firesteel.common.job_graph import JobGraph, Partitioner, Scaling
from firesteel.common.rescales import Outcome
from firesteel.common.states import ExecutionState, JobStatus
from firesteel.errors import ErrorInfo
from jobmaster.core import commands, events
from jobmaster.core.checkpoints.settings import CheckpointSettings
from jobmaster.core.failover.restart_strategy import FixedDelay
from jobmaster.core.parallelism import CannotRescale, planned
from jobmaster.core.rescale_history import RescaleHistory
from jobmaster.core.settings import JobSettings
from tests.job_master import World, job, vertex

S = ExecutionState
ONE = TaskExecutorId("te-1")
GRAPH = job(vertex("source", 2), vertex("sink", 2), partitioner=Partitioner.HASH)


def running(graph: JobGraph = GRAPH, *, slots: int = 2, **checkpoints: bool) -> World:
    """Without a restart strategy: a rescale must not count as a failure."""
    taken = CheckpointSettings(directory="/d", interval_s=10.0, **checkpoints)
    world = World(graph, JobSettings(checkpoints=taken, heartbeat_timeout_s=1e6))
    world.run((ONE, slots))
    return world


def rescale(
    world: World,
    parallelism: int = 0,
    by_vertex: Mapping[str, int] | None = None,
    timeout_s: float = 0.0,
) -> list[commands.Command]:
    return world.post(
        events.RescaleRequested(
            request="r",
            parallelism=parallelism,
            by_vertex=by_vertex or {},
            timeout_s=timeout_s,
        )
    )


def acknowledge(world: World) -> list[commands.Command]:
    """All tasks acknowledge the checkpoint that was triggered last."""
    trigger = world.of(commands.TriggerCheckpoint)[-1]
    for execution in world.executions():
        assert execution.slot is not None
        operator_id = execution.vertex.job_vertex.vertex.operators[0].operator_id
        snapshot = OperatorSnapshot(operator_id=operator_id, lists={"l": (b"x", b"y")})
        world.post(
            events.CheckpointAcknowledged(
                task_executor_id=execution.slot.task_executor_id,
                attempt_id=execution.attempt_id,
                checkpoint_id=trigger.checkpoint_id,
                snapshot=Snapshot(operators=(snapshot,)),
            )
        )
    return world.post(events.CheckpointStored(checkpoint_id=trigger.checkpoint_id))


def restarted(world: World) -> list[commands.Command]:
    """The tasks are cancelled, and the new ones are deployed. Returns the deployments."""
    live = [e for e in world.executions() if not e.terminal]
    sent = world.report(live, S.CANCELED)
    return [*sent, *world.pass_time(0.0)]


def run_all(world: World) -> list[commands.Command]:
    return world.report(world.executions(), S.INITIALIZING, S.RUNNING)


def answer(world: World) -> commands.AnswerRescale:
    return world.one(commands.AnswerRescale)


def required(world: World) -> int:
    declared = world.of(commands.DeclareRequirements)[-1]
    return sum(requirement.count for requirement in declared.requirements)


def sizes(world: World) -> list[int]:
    return [vertex.parallelism for vertex in world.core.graph.vertices]


def test_tasks_restart_once_slots_checkpoint_and_commit_are_there() -> None:
    world = running()
    rescale(world, 4)
    assert required(world) == 4
    assert not world.of(commands.TriggerCheckpoint)
    world.give_slots(ONE, 2)
    assert world.of(commands.TriggerCheckpoint)
    sent = acknowledge(world)
    store = world.one(commands.StoreParallelism, sent)
    assert set(store.by_vertex.values()) == {4} and store.version == 1
    assert not world.of(commands.CancelTasks), "nothing is stopped before it is stored"
    sent = world.post(events.ParallelismStored())
    assert world.of(commands.CancelTasks, sent)
    sent = restarted(world)
    kinds = [type(command) for command in sent]
    assert kinds.index(commands.UseParallelism) < kinds.index(commands.DeployTasks)
    deployed = [task for each in world.of(commands.DeployTasks, sent) for task in each.tasks]
    assert len(deployed) == 8 and {task.attempt for task in deployed} == {1}
    restored = [task.restored[0].lists["l"] for task in deployed if task.restored]
    assert sorted(sum(restored, ())) == [b"x"] * 4 + [b"y"] * 4, "dealt to twice the subtasks"
    assert not world.of(commands.AnswerRescale)
    run_all(world)
    assert not answer(world).problem and set(answer(world).after.values()) == {4}
    assert world.core.graph.status is JobStatus.RUNNING and sizes(world) == [4, 4]
    assert world.core.exceptions.newest_first() == []


def test_fewer_subtasks_release_their_slots_at_once() -> None:
    world = running(slots=2)
    rescale(world, 1)
    acknowledge(world)
    world.post(events.ParallelismStored())
    restarted(world)
    sent = run_all(world)
    assert len(world.one(commands.FreeSlots, sent).allocation_ids) == 1
    assert required(world) == 1 and sizes(world) == [1, 1]


def test_new_attempts_have_numbers_above_those_of_removed_subtasks() -> None:
    world = running(slots=2)
    for parallelism in (1, 2):
        rescale(world, parallelism)
        if parallelism == 2:
            world.give_slots(ONE, 1)
        acknowledge(world)
        world.post(events.ParallelismStored())
        restarted(world)
        run_all(world)
    assert {execution.attempt for execution in world.executions()} == {2}


def test_missing_slots_leave_the_job_as_it_is() -> None:
    world = running()
    rescale(world, 4, timeout_s=5.0)
    world.give_slots(ONE, 1)
    world.post(
        events.ResourcesShort(
            sequence=world.core.job.declared,
            missing=1,
            growing=False,
            explanation="no machine is free",
        )
    )
    sent = world.pass_time(5.0)
    assert "1 more slot did" in answer(world).problem
    assert "no machine is free" in answer(world).problem
    assert len(world.one(commands.FreeSlots, sent).allocation_ids) == 1
    assert required(world) == 2 and not world.of(commands.CancelTasks)


def test_a_failed_checkpoint_leaves_the_job_as_it_is() -> None:
    world = running()
    rescale(world, 1)
    trigger = world.one(commands.TriggerCheckpoint)
    first = world.executions()[0]
    world.post(
        events.CheckpointDeclined(
            task_executor_id=ONE,
            attempt_id=first.attempt_id,
            checkpoint_id=trigger.checkpoint_id,
            cause="the disk is full",
        )
    )
    assert "the disk is full" in answer(world).problem
    assert not world.of(commands.StoreParallelism) and sizes(world) == [2, 2]
    assert world.pass_time(10.0), "periodic checkpoints continue"


def test_a_refused_commit_leaves_the_job_as_it_is() -> None:
    world = running()
    rescale(world, 1)
    acknowledge(world)
    world.post(events.ParallelismNotStored(problem="the database is full"))
    assert "the database is full" in answer(world).problem
    assert not world.of(commands.CancelTasks)


def test_its_checkpoint_is_aligned_and_none_follows_it() -> None:
    world = running(unaligned=True)
    rescale(world, 1)
    trigger = world.one(commands.TriggerCheckpoint)
    assert not trigger.unaligned and trigger.aligned_timeout_ms is None
    acknowledge(world)
    world.pass_time(30.0)
    assert len(world.of(commands.TriggerCheckpoint)) == 1


def test_it_waits_for_the_checkpoint_under_way() -> None:
    world = running(unaligned=True)
    world.pass_time(10.0)
    periodic = world.one(commands.TriggerCheckpoint)
    assert periodic.unaligned
    rescale(world, 1)
    assert len(world.of(commands.TriggerCheckpoint)) == 1
    acknowledge(world)
    assert len(world.of(commands.TriggerCheckpoint)) == 2


def failing(world: World) -> list[commands.Command]:
    error = ErrorInfo(summary="the state is too large for one subtask")
    return world.report(world.executions()[:1], S.FAILED, error=error)


def test_a_failure_before_all_run_restores_the_old_parallelism() -> None:
    world = running()
    rescale(world, 1)
    acknowledge(world)
    world.post(events.ParallelismStored())
    restarted(world)
    failing(world)
    sent = restarted(world)
    store = world.one(commands.StoreParallelism, sent)
    assert store.must and set(store.by_vertex.values()) == {2} and store.version == 2
    assert not world.of(commands.DeployTasks, sent), "it is not stored yet"
    sent = [*world.post(events.ParallelismStored()), *world.pass_time(0.0)]
    assert "too large for one subtask" in answer(world).problem
    assert sizes(world) == [2, 2] and not world.of(commands.FreeSlots), "it takes its slots again"
    run_all(world)
    assert world.core.graph.status is JobStatus.RUNNING
    assert [f.summary for f in world.core.exceptions.newest_first()] == [
        "the state is too large for one subtask"
    ]
    failing(world)
    live = [execution for execution in world.executions() if not execution.terminal]
    world.report(live, S.CANCELED)
    assert world.core.graph.status is JobStatus.FAILED, "from then on, failures count"


def test_a_failure_while_it_is_being_stored_waits_for_the_outcome() -> None:
    taken = CheckpointSettings(directory="/d", interval_s=10.0)
    restart = FixedDelay(attempts=3, delay_s=0.0)
    world = World(GRAPH, JobSettings(checkpoints=taken, restart=restart, heartbeat_timeout_s=1e6))
    world.run((ONE, 2))
    rescale(world, 1)
    acknowledge(world)
    failing(world)
    sent = restarted(world)
    assert not world.of(commands.DeployTasks, sent)
    sent = [*world.post(events.ParallelismStored()), *world.pass_time(0.0)]
    assert len(world.one(commands.DeployTasks, sent).tasks) == 2
    run_all(world)
    assert not answer(world).problem and sizes(world) == [1, 1]


def test_a_cancelled_job_is_not_rescaled() -> None:
    world = running()
    rescale(world, 1)
    acknowledge(world)
    world.post(events.CancelRequested())
    live = [execution for execution in world.executions() if not execution.terminal]
    world.report(live, S.CANCELED)
    assert world.core.graph.status is JobStatus.CANCELED
    assert "CANCELED" in answer(world).problem
    world.post(events.ParallelismStored())


def test_a_drain_has_precedence_until_the_parallelism_is_stored() -> None:
    world = running()
    rescale(world, 4)
    world.post(events.VacateRequested(task_executor_id=ONE, forced=False))
    assert "drained" in answer(world).problem
    assert required(world) == 4, "as many slots elsewhere"


def test_requests_that_cannot_be_carried_out_say_why() -> None:
    world = running()
    rescale(world, 200)
    assert answer(world).invalid and "max parallelism 128" in answer(world).problem
    without = World(GRAPH, JobSettings(heartbeat_timeout_s=1e6))
    without.run((ONE, 2))
    rescale(without, 1)
    assert "takes no checkpoints" in answer(without).problem
    waiting = World(
        GRAPH, JobSettings(checkpoints=CheckpointSettings(directory="/d", interval_s=10.0))
    )
    waiting.start()
    rescale(waiting, 1)
    assert "only a running job" in answer(waiting).problem


def test_a_request_during_a_change_is_refused_and_the_change_continues() -> None:
    world = running()
    rescale(world, 1)
    for dry_run in (False, True):
        world.post(events.RescaleRequested(request="s", parallelism=2, dry_run=dry_run))
        refused = world.of(commands.AnswerRescale)[-1]
        assert refused.request == "s" and "is being changed already" in refused.problem
    acknowledge(world)
    world.post(events.ParallelismStored())
    restarted(world)
    run_all(world)
    assert sizes(world) == [1, 1] and len(world.core.job.rescales.records) == 1


def test_a_finished_job_is_not_rescaled() -> None:
    world = running()
    world.report(world.executions(), S.FINISHED)
    assert world.core.graph.status is JobStatus.FINISHED
    rescale(world, 1)
    assert "FINISHED" in answer(world).problem


def test_a_lower_bound_above_its_upper_bound_is_refused() -> None:
    world = running()
    world.post(
        events.RescaleRequested(request="r", by_vertex={"sink": 2}, lower_bounds={"sink": 3})
    )
    assert answer(world).invalid and "has the lower bound 3, above" in answer(world).problem


def test_the_same_parallelism_restarts_nothing() -> None:
    world = running()
    rescale(world, 2)
    assert not answer(world).problem and not world.of(commands.TriggerCheckpoint)


# ---- which vertices change


def chain(*parallelism: Scaling, partitioner: Partitioner = Partitioner.REBALANCE) -> JobGraph:
    vertices = [
        replace(vertex(f"v{number}", 1), scaling=scaling)
        for number, scaling in enumerate(parallelism)
    ]
    return job(*vertices, partitioner=partitioner)


def plan(graph: JobGraph, parallelism: int = 0, **by_vertex: int) -> list[int]:
    return list(planned(graph, parallelism, by_vertex).values())


def test_the_parallelism_applies_where_the_program_sets_none() -> None:
    graph = chain(Scaling.FIXED, Scaling.DEFAULT, Scaling.CHOSEN)
    assert plan(graph, 4) == [1, 4, 1]
    assert plan(graph, 4, v2=3) == [1, 4, 3]
    assert plan(graph, v1=2) == [1, 2, 1]


def test_vertices_with_forward_exchanges_change_together() -> None:
    graph = chain(*[Scaling.DEFAULT] * 2, partitioner=Partitioner.FORWARD)
    assert plan(graph, v1=2) == [2, 2]
    with pytest.raises(CannotRescale, match="the same parallelism"):
        plan(graph, v0=2, v1=3)
    graph = chain(Scaling.FIXED, Scaling.DEFAULT, partitioner=Partitioner.FORWARD)
    with pytest.raises(CannotRescale, match="rebalance"):
        plan(graph, v1=2)


def test_co_located_vertices_change_together() -> None:
    first, second = (vertex(name, 1, co_location_group="g") for name in ("a", "b"))
    graph = job(first, vertex("between", 1), second)
    assert plan(graph, a=3) == [3, 1, 3]
    with pytest.raises(CannotRescale, match="co-located"):
        plan(graph, a=3, b=2)


@pytest.mark.parametrize(
    ("request_", "problem"),
    [
        ({"by_vertex": {"sinc": 2}}, "did you mean 'sink'"),
        ({"by_vertex": {"sink": 0}}, "at least 1"),
        ({"parallelism": -1}, "at least 1"),
        ({"by_vertex": {"sink": 129}}, "max parallelism 128"),
    ],
)
def test_mistakes_are_explained(request_: dict[str, object], problem: str) -> None:
    arguments = {"parallelism": 0, "by_vertex": {}, **request_}
    with pytest.raises(CannotRescale, match=problem):
        planned(GRAPH, **arguments)  # type: ignore[arg-type]


def test_what_runs_once_cannot_change() -> None:
    with pytest.raises(CannotRescale, match="always has parallelism 1"):
        plan(chain(Scaling.FIXED, Scaling.DEFAULT), v0=2)
    with pytest.raises(CannotRescale, match="batch"):
        planned(replace(GRAPH, batch=True), 2, {})


# ---- dry runs, and the history


def test_a_dry_run_says_what_would_change() -> None:
    world = running()
    declared = len(world.of(commands.DeclareRequirements))
    world.post(events.RescaleRequested(request="r", parallelism=4, dry_run=True))
    said = answer(world)
    assert set(said.after.values()) == {4} and (said.tasks, said.missing_slots) == (4, 2)
    assert len(world.of(commands.DeclareRequirements)) == declared
    world.post(events.RescaleRequested(request="s", by_vertex={"source": 500}, dry_run=True))
    assert "max parallelism 128" in world.of(commands.AnswerRescale)[-1].problem
    assert not world.core.job.rescales.records


def test_the_history_has_stages_and_outcomes() -> None:
    world = running()
    world.post(events.RescaleRequested(request="r", parallelism=4, timeout_s=5.0))
    world.pass_time(5.0)
    world.post(events.RescaleRequested(request="s", parallelism=1, reason="autoscaler: idle"))
    acknowledge(world)
    world.post(events.ParallelismStored())
    restarted(world)
    run_all(world)
    missing, done = world.core.job.rescales.records
    assert (missing.number, missing.outcome) == (1, Outcome.EXCEPTION_OCCURRED)
    assert "did not become available" in missing.problem
    assert missing.end_ms - missing.start_ms == 5000
    assert (done.number, done.outcome) == (2, Outcome.SUCCEEDED)
    assert done.rescale_id == "s" and done.reason == "autoscaler: idle"
    assert [stage.name for stage in done.stages] == ["SLOTS", "CHECKPOINT", "STORING", "RESTARTING"]
    assert set(done.changes.values()) == {(2, 1)}


def test_the_next_job_master_closes_the_record_under_way() -> None:
    world = running()
    rescale(world, 1)
    acknowledge(world)
    records = world.core.job.rescales.records
    assert records[-1].outcome is Outcome.IN_PROGRESS
    two, one = records[-1].before, records[-1].after
    assert RescaleHistory(records, one, 9).records[-1].outcome is Outcome.SUCCEEDED
    unchanged = RescaleHistory(records, two, 9).records[-1]
    assert unchanged.outcome is Outcome.EXCEPTION_OCCURRED and unchanged.end_ms == 9


def test_a_cancellation_ends_the_record() -> None:
    world = running()
    rescale(world, 4)
    world.post(events.CancelRequested())
    (record,) = world.core.job.rescales.records
    assert record.outcome is Outcome.JOB_CANCELING
