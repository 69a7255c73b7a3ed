"""Stories of one job: events in, commands out, then state."""

from __future__ import annotations

from dataclasses import replace

import pytest

from firesteel.common.file_parts import ListedFile
from firesteel.common.ids import TaskExecutorId
from firesteel.common.operator_messages import (
    ChunkAcknowledged,
    ChunkCollected,
    NoSplitYet,
    Resend,
    SplitAssigned,
    SplitRequested,
)
from firesteel.common.resources import UNKNOWN
from firesteel.common.states import ExecutionState, JobStatus
from firesteel.errors import ErrorInfo
from jobmaster.core import commands, events
from jobmaster.core.execution_graph import Execution
from jobmaster.core.failover.restart_strategy import FixedDelay
from jobmaster.core.job_context import MAX_WARNINGS
from jobmaster.core.settings import JobSettings
from jobmaster.core.slots.slot import Requirement
from jobmaster.core.task_executors import PROCESS_ENDED, REASON_PATIENCE_S
from jobmaster.details import job_details
from tests.job_master import World, job, offer, operator_id, vertex

S = ExecutionState
RESTART = JobSettings(restart=FixedDelay(attempts=2, delay_s=1.0))


def two_by_two(settings: JobSettings | None = None) -> World:
    return World(job(vertex("a", 2), vertex("b", 2)), settings)


def states(world: World) -> list[ExecutionState]:
    return [execution.state for execution in world.executions()]


def status(world: World) -> JobStatus:
    return world.core.graph.status


# ---- the good way


def test_start_requests_slots() -> None:
    world = two_by_two()
    sent = world.start()
    declared = world.one(commands.DeclareRequirements, sent)
    assert declared.requirements == (Requirement(profile=UNKNOWN, count=2),)
    assert status(world) is JobStatus.RUNNING
    assert states(world) == [S.SCHEDULED] * 4


def test_analysis_waits_for_all_slots_and_deployment_for_the_analysis() -> None:
    world = two_by_two()
    world.start()
    world.give_slots("te-1", 1)
    assert world.of(commands.AnalyzeJob) == []
    (second,) = world.give_slots("te-2", 1)
    request = world.one(commands.AnalyzeJob)
    assert request.task_executor_id == "te-1"
    assert world.of(commands.DeployTasks) == []
    assert second.allocation_id in world.core.pool.slots
    world.analyze()
    assert states(world) == [S.DEPLOYING] * 4


def test_one_command_deploys_all_tasks_of_a_task_executor() -> None:
    world = two_by_two()
    world.start()
    world.give_slots("te-1", 1)
    world.give_slots("te-2", 1)
    deployed = world.of(commands.DeployTasks, world.analyze())
    assert [command.task_executor_id for command in deployed] == ["te-1", "te-2"]
    assert [(task.subtask, task.attempt) for task in deployed[0].tasks] == [(0, 0), (0, 0)]
    (locations,) = deployed[0].locations
    assert deployed[1].locations[0] is locations
    assert list(locations.address_index) == [0, 1]
    assert deployed[0].schemas[commands.OutputOf(operator_id("a"))] == b"schema of a"


def test_a_job_finishes_and_gives_everything_back() -> None:
    world = two_by_two()
    world.run(("te-1", 2))
    sent = world.report(world.executions(), S.FINISHED)
    assert status(world) is JobStatus.FINISHED
    kinds = [
        type(command)
        for command in sent
        if not isinstance(command, (commands.Log, commands.ReportProgress))
    ]
    assert kinds == [
        commands.DeclareRequirements,
        commands.FreeSlots,
        commands.ReportStatus,
        commands.DismissTaskExecutor,
    ]
    assert world.one(commands.DeclareRequirements, sent).requirements == ()
    assert len(world.one(commands.FreeSlots, sent).allocation_ids) == 2
    assert world.of(commands.Exit) == []
    world.post(events.TerminalStatusStored())
    assert world.of(commands.Exit)


