from __future__ import annotations

from dataclasses import replace

from firesteel.common.ids import Epoch, JobId
from firesteel.common.job_graph import Blob, BlobKind
from firesteel.common.states import ExecutionState as E
from taskexecutor.core import commands, events
from taskexecutor.core.slots import SlotState as S
from tests.unit.taskexecutor.slot_world import DEFAULT, JM, JOB, MIB, SPARK, World

BLOB = Blob(hash="0" * 32, name="u.py", kind=BlobKind.FILE, size_bytes=1)


# -- warm processes


def test_slots_get_their_processes_at_the_start_two_at_a_time():
    world = World(slots=3)
    assert len(world.all(commands.StartProcess)) == 2
    world.ready(0)
    assert world.only(commands.StartProcess).slot_index == 2


def test_a_slot_is_reported_warm_from_when_its_process_is_ready_until_it_is_gone():
    def warm() -> list[bool]:
        return [status.warm for status in world.only(commands.ReportSlots).slots]

    world = World(slots=2)
    assert warm() == [False, False]
    world.ready(1)
    assert warm() == [False, True]
    world.ready(0)
    assert warm() == [True, True]
    world.request(index=0)
    world.connect()  # now it serves a job
    assert world.core.table.statuses()[0].warm
    world.die(0)
    assert warm() == [False, True]


def test_a_slot_that_a_job_waits_for_is_started_before_free_ones():
    world = World(slots=4)
    world.request(index=3)
    world.ready(0)
    assert world.only(commands.StartProcess).slot_index == 3


def test_free_slots_warm_up_in_fewer_at_once_than_slots_that_a_job_waits_for():
    world = World(slots=3, max_warming=1)
    assert [start.slot_index for start in world.all(commands.StartProcess)] == [0]
    world.request("a", index=2)
    assert world.only(commands.StartProcess).slot_index == 2
    world.request("b", index=1)
    assert world.none(commands.StartProcess), "no more than max_starting in all"
    assert [
        start.slot_index for start in world.ready(0) if isinstance(start, commands.StartProcess)
    ] == [1]


def test_free_slots_let_a_jobs_first_seconds_pass():
    world = World(slots=3, max_warming=1, quiet_s=10.0)
    world.request("a", index=0)
    world.connect()
    world.ready(0)
    assert world.none(commands.StartProcess)
    world.request("b", index=2)
    assert world.only(commands.StartProcess).slot_index == 2, "but not slots that a job waits for"
    world.ready(2)
    assert not [c for c in world.pass_time(9.9) if isinstance(c, commands.StartProcess)]
    assert [c.slot_index for c in world.pass_time(0.2) if isinstance(c, commands.StartProcess)] == [
        1
    ]


def test_a_process_that_cannot_start_is_tried_again_with_growing_pauses():
    world = World(slots=1)
    world.die(cause="exit code 1; the end of log: no java")
    assert world.none(commands.StartProcess)
    assert len([c for c in world.pass_time(1.0) if isinstance(c, commands.StartProcess)]) == 1
    world.die(cause="exit code 1")
    assert world.pass_time(1.9) == []
    assert isinstance(world.pass_time(0.2)[0], commands.StartProcess)


def test_why_a_process_cannot_start_is_reported_and_logged_once_for_each_cause():
    def problem() -> str:
        return world.core.table.statuses()[0].problem

    world = World(slots=1)
    world.die(cause="exit code 1: no java (pid 71)")
    assert "could not start: exit code 1: no java (pid 71)" in problem()
    assert world.only(commands.ReportSlots).slots[0].problem == problem()
    logged = world.only(commands.LogStartProblem)
    assert (logged.problem, logged.retry_in_s) == (problem(), 1.0)

    world.pass_time(1)
    world.die(cause="exit code 1: no java (pid 82)")
    assert world.none(commands.LogStartProblem)
    world.pass_time(2)
    world.die(cause="exit code 1: no disk")
    assert "no disk" in world.only(commands.LogStartProblem).problem
    assert "no disk" in problem()

    world.pass_time(4)
    world.ready()
    assert world.only(commands.ReportSlots).slots[0].problem == problem() == ""


