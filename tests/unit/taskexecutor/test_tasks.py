"""Tasks and analyses: relayed once the files are on disk, cancelled in time."""

from __future__ import annotations

from firesteel.common.job_graph import Blob, BlobKind
from firesteel.common.states import ExecutionState as E
from taskexecutor.core import commands, events
from taskexecutor.core.slots import SlotState as S
from tests.unit.taskexecutor.slot_world import JM, JOB, World

BLOB = Blob(hash="0" * 32, name="u.py", kind=BlobKind.FILE, size_bytes=1)


def test_tasks_are_relayed_after_the_process_is_assigned_to_the_job():
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


def test_a_repeated_deployment_is_dropped():
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
    assert report.states == (events.TaskState("t", E.FAILED),)
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
    world.handle(
        events.JobFilesReady(job_id=JOB, job_dir="/j", python_paths=("/j/files",), single_use=False)
    )
    assert world.only(commands.AssignProcess).python_paths == ("/j/files",)
    assert len(world.all(commands.RelayToProcess)) == 2
    world.free("a")
    world.states(t=E.CANCELED, u=E.CANCELED)
    world.clean()
    assert world.only(commands.RemoveJobFiles)


def test_tasks_fail_if_the_jobs_files_cannot_be_downloaded():
    world = World(slots=1)
    world.ready()
    world.give()
    world.submit("t", blobs=(BLOB,))
    world.handle(events.JobFilesFailed(job_id=JOB, reason="no such file"))
    assert world.only(commands.ReportTasks).reason == "no such file"
    world.free("a")
    assert world.state() is S.FREE


def test_tasks_cancelled_during_a_download_end_after_their_deployment():
    world = World(slots=1)
    world.ready()
    world.give()
    world.submit("t", blobs=(BLOB,))
    world.cancel("t")
    assert world.none(commands.CancelInProcess)
    world.handle(events.JobFilesReady(job_id=JOB, job_dir="/j", python_paths=(), single_use=False))
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
    world.handle(
        events.JobFilesReady(job_id=JOB, job_dir="/j", python_paths=("/r",), single_use=True)
    )
    world.states(t=E.FINISHED)
    world.free("a")
    assert world.only(commands.KillProcess)
    world.die()
    assert world.none(commands.ReportSlotLost)
    assert world.only(commands.StartProcess)


def test_the_process_of_a_cancelled_task_that_does_not_end_is_killed():
    world = World(slots=1)
    world.ready()
    world.give()
    world.submit("t")
    world.cancel("t")
    assert world.only(commands.CancelInProcess).attempt_ids == ("t",)
    for _ in range(7):
        world.pass_time(4.9)
        world.handle(events.JobMasterHeartbeat(**JM))
    world.die()
    assert "task.cancellation.timeout" in world.only(commands.ReportSlotLost).reason


def test_a_cancelled_task_whose_killed_process_does_not_end_is_reported():
    world = World(slots=1)
    world.ready()
    world.give()
    world.submit("t")
    world.cancel("t")
    given = []
    for _ in range(8):
        given += world.pass_time(4.9)
        world.handle(events.JobMasterHeartbeat(**JM))
    world.commands = given
    lost = world.only(commands.ReportSlotLost).reason
    assert "task.cancellation.timeout" in lost
    assert lost.endswith("was killed; it has not ended yet")
    refused = world.request("b")
    assert isinstance(refused, commands.RejectSlotRequest)
    assert "(pid 1000) was killed and has not ended yet" in refused.reason
    world.die()
    assert world.none(commands.ReportSlotLost)
    assert world.only(commands.StartProcess)
    world.ready()
    assert world.accepts("c")


def test_the_process_of_a_cancelled_task_that_ends_stays():
    world = World(slots=1)
    world.ready()
    world.give()
    world.submit("t")
    world.cancel("t")
    world.states(t=E.CANCELED)
    for _ in range(10):
        world.pass_time(5)
        assert world.none(commands.KillProcess)
        world.handle(events.JobMasterHeartbeat(**JM))


def test_cancelling_an_unknown_task_is_answered():
    world = World(slots=1)
    world.ready()
    world.give()
    world.cancel("never-seen")
    assert world.only(commands.ReportTasks).states == (events.TaskState("never-seen", E.CANCELED),)


def test_reports_of_a_former_job_are_dropped():
    world = World(slots=1)
    world.ready()
    world.give()
    world.submit("t")
    executor = world.executor()
    world.die()
    world.handle(
        events.TaskStatesReported(executor_id=executor, job_id=JOB, states=(), message="late")
    )
    assert world.none(commands.RelayToJobMaster)
    assert world.core.table.dropped["TaskStatesReported"] == 1