def test_a_slot_whose_tasks_have_finished_is_returned_after_a_while() -> None:
    world = World(job(vertex("a", 1), vertex("b", 2)), JobSettings(slot_idle_timeout_s=50.0))
    world.run(("te-1", 2))
    world.report(world.executions("b")[1:], S.FINISHED)
    world.post(events.TaskExecutorSeen(task_executor_id=TaskExecutorId("te-1")))
    assert world.of(commands.FreeSlots) == []
    for _ in range(6):
        sent = world.pass_time(10.0)
        world.post(events.TaskExecutorSeen(task_executor_id=TaskExecutorId("te-1")))
        if world.of(commands.FreeSlots, sent):
            break
    declared, freed = (
        c for c in sent if isinstance(c, (commands.DeclareRequirements, commands.FreeSlots))
    )
    assert isinstance(declared, commands.DeclareRequirements)  # lowered first
    assert declared.requirements == (Requirement(profile=UNKNOWN, count=1),)
    assert isinstance(freed, commands.FreeSlots)
    assert freed.cause == "idle"


def test_late_and_doubled_reports_change_nothing() -> None:
    world = two_by_two()
    world.run(("te-1", 2))
    world.report(world.executions(), S.INITIALIZING, S.RUNNING)
    assert states(world) == [S.RUNNING] * 4
    world.report(world.executions("a"), S.FINISHED, S.RUNNING, S.FINISHED)
    assert states(world) == [S.FINISHED, S.FINISHED, S.RUNNING, S.RUNNING]


def test_a_finish_seen_without_the_reports_before_it_counts() -> None:
    world = two_by_two()
    world.start()
    world.give_slots("te-1", 2)
    world.analyze()
    world.report(world.executions(), S.FINISHED)
    assert status(world) is JobStatus.FINISHED


# ---- slots that do not come


def test_a_job_without_slots_fails_and_says_how_many_are_missing_and_why() -> None:
    world = World(job(vertex("a", 3)), JobSettings(slot_request_timeout_s=5.0))
    world.start()
    world.give_slots("te-1", 1)
    world.post(
        events.ResourcesShort(
            sequence=1, missing=2, growing=0, explanation="1 slot exists; no driver can add more"
        )
    )
    world.now += 3.0
    assert world.core.waiting_for(world.now).startswith("2 more slots (for 3 s)")
    world.pass_time(2.0)
    assert status(world) is JobStatus.FAILED
    (error,) = world.core.exceptions.newest_first()
    assert "2 of the 3 slots" in error.summary
    assert "1 slot exists; no driver can add more" in error.summary
    assert world.core.pool.slots == {}


def test_a_surplus_slot_is_rejected() -> None:
    world = two_by_two()
    world.start()
    world.give_slots("te-1", 3)
    assert len(world.of(commands.AnswerSlots)[-1].rejected) == 1


def test_requirements_are_declared_again_to_a_reconnected_resource_manager() -> None:
    world = two_by_two()
    world.start()
    declared = world.one(
        commands.DeclareRequirements, world.post(events.ResourceManagerConnected())
    )
    assert declared.sequence == 2
    assert declared.requirements == (Requirement(profile=UNKNOWN, count=2),)


def test_a_slot_lost_before_anything_runs_is_awaited_again() -> None:
    world = two_by_two()
    world.start()
    (slot,) = world.give_slots("te-1", 1)
    world.post(
        events.SlotLost(
            task_executor_id=TaskExecutorId("te-1"),
            allocation_id=slot.allocation_id,
            error=ErrorInfo(summary="killed"),
        )
    )
    assert status(world) is JobStatus.RUNNING
    assert world.core.pool.pending_count == 2


# ---- bad input