def test_a_slot_without_a_process_is_refused_with_the_reason():
    world = World(slots=1)
    world.die(cause="exit code 1; the end of log: no java")
    answer = world.request()
    assert not answer.accepted
    assert "no java" in answer.reason


def test_an_idle_process_that_dies_is_replaced_at_once():
    world = World(slots=1)
    world.ready()
    world.now += 60
    world.die()
    assert world.only(commands.StartProcess).slot_index == 0


# -- allocation and offer


def test_a_warm_slot_is_offered_as_soon_as_the_job_master_is_connected():
    world = World()
    world.start_all()
    assert world.request().accepted
    assert world.only(commands.ConnectJobMaster).address == "jm:1"
    assert world.reported() == ["a", ""]
    world.connect()
    offer = world.only(commands.OfferSlots).slots[0]
    assert (offer.allocation_id, offer.data_address, offer.profile) == ("a", "flight:0", DEFAULT)
    assert world.state() is S.ACTIVE


def test_a_slot_is_offered_only_when_its_process_is_ready():
    world = World(slots=1)
    world.request()
    world.connect()
    assert world.none(commands.OfferSlots)
    world.ready()
    assert world.only(commands.OfferSlots).slots[0].allocation_id == "a"


def test_slots_that_are_ready_together_are_offered_together():
    world = World()
    world.start_all()
    world.request("a", 0)
    world.request("b", 1)
    world.connect()
    assert [offer.allocation_id for offer in world.only(commands.OfferSlots).slots] == ["a", "b"]


def test_a_doubled_request_is_answered_the_same_and_changes_nothing():
    world = World()
    world.start_all()
    world.give()
    assert world.request().accepted
    assert world.none(commands.ConnectJobMaster)
    assert world.reported() == ["a", ""]


def test_a_taken_slot_is_refused_and_says_by_whom():
    world = World()
    world.give()
    answer = world.request("b", 0, job_id=JobId("other"))
    assert not answer.accepted
    assert "taken by job job" in answer.reason


def test_one_allocation_cannot_have_two_slots():
    world = World()
    world.give("a", 0)
    assert not world.request("a", 1).accepted


def test_a_late_request_for_an_ended_allocation_is_refused():
    world = World()
    world.start_all()
    world.give()
    world.free("a")
    assert world.state() is S.FREE
    answer = world.request("a", 0)
    assert not answer.accepted
    assert "has ended" in answer.reason


def test_a_profile_must_fit_into_what_is_left():
    world = World()
    big = replace(DEFAULT, heap_bytes=900 * MIB)
    assert world.request("a", 0, profile=big).accepted
    answer = world.request("b", 1, profile=big)
    assert not answer.accepted
    assert "is left" in answer.reason


def test_a_heap_that_spark_cannot_run_in_is_refused():
    world = World()
    answer = world.request(profile=replace(DEFAULT, heap_bytes=100 * MIB))
    assert "Spark needs 192 MiB" in answer.reason


def test_a_stale_resource_manager_is_not_heard():
    world = World()
    world.tell(events.ResourceManagerRegistered(resource_manager_epoch=Epoch(5)))
    world.tell(
        events.SlotRequested(
            resource_manager_epoch=Epoch(4),
            allocation_id="a",  # type: ignore[arg-type]
            job_id=JOB,
            slot_index=0,
            profile=DEFAULT,
            job_master_address="jm:1",
            job_master_epoch=Epoch(1),
        )
    )
    assert world.commands == []
    assert world.core.table.dropped["SlotRequested"] == 1


def test_an_offer_is_repeated_until_it_is_answered():
    world = World()
    world.start_all()
    world.request()
    world.connect()
    world.pass_time(3.5)
    assert world.only(commands.OfferSlots).slots[0].allocation_id == "a"
    world.tell(events.OffersAnswered(accepted=("a",), rejected=(), **JM))  # type: ignore[arg-type]
    world.pass_time(5)
    assert world.none(commands.OfferSlots)


def test_a_rejected_offer_frees_the_slot():
    world = World()
    world.start_all()
    world.request()
    world.connect()
    world.tell(events.OffersAnswered(accepted=(), rejected=("a",), **JM))  # type: ignore[arg-type]
    assert world.reported() == ["", ""]
    assert world.none(commands.KillProcess)