def test_a_source_path_without_a_match_fails_the_job_before_it_runs() -> None:
    world = World(job(vertex("src", 1, coordinator=("file-source", {"paths": ["/no/*.csv"]}))))
    listing = world.one(commands.ListPaths, world.start())
    assert listing.paths == ("/no/*.csv",)
    world.give_slots("te-1", 1)
    assert world.of(commands.AnalyzeJob) == []
    world.post(
        events.PathsMissing(
            operator_id=listing.operator_id, problem="source path '/no/*.csv' matches no file"
        )
    )
    assert status(world) is JobStatus.FAILED
    assert "/no/*.csv" in world.core.exceptions.newest_first()[0].summary
    assert world.of(commands.DeployTasks) == []


def test_a_watched_directory_is_listed_again_and_again_until_it_vanishes() -> None:
    world = World(
        job(vertex("src", 1, coordinator=("file-source", {"paths": ["/in"], "watch_s": 1})))
    )
    listing = world.one(commands.ListPaths, world.start())
    assert listing.watched
    world.give_slots("te-1", 1)
    world.post(events.PathsListed(operator_id=listing.operator_id, files=()))
    world.analyze()
    (execution,) = world.executions()
    world.report([execution], ExecutionState.INITIALIZING, ExecutionState.RUNNING)
    ask = events.OperatorMessageReceived(
        task_executor_id=TaskExecutorId("te-1"),
        operator_id=listing.operator_id,
        attempt_id=execution.attempt_id,
        message=SplitRequested(received=0),
    )
    assert world.one(commands.SendOperatorMessage, world.post(ask)).message == NoSplitYet()
    assert world.one(commands.ListPaths, world.pass_time(1.0)) == listing
    assert world.of(commands.ListPaths, world.pass_time(5.0)) == [], (
        "not again before the answer has come"
    )
    found = world.post(
        events.PathsListed(operator_id=listing.operator_id, files=(ListedFile("/in/a", 1, 2),))
    )
    sent = world.one(commands.SendOperatorMessage, found)
    assert sent.attempt_id == execution.attempt_id
    assert sent.message == SplitAssigned(number=0, split_json='{"parts":[["/in/a",1,2]]}')
    world.one(commands.ListPaths, world.pass_time(1.0))
    world.post(
        events.PathsMissing(
            operator_id=listing.operator_id, problem="the directory '/in' does not exist"
        )
    )
    assert status(world) is JobStatus.FAILING
    assert "/in" in world.core.exceptions.newest_first()[0].summary


def test_skipped_paths_are_logged_and_shown_once() -> None:
    world = World(
        job(vertex("src", 1, coordinator=("file-source", {"paths": ["/in"], "watch_s": 1})))
    )
    listing = world.one(commands.ListPaths, world.start())
    listed = events.PathsListed(
        operator_id=listing.operator_id, files=(), skipped=("/in/a is a named pipe (FIFO)",)
    )
    posted = world.post(listed)
    told = world.one(commands.Log, posted).text
    assert world.of(commands.ReportProgress, posted), "for the next JobMaster"
    assert "/in/a is a named pipe (FIFO); it is skipped" in told
    assert world.of(commands.Log, world.post(listed)) == []
    assert job_details(world.core, {}, world.now).warnings == [told]
    many = tuple(f"/in/{number} is a socket" for number in range(2 * MAX_WARNINGS))
    world.post(replace(listed, skipped=many))
    assert len(world.core.job.warnings) == MAX_WARNINGS + 1
    assert "there are more warnings" in list(world.core.job.warnings)[-1]


def test_a_plan_that_cannot_run_fails_the_job_without_a_restart() -> None:
    world = two_by_two(RESTART)
    world.start()
    world.give_slots("te-1", 2)
    world.post(
        events.AnalysisFailed(
            task_executor_id=TaskExecutorId("te-1"), error=ErrorInfo(summary="no column `x`")
        )
    )
    assert status(world) is JobStatus.FAILED
    assert world.core.exceptions.newest_first()[0].summary == "no column `x`"