# -- reuse


def test_the_next_job_gets_the_same_process():
    world = World(slots=1)
    world.ready()
    first = world.executor()
    world.give()
    world.submit("t")
    world.states(t=E.FINISHED)
    world.free("a")
    assert world.only(commands.CleanProcess).executor_id == first
    assert world.state() is S.RELEASING
    world.clean()
    assert world.reported() == [""]
    world.request("b")
    assert world.only(commands.OfferSlots).slots[0].executor_id == first


def test_a_process_that_is_too_small_is_replaced_before_the_offer():
    world = World()
    world.start_all()
    world.request(profile=replace(DEFAULT, heap_bytes=900 * MIB))
    world.connect()
    assert (
        world.executor(0) in {command.executor_id for command in world.all(commands.KillProcess)}
        or world.state() is S.ALLOCATED
    )
    world.die(0)
    assert world.only(commands.StartProcess).shape.heap_bytes == 900 * MIB
    assert world.none(commands.ReportSlotLost)
    world.ready(0)
    assert world.only(commands.OfferSlots).slots[0].profile.heap_bytes == 900 * MIB


def test_a_job_with_its_own_spark_values_gets_a_process_started_with_them_and_leaves_none_behind():
    world = World(slots=1)
    world.ready()
    world.request(environment=SPARK)
    assert world.only(commands.KillProcess)
    world.die()
    assert world.only(commands.StartProcess).shape.environment == SPARK
    world.connect()
    world.ready()
    world.free("a")
    world.die()  # it does not fit the default environment
    assert world.only(commands.StartProcess).shape.environment.spark == ()


def test_idle_processes_make_room_for_a_large_allocation_and_come_back_after_it():
    world = World()
    world.start_all()
    big = DEFAULT + DEFAULT
    world.request(profile=big)
    assert len(world.all(commands.KillProcess)) == 2
    world.die(1)
    assert world.none(commands.StartProcess)
    world.die(0)
    assert world.only(commands.StartProcess).slot_index == 0
    world.tell(
        events.SlotRevoked(resource_manager_epoch=Epoch(1), allocation_id="a", cause="not needed")
    )  # type: ignore[arg-type]
    world.die(0)
    assert {command.slot_index for command in world.all(commands.StartProcess)} <= {0, 1}
    assert all(slot.process for slot in world.core.table.slots)


# -- death


def test_death_of_a_slots_process_is_told_at_once_and_its_slot_is_free_with_a_new_process():
    world = World(slots=1)
    world.ready()
    world.give()
    world.submit("t")
    world.die(cause="killed by SIGSEGV")
    assert "killed by SIGSEGV" in world.only(commands.ReportSlotLost).reason
    assert world.only(commands.StartProcess)
    assert world.reported() == [""]


def test_a_process_that_hangs_is_killed_and_its_job_is_told_what_was_seen():
    world = World(slots=1)
    world.start_all()
    world.give()
    world.submit("t")
    world.hung.add(0)
    world.pass_time(15)
    world.tell(events.JobMasterHeartbeat(**JM))
    world.pass_time(4.9)
    assert world.none(commands.KillProcess)
    world.pass_time(0.2)
    kill = world.only(commands.KillProcess)
    assert kill.reason == (
        "the process (pid 1000) of slot 0 of TaskExecutor te has not answered for 20 s "
        "(heartbeat.timeout) and was killed"
    )
    world.die()
    assert world.only(commands.ReportSlotLost).reason == kill.reason
    assert world.only(commands.StartProcess).slot_index == 0
    world.hung.clear()
    world.ready()
    world.pass_time(60)
    assert world.none(commands.KillProcess)


def test_a_process_without_a_job_that_hangs_is_replaced():
    world = World(slots=1)
    world.start_all()
    world.hung.add(0)
    world.pass_time(20)
    assert world.only(commands.KillProcess)
    world.die()
    assert world.only(commands.StartProcess)


def test_everything_a_process_sends_shows_that_it_is_alive():
    world = World(slots=1)
    world.start_all()
    world.give()
    world.submit("t")
    world.hung.add(0)
    world.pass_time(15)
    world.states(t=E.RUNNING)
    world.pass_time(15)
    assert world.none(commands.KillProcess)


def test_a_process_whose_link_breaks_has_a_moment_to_die_of_the_same_cause():
    world = World(slots=2)
    world.start_all()
    world.give()
    world.tell(events.ProcessLinkBroken(executor_id=world.executor(0)))
    assert world.none(commands.KillProcess)
    world.die(0, cause="exit code 3")
    assert "died: exit code 3" in world.only(commands.ReportSlotLost).reason

    world.tell(events.ProcessLinkBroken(executor_id=world.executor(1)))
    world.pass_time(5)
    assert "closed its link but did not end" in world.only(commands.KillProcess).reason


def test_a_process_that_says_why_it_ends_is_quoted():
    world = World(slots=1)
    world.ready()
    world.give()
    world.tell(events.ProcessEnding(executor_id=world.executor(), reason="the JVM is gone"))
    assert world.only(commands.KillProcess)
    world.die()
    assert "the JVM is gone" in world.only(commands.ReportSlotLost).reason


def test_a_process_that_cannot_start_for_a_job_is_a_lost_slot_with_the_log():
    world = World(slots=1)
    world.request()
    world.connect()
    world.die(cause="exit code 1; the end of log: bad option")
    assert "bad option" in world.only(commands.ReportSlotLost).reason
    assert world.state() is S.FREE


def test_over_the_memory_limit_the_process_is_killed_and_both_numbers_are_told():
    world = World(slots=1)
    world.ready()
    world.give()
    assert (
        world.tell(events.MemorySampled(executor_id=world.executor(), used_bytes=1408 * MIB)) == []
    )
    world.tell(events.MemorySampled(executor_id=world.executor(), used_bytes=1410 * MIB))
    assert world.only(commands.KillProcess)
    world.tell(events.MemorySampled(executor_id=world.executor(), used_bytes=1500 * MIB))
    assert world.none(commands.KillProcess)
    world.die()
    reason = world.only(commands.ReportSlotLost).reason
    assert "slot 0 of TaskExecutor te used 1,410 MiB, its limit is 1,408 MiB" in reason
    assert "taskmanager.slot.off-heap.size" in reason


# -- tasks


def test_tasks_are_relayed_after_the_process_knows_whose_it_is():
    world = World(slots=1)
    world.ready()
    world.give()
    sent = [
        command
        for command in world.submit("t", "u")
        if not isinstance(command, commands.ReportSlots)
    ]
    assert [type(command) for command in sent] == [
        commands.AssignProcess,
        commands.RelayToProcess,
    ]
    world.submit("v")
    assert world.none(commands.AssignProcess)


def test_a_doubled_deployment_is_dropped():
    world = World(slots=1)
    world.ready()
    world.give()
    world.submit("t")
    world.submit("t")
    assert world.none(commands.RelayToProcess)


def test_tasks_for_a_slot_that_is_gone_fail_with_the_reason():
    world = World()
    world.start_all()
    world.give("a", 0)
    world.give("b", 1)
    world.die(0)
    world.submit("t", allocation="a")
    report = world.only(commands.ReportTasks)
    assert report.states == (("t", E.FAILED),)
    assert "killed by SIGKILL" in report.reason


def test_tasks_wait_for_the_jobs_files():
    world = World(slots=1)
    world.ready()
    world.give()
    world.submit("t", blobs=(BLOB,))
    assert world.only(commands.PrepareJobFiles).blobs == (BLOB,)
    assert world.none(commands.RelayToProcess)
    world.submit("u", blobs=(BLOB,))
    assert world.none(commands.PrepareJobFiles)
    world.tell(
        events.JobFilesReady(job_id=JOB, job_dir="/j", python_paths=("/j/files",), single_use=False)
    )
    assert world.only(commands.AssignProcess).python_paths == ("/j/files",)
    assert len(world.all(commands.RelayToProcess)) == 2
    world.free("a")
    world.states(t=E.CANCELED, u=E.CANCELED)
    world.clean()
    assert world.only(commands.RemoveJobFiles)