def test_a_graph_that_cannot_be_expanded_is_a_failed_job() -> None:
    world = World(job())
    world.start()
    assert status(world) is JobStatus.FAILED
    assert "no vertices" in world.core.exceptions.newest_first()[0].summary


# ---- failures


def test_a_failed_task_fails_the_job_after_all_others_were_cancelled() -> None:
    world = two_by_two()
    world.run(("te-1", 2))
    first, *others = world.executions()
    sent = world.report(
        [first], S.FAILED, error=ErrorInfo(summary="ValueError: x", user_traceback="Traceback ...")
    )
    assert status(world) is JobStatus.FAILING
    assert len(world.one(commands.CancelTasks, sent).attempt_ids) == 3
    world.report(others, S.CANCELED)
    assert status(world) is JobStatus.FAILED
    (error,) = world.core.exceptions.newest_first()
    assert error.user_traceback == "Traceback ..."
    assert error.task_name == "a (1/2)#0"
    assert "te-1" in error.location


def test_a_reason_that_arrives_late_completes_the_error() -> None:
    world = two_by_two(RESTART)
    world.run(("te-1", 2))
    lost = TaskExecutorId("te-1")
    world.post(events.TaskExecutorLost(task_executor_id=lost, cause=PROCESS_ENDED))
    version = world.core.exceptions.version
    other = TaskExecutorId("te-2")
    world.post(events.LossExplained(task_executor_id=other, cause="it was evicted"))
    assert world.core.exceptions.version == version
    sent = world.post(events.LossExplained(task_executor_id=lost, cause="its pod was OOMKilled"))
    assert world.one(commands.ReportStatus, sent)
    assert world.core.exceptions.version > version
    expected = f"TaskExecutor te-1 is lost: {PROCESS_ENDED}; its pod was OOMKilled"
    (error,) = world.core.exceptions.newest_first()
    assert error.summary == expected
    world.post(events.LossExplained(task_executor_id=lost, log="The last lines"))
    expected += "\nThe last lines"
    assert world.core.exceptions.newest_first()[0].summary == expected
    attempts = [v.attempts[0].error for v in world.core.graph.execution_vertices()]
    assert {error.summary for error in attempts if error is not None} == {expected}


def test_follow_ups_do_not_bury_the_cause() -> None:
    world = two_by_two()
    world.run(("te-1", 2))
    producer, other, consumer, last = world.executions()
    first = ErrorInfo(summary="the input is lost", consequence=True)
    world.report([consumer], S.FAILED, error=first)
    cause = ErrorInfo(summary="my PartitionFailed: the producer failed")
    world.report([producer], S.FAILED, error=cause)
    another = ErrorInfo(summary="another input is lost", consequence=True)
    world.report([last], S.FAILED, error=another)
    world.report([other], S.CANCELED)
    summaries = [error.summary for error in world.core.exceptions.newest_first()]
    assert summaries == [
        "my PartitionFailed: the producer failed",
        "the input is lost",
        "another input is lost",
    ]


def test_a_lost_slot_fails_its_tasks_with_both_its_reason_and_place() -> None:
    world = two_by_two()
    world.run(("te-1", 2))
    slot = world.executions()[0].slot
    assert slot is not None
    world.post(
        events.SlotLost(
            task_executor_id=slot.task_executor_id,
            allocation_id=slot.allocation_id,
            error=ErrorInfo(summary="2 GiB of 1 GiB"),
        )
    )
    assert sorted(state.name for state in states(world)) == [
        "CANCELING",
        "CANCELING",
        "FAILED",
        "FAILED",
    ]
    assert world.core.exceptions.newest_first()[0].summary == "2 GiB of 1 GiB"