def test_tasks_whose_files_cannot_be_had_fail():
    world = World(slots=1)
    world.ready()
    world.give()
    world.submit("t", blobs=(BLOB,))
    world.tell(events.JobFilesFailed(job_id=JOB, reason="no such file"))
    assert world.only(commands.ReportTasks).reason == "no such file"
    world.free("a")
    assert world.state() is S.FREE


def test_tasks_cancelled_while_files_are_on_their_way_are_cancelled_after_their_deployment():
    world = World(slots=1)
    world.ready()
    world.give()
    world.submit("t", blobs=(BLOB,))
    world.cancel("t")
    assert world.none(commands.CancelInProcess)
    world.tell(events.JobFilesReady(job_id=JOB, job_dir="/j", python_paths=(), single_use=False))
    assert [type(c) for c in world.commands] == [
        commands.AssignProcess,
        commands.RelayToProcess,
        commands.CancelInProcess,
    ]


def test_a_process_that_had_packages_installed_is_not_reused():
    world = World(slots=1)
    world.ready()
    world.give()
    world.submit("t", blobs=(BLOB,))
    world.tell(
        events.JobFilesReady(job_id=JOB, job_dir="/j", python_paths=("/r",), single_use=True)
    )
    world.states(t=E.FINISHED)
    world.free("a")
    assert world.only(commands.KillProcess)
    world.die()
    assert world.none(commands.ReportSlotLost)
    assert world.only(commands.StartProcess)


def test_a_task_that_does_not_end_in_time_takes_its_process_with_it():
    world = World(slots=1)
    world.ready()
    world.give()
    world.submit("t")
    world.cancel("t")
    assert world.only(commands.CancelInProcess).attempt_ids == ("t",)
    for _ in range(7):
        world.pass_time(4.9)
        world.tell(events.JobMasterHeartbeat(**JM))
    world.die()
    assert "task.cancellation.timeout" in world.only(commands.ReportSlotLost).reason


def test_a_task_that_ends_in_time_does_not():
    world = World(slots=1)
    world.ready()
    world.give()
    world.submit("t")
    world.cancel("t")
    world.states(t=E.CANCELED)
    for _ in range(10):
        world.pass_time(5)
        assert world.none(commands.KillProcess)
        world.tell(events.JobMasterHeartbeat(**JM))


def test_cancelling_what_is_not_there_is_answered():
    world = World(slots=1)
    world.ready()
    world.give()
    world.cancel("never-seen")
    assert world.only(commands.ReportTasks).states == (("never-seen", E.CANCELED),)


def test_reports_of_a_former_job_are_dropped():
    world = World(slots=1)
    world.ready()
    world.give()
    world.submit("t")
    executor = world.executor()
    world.die()
    world.tell(
        events.TaskStatesReported(executor_id=executor, job_id=JOB, states=(), message="late")
    )
    assert world.none(commands.RelayToJobMaster)
    assert world.core.table.dropped["TaskStatesReported"] == 1


# -- masters come and go


def test_when_the_job_master_is_gone_its_tasks_are_cancelled_and_its_slots_freed():
    world = World(slots=1)
    world.ready()
    world.give()
    world.submit("t")
    world.tell(events.JobMasterDisconnected(job_id=JOB, cause="broken"))
    assert world.none(commands.CancelInProcess)
    world.pass_time(5.1)
    assert world.only(commands.CancelInProcess).attempt_ids == ("t",)
    assert world.only(commands.CloseJobMaster)
    world.states(t=E.CANCELED)
    assert world.none(commands.RelayToJobMaster)
    world.clean()
    assert world.reported() == [""]
    assert world.core.table.jobs == {}


def test_a_job_master_that_comes_back_in_time_is_told_everything():
    world = World(slots=1)
    world.ready()
    world.give()
    world.submit("t")
    world.states(t=E.RUNNING)
    world.tell(events.JobMasterDisconnected(job_id=JOB, cause="broken"))
    world.states(t=E.FINISHED)
    assert world.none(commands.RelayToJobMaster)
    world.pass_time(2)
    sent = world.connect()
    greeting = world.only(commands.SendHello)
    assert [offer.allocation_id for offer in greeting.slots] == ["a"]
    assert greeting.tasks == (("t", E.FINISHED),)
    assert isinstance(sent[1], commands.RelayToJobMaster)  # what it missed, after the greeting
    world.tell(events.JobMasterHeartbeat(**JM))
    world.pass_time(10)
    assert world.state() is S.ACTIVE