def test_a_broken_stream_is_a_death_notice_after_three_seconds() -> None:
    world = two_by_two()
    world.run(("te-1", 1), ("te-2", 1))
    world.post(
        events.TaskExecutorDisconnected(task_executor_id=TaskExecutorId("te-1"), connection=1)
    )
    world.pass_time(2.9)
    assert status(world) is JobStatus.RUNNING
    world.pass_time(0.2)
    assert status(world) is JobStatus.FAILING
    assert "te-1" in world.core.exceptions.newest_first()[0].summary


def test_a_broken_stream_of_an_ended_process_is_a_death_notice_after_a_second() -> None:
    """The ResourceManager may know the reason."""
    world = two_by_two()
    world.run(("te-1", 1), ("te-2", 1))
    [dead] = world.of(commands.ProbeTaskExecutor, world.disconnect("te-1"))
    assert dead.address == "te-1:1"
    gone = events.TaskExecutorGone(
        task_executor_id=dead.task_executor_id, connection=dead.connection
    )
    assert world.of(commands.ReportTaskExecutorLost, world.post(gone)) == []
    told = world.one(commands.ReportTaskExecutorLost, world.pass_time(REASON_PATIENCE_S))
    assert (told.task_executor_id, told.cause) == ("te-1", PROCESS_ENDED)
    assert status(world) is JobStatus.FAILING


def test_a_task_executor_that_is_back_before_the_probe_is_not_dead() -> None:
    world = two_by_two()
    world.start()
    slots = world.give_slots("te-1", 2)
    world.analyze()
    world.report(world.executions(), S.RUNNING)
    [probe] = world.of(commands.ProbeTaskExecutor, world.disconnect("te-1"))
    world.connect(
        "te-1", slots, [events.TaskUpdate(e.attempt_id, S.RUNNING) for e in world.executions()]
    )
    world.post(
        events.TaskExecutorGone(
            task_executor_id=probe.task_executor_id, connection=probe.connection
        )
    )
    assert states(world) == [S.RUNNING] * 4


def test_a_task_executor_that_comes_back_in_time_loses_nothing() -> None:
    world = two_by_two()
    world.start()
    slots = world.give_slots("te-1", 2)
    world.analyze()
    world.report(world.executions(), S.RUNNING)
    world.post(
        events.TaskExecutorDisconnected(task_executor_id=TaskExecutorId("te-1"), connection=1)
    )
    world.pass_time(1.0)
    world.connect(
        "te-1", slots, [events.TaskUpdate(e.attempt_id, S.RUNNING) for e in world.executions()]
    )
    world.pass_time(5.0)
    assert states(world) == [S.RUNNING] * 4


def test_what_a_returning_task_executor_no_longer_has_is_lost() -> None:
    world = two_by_two()
    world.start()
    slots = world.give_slots("te-1", 2)
    world.analyze()
    world.report(world.executions(), S.RUNNING)
    world.post(
        events.TaskExecutorDisconnected(task_executor_id=TaskExecutorId("te-1"), connection=1)
    )
    world.connect(
        "te-1", slots, [events.TaskUpdate(e.attempt_id, S.RUNNING) for e in world.executions()[1:]]
    )
    assert states(world)[0] is S.FAILED
    assert "came back without the task" in world.core.exceptions.newest_first()[0].summary


def test_a_deployment_lost_with_the_stream_is_said_again() -> None:
    world = two_by_two()
    world.start()
    slots = world.give_slots("te-1", 2)
    world.analyze()
    world.post(
        events.TaskExecutorDisconnected(task_executor_id=TaskExecutorId("te-1"), connection=1)
    )
    again = world.one(commands.DeployTasks, world.connect("te-1", slots))
    assert [task.attempt_id for task in again.tasks] == [e.attempt_id for e in slot_order(world)]
    assert states(world) == [S.DEPLOYING] * 4


def slot_order(world: World) -> list[Execution]:
    return sorted(world.executions(), key=lambda execution: execution.vertex.subtask)


def test_a_failure_reported_by_a_hello_waits_for_its_reason() -> None:
    world = two_by_two()
    world.start()
    slots = world.give_slots("te-1", 2)
    world.analyze()
    world.report(world.executions(), S.RUNNING)
    first, *others = world.executions()
    world.post(
        events.TaskExecutorDisconnected(task_executor_id=TaskExecutorId("te-1"), connection=1)
    )
    held = [
        events.TaskUpdate(first.attempt_id, S.FAILED),
        *(events.TaskUpdate(e.attempt_id, S.RUNNING) for e in others),
    ]
    sent = world.connect("te-1", slots, held)
    assert world.one(commands.CancelTasks, sent).attempt_ids == (first.attempt_id,)
    world.report([first], S.FAILED, error=ErrorInfo(summary="the reason"))
    assert world.core.exceptions.newest_first()[0].summary == "the reason"


def test_a_silent_task_executor_is_dead_after_the_heartbeat_timeout() -> None:
    world = two_by_two()
    world.run(("te-1", 2))
    world.pass_time(19.0)
    assert status(world) is JobStatus.RUNNING
    world.pass_time(3.0)
    assert status(world) is JobStatus.FAILED  # no task is left to cancel
    assert world.one(commands.ReportTaskExecutorLost).task_executor_id == "te-1"
    assert "no heartbeat" in world.core.exceptions.newest_first()[0].summary


def test_the_resource_managers_verdict_counts_immediately() -> None:
    world = two_by_two()
    world.run(("te-1", 1), ("te-2", 1))
    world.post(
        events.TaskExecutorLost(task_executor_id=TaskExecutorId("te-2"), cause="its process ended")
    )
    assert status(world) is JobStatus.FAILING
    assert states(world) == [S.CANCELING, S.FAILED, S.CANCELING, S.FAILED]
    assert world.of(commands.ReportTaskExecutorLost) == []  # it knows


# ---- restarts


def fail_all(world: World) -> None:
    first, *others = world.executions()
    world.report([first], S.FAILED, error=ErrorInfo(summary="boom"))
    world.report(others, S.CANCELED)


def test_a_restarted_job_passes_restarting_and_created_in_its_old_slots() -> None:
    world = two_by_two(RESTART)
    world.run(("te-1", 2))
    before = [e.slot.allocation_id for e in world.executions() if e.slot]
    fail_all(world)
    assert status(world) is JobStatus.RESTARTING
    assert world.of(commands.FreeSlots) == []
    sent = world.pass_time(1.0)
    assert [s.name for s, _ in world.core.graph.timestamps][-3:] == [
        "RESTARTING",
        "CREATED",
        "RUNNING",
    ]
    tasks = [task for command in world.of(commands.DeployTasks, sent) for task in command.tasks]
    assert [task.attempt for task in tasks] == [1] * 4
    assert [e.slot.allocation_id for e in world.executions() if e.slot] == before
    assert world.core.restarts == 1


def test_attempts_are_used_up_by_failures() -> None:
    world = two_by_two(RESTART)
    world.run(("te-1", 2))
    for _ in range(2):
        fail_all(world)
        world.pass_time(1.0)
        world.report(world.executions(), S.RUNNING)
    fail_all(world)
    assert status(world) is JobStatus.FAILED
    assert [e.task_name for e in world.core.exceptions.newest_first()] == [
        "a (1/2)#2",
        "a (1/2)#1",
        "a (1/2)#0",
    ]


def test_no_attempt_is_used_up_while_there_is_no_slot() -> None:
    world = two_by_two(RESTART)
    world.run(("te-1", 2))
    world.post(events.TaskExecutorLost(task_executor_id=TaskExecutorId("te-1"), cause="gone"))
    for name in ("te-2", "te-3", "te-4"):  # each dies before it has brought all slots
        world.pass_time(5.0)
        assert status(world) is JobStatus.RESTARTING
        world.give_slots(name, 1)
        world.post(events.TaskExecutorLost(task_executor_id=TaskExecutorId(name), cause="gone"))
    world.give_slots("te-5", 2)
    assert status(world) is JobStatus.RUNNING
    assert states(world) == [S.DEPLOYING] * 4
    assert {e.attempt for e in world.executions()} == {1}
    assert world.core.restarts == 1