def test_a_silent_job_master_is_given_up_after_the_heartbeat_timeout():
    world = World(slots=1)
    world.ready()
    world.give()
    world.pass_time(19)
    assert world.state() is S.ACTIVE
    world.pass_time(2)
    assert world.state() is S.FREE


def test_a_stale_job_master_is_not_heard():
    world = World(slots=1)
    world.ready()
    world.give()
    assert world.request(job_master_epoch=Epoch(2)).accepted
    world.free("a")  # by epoch 1
    assert world.state() is S.ACTIVE
    assert world.core.table.dropped["SlotsFreed"] == 1


def test_goodbye_frees_all_of_the_jobs_slots():
    world = World()
    world.start_all()
    world.give("a", 0)
    world.give("b", 1)
    world.tell(events.JobMasterLeft(cause="finished", **JM))
    assert world.reported() == ["", ""]
    assert world.core.table.jobs == {}


def test_a_new_resource_manager_gets_a_report_and_nothing_else_changes():
    world = World(slots=1)
    world.ready()
    world.give()
    world.submit("t")
    world.tell(events.ResourceManagerRegistered(resource_manager_epoch=Epoch(9)))
    assert [type(command) for command in world.commands] == [commands.ReportSlots]
    assert world.reported() == ["a"]


def test_reports_are_numbered_without_repetition():
    world = World()
    numbers = []
    for event in (events.ReportDue(), events.ReportDue(), events.ReportDue()):
        world.tell(event)
        numbers.append(world.only(commands.ReportSlots).sequence)
    assert numbers == sorted(set(numbers))


def test_a_slot_taken_back_is_lost_to_the_job_master():
    world = World(slots=1)
    world.ready()
    world.give()
    world.submit("t")
    world.tell(
        events.SlotRevoked(resource_manager_epoch=Epoch(1), allocation_id="a", cause="job unknown")
    )  # type: ignore[arg-type]
    assert "job unknown" in world.only(commands.ReportSlotLost).reason
    assert world.only(commands.CancelInProcess)


def test_a_process_that_does_not_get_clean_is_replaced():
    world = World(slots=1)
    world.ready()
    world.give()
    world.submit("t")
    world.states(t=E.FINISHED)
    world.free("a")
    assert [type(c) for c in world.pass_time(10.1)] == [
        commands.KillProcess,
        commands.ReportSlots,
    ]  # and it is not warm any more
    world.die()
    assert world.reported() == [""]
    assert world.none(commands.ReportSlotLost)


def test_at_the_end_masters_are_told_and_everything_is_killed():
    world = World()
    world.start_all()
    world.give("a", 0)
    world.tell(events.StopRequested(cause="SIGTERM"))
    assert "SIGTERM" in world.only(commands.ReportSlotLost).reason
    assert len(world.all(commands.KillProcess)) == 2
    world.die(0)
    world.die(1)
    assert world.none(commands.StartProcess)
    assert not world.request("b").accepted


def test_slots_too_small_for_an_idle_process_are_refused_and_tried_ever_more_rarely():
    world = World(slots=1)
    for pause_s in (1, 2, 4):
        world.ready()
        world.tell(events.MemorySampled(executor_id=world.executor(), used_bytes=1410 * MIB))
        world.die()
        assert world.none(commands.StartProcess)
        assert "its limit is 1,408 MiB" in world.request(f"a{pause_s}").reason
        assert isinstance(world.pass_time(pause_s)[0], commands.StartProcess)


def test_a_process_that_says_why_it_cannot_start_is_quoted_and_not_tried_at_once():
    world = World(slots=1)
    world.request()
    world.connect()
    world.tell(events.ProcessEnding(executor_id=world.executor(), reason="bad spark.master"))
    world.die()
    assert "could not start: bad spark.master" in world.only(commands.ReportSlotLost).reason
    assert world.none(commands.StartProcess)
    assert "bad spark.master" in world.request("b").reason