def test_a_message_of_a_prior_attempt_is_stale() -> None:
    world = two_by_two(RESTART)
    world.run(("te-1", 2))
    old = world.executions()
    fail_all(world)
    world.pass_time(1.0)
    world.report(old, S.FAILED)
    assert states(world) == [S.DEPLOYING] * 4
    assert world.core.stale_messages >= 4


# ---- cancel


@pytest.mark.parametrize(
    "moment", ["created", "waiting", "analysing", "deploying", "failing", "restarting"]
)
def test_a_job_can_be_cancelled_at_any_moment(moment: str) -> None:
    world = two_by_two(RESTART)
    if moment != "created":
        world.start()
    if moment not in ("created", "waiting"):
        world.give_slots("te-1", 2)
    if moment in ("deploying", "failing", "restarting"):
        world.analyze()
    if moment in ("failing", "restarting"):
        world.report(world.executions()[:1], S.FAILED, error=ErrorInfo(summary="boom"))
    if moment == "restarting":
        world.report(world.executions()[1:], S.CANCELED)
        assert status(world) is JobStatus.RESTARTING
    world.post(events.CancelRequested())
    world.post(events.CancelRequested())
    world.report([e for e in world.executions() if not e.terminal], S.CANCELED)
    assert status(world) is JobStatus.CANCELED
    assert world.core.pool.requirements() == ()
    assert all(e.terminal for e in world.executions())
    assert world.core.next_deadline() is None


def test_a_cancelled_task_whose_slot_dies_is_canceled() -> None:
    world = two_by_two()
    world.run(("te-1", 2))
    world.post(events.CancelRequested())
    world.post(events.TaskExecutorLost(task_executor_id=TaskExecutorId("te-1"), cause="gone"))
    assert status(world) is JobStatus.CANCELED


def test_task_executors_that_connect_after_the_end_are_dismissed() -> None:
    world = two_by_two()
    world.start()
    world.post(events.CancelRequested())
    assert status(world) is JobStatus.CANCELED
    assert world.of(commands.DismissTaskExecutor, world.connect("te-9", [offer(9)]))
    late = world.post(
        events.SlotsOffered(task_executor_id=TaskExecutorId("te-9"), slots=(offer(9),))
    )
    assert world.one(commands.AnswerSlots, late).rejected == (offer(9).allocation_id,)


def test_a_job_that_another_job_master_has_is_suspended() -> None:
    world = two_by_two()
    world.run(("te-1", 2))
    sent = world.post(events.Superseded())
    assert status(world) is JobStatus.SUSPENDED
    assert world.of(commands.DismissTaskExecutor, sent)
    assert isinstance(sent[-1], commands.Exit)


# ---- operators


def test_splits_go_to_live_attempts_that_request_them() -> None:
    world = World(
        job(
            vertex(
                "src", 2, coordinator=("sequence-source", {"start": 0, "end": 20, "split_rows": 10})
            )
        )
    )
    world.run(("te-1", 2))
    _, second = world.executions()

    def ask(execution: object) -> list[commands.Command]:
        return world.post(
            events.OperatorMessageReceived(
                task_executor_id=TaskExecutorId("te-1"),
                operator_id=operator_id("src"),
                attempt_id=execution.attempt_id,  # type: ignore[attr-defined]
                message=SplitRequested(received=0),
            )
        )

    answer = world.one(commands.SendOperatorMessage, ask(second))
    assert (answer.subtask, answer.message) == (
        1,
        SplitAssigned(number=0, split_json='{"start": 0, "end": 10}'),
    )
    world.report([second], S.FAILED)
    assert ask(second) == []
    assert world.core.stale_messages


def test_after_a_broken_stream_operators_resend_unanswered_messages() -> None:
    source = vertex(
        "src", 2, coordinator=("sequence-source", {"start": 0, "end": 20, "split_rows": 10})
    )
    world = World(job(source, vertex("sink", 2)))
    world.run(("te-1", 1), ("te-2", 1))
    here = [
        e for e in world.executions() if e.slot is not None and e.slot.task_executor_id == "te-1"
    ]
    held = [offer(0)]
    world.post(
        events.TaskExecutorDisconnected(task_executor_id=TaskExecutorId("te-1"), connection=1)
    )
    sent = world.connect("te-1", held, [events.TaskUpdate(e.attempt_id, S.RUNNING) for e in here])
    asked = world.of(commands.SendOperatorMessage, sent)
    assert [(a.operator_id, a.attempt_id, a.message) for a in asked] == [
        (
            operator_id("src"),
            next(e.attempt_id for e in here if e.vertex.job_vertex.vertex.name == "src"),
            Resend(),
        )
    ]


def test_collected_rows_are_written_then_acknowledged() -> None:
    world = World(job(vertex("sink", 1, coordinator=("collect", {}))))
    world.run(("te-1", 1))
    (sink,) = world.executions()
    sent = world.post(
        events.OperatorMessageReceived(
            task_executor_id=TaskExecutorId("te-1"),
            operator_id=operator_id("sink"),
            attempt_id=sink.attempt_id,
            message=ChunkCollected(sequence=0, ipc_stream=b"rows"),
        )
    )
    assert world.one(commands.SpoolChunk, sent).ipc_stream == b"rows"
    sent = world.post(
        events.ChunkNotSpooled(
            operator_id=operator_id("sink"),
            attempt_id=sink.attempt_id,
            sequence=0,
            problem="the disk is full",
        )
    )
    assert world.one(commands.SendOperatorMessage, sent).message == ChunkAcknowledged(
        sequence=0, error="the disk is full"
    )


# ---- stories and invariants


def test_the_core_shows_how_task_slot_and_job_reached_their_states() -> None:
    world = World(job(vertex("a", 1)), RESTART)
    world.run(("te-1", 1))
    (execution,) = world.executions()
    assert execution.slot is not None
    world.report([execution], S.FAILED, error=ErrorInfo(summary="boom"))
    task = world.core.story(execution.attempt_id)
    assert task[1].endswith(" by SCHEDULE")
    assert task[-1].endswith(" by FAIL: boom")
    slot = world.core.story(execution.slot.allocation_id)
    assert slot == [
        "accepted for subtasks 0 of group 'default' at 100.000",
        "released by subtasks 0 of group 'default' at 100.000",
    ]
    assert [step.split(" ")[0] for step in world.core.story("job")] == [
        "INITIALIZING",
        "CREATED",
        "RUNNING",
        "FAILING",
        "RESTARTING",
    ]
    assert "by FAIL: boom" in world.core.story("job")[3]


def test_a_broken_invariant_is_named_with_the_story_of_what_breaks_it() -> None:
    world = World(job(vertex("a", 1)))
    world.run(("te-1", 1))
    (execution,) = world.executions()
    assert execution.slot is not None
    world.core.validate()
    del world.core.pool.slots[execution.slot.allocation_id]
    with pytest.raises(AssertionError, match="a slot that is gone"):
        world.core.validate()


def test_rows_collected_before_a_restart_are_replaced() -> None:
    world = World(job(vertex("a", 1)), RESTART)
    assert world.one(commands.BeginResults, world.start()).restart == 0
    world.give_slots("te-1", 1)
    world.analyze()
    world.report(world.executions(), S.FAILED, error=ErrorInfo(summary="boom"))
    assert world.one(commands.BeginResults, world.pass_time(1.0)).restart == 1
