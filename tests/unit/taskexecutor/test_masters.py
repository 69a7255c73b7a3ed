"""Masters that vanish, come back, are replaced or leave."""

from __future__ import annotations

from firesteel.common.ids import Epoch
from firesteel.common.job_graph import Blob, BlobKind
from firesteel.common.states import ExecutionState as E
from taskexecutor.core import commands, events
from taskexecutor.core.slots import SlotState as S
from tests.unit.taskexecutor.slot_world import JM, JOB, PLACE, World

BLOB = Blob(hash="0" * 32, name="u.py", kind=BlobKind.FILE, size_bytes=1)


def test_a_lost_job_masters_tasks_are_cancelled_and_its_slots_freed():
    world = World(slots=1)
    world.ready()
    world.give()
    world.submit("t")
    world.handle(events.JobMasterDisconnected(job_id=JOB, cause="broken"))
    assert world.none(commands.CancelInProcess)
    world.pass_time(5.1)
    assert world.only(commands.CancelInProcess).attempt_ids == ("t",)
    assert world.only(commands.CloseJobMaster)
    world.states(t=E.CANCELED)
    assert world.none(commands.RelayToJobMaster)
    world.clean()
    assert world.reported() == [""]
    assert world.core.table.jobs == {}


def test_a_job_master_that_comes_back_in_time_gets_all_that_is_held_for_it():
    world = World(slots=1)
    world.ready()
    world.give()
    world.submit("t")
    world.states(t=E.RUNNING)
    world.handle(events.JobMasterDisconnected(job_id=JOB, cause="broken"))
    world.states(t=E.FINISHED)
    assert world.none(commands.RelayToJobMaster)
    world.pass_time(2)
    sent = world.connect()
    greeting = world.only(commands.SendHello)
    assert [offer.allocation_id for offer in greeting.slots] == ["a"]
    assert [(task.attempt_id, task.state) for task in greeting.tasks] == [("t", E.FINISHED)]
    assert isinstance(sent[1], commands.RelayToJobMaster)  # what it missed, after the greeting
    world.handle(events.JobMasterHeartbeat(**JM))
    world.pass_time(10)
    assert world.state() is S.ACTIVE


def recovering() -> World:
    """A task of a job that takes checkpoints runs here."""
    world = World(slots=1)
    world.ready()
    world.give()
    world.submit("t", recovers=True)
    world.states(t=E.RUNNING)
    return world


def test_tasks_of_a_job_with_checkpoints_wait_for_its_next_job_master():
    world = recovering()
    world.lose_job_master()
    world.pass_time(29)
    assert world.none(commands.CancelInProcess)
    world.replace_job_master()
    connect = world.only(commands.ConnectJobMaster)
    assert (connect.address, connect.epoch) == ("jm:2", 2)
    world.connect()
    hello = world.only(commands.SendHello)
    assert hello.tasks == (events.TaskState("t", E.RUNNING),)
    assert hello.places == {"t": PLACE}
    world.free("a")  # by epoch 1
    assert world.state() is S.ACTIVE


def test_an_unconfirmed_task_end_waits_for_the_next_job_master():
    world = recovering()
    world.states(t=E.FINISHED)
    world.lose_job_master()
    assert world.state() is S.ACTIVE
    world.replace_job_master()
    world.connect()
    hello = world.only(commands.SendHello)
    assert hello.tasks == (events.TaskState("t", E.FINISHED),)
    assert hello.places == {"t": PLACE}


def test_a_job_master_is_not_awaited_for_ever():
    world = recovering()
    world.lose_job_master()
    world.pass_time(31)
    assert world.only(commands.CancelInProcess).attempt_ids == ("t",)


def test_without_checkpoints_a_dead_job_master_is_given_up_immediately():
    world = World(slots=1)
    world.ready()
    world.give()
    world.submit("t")
    world.lose_job_master()
    assert world.only(commands.CancelInProcess).attempt_ids == ("t",)


def test_a_silent_job_master_is_given_up_after_the_heartbeat_timeout():
    world = World(slots=1)
    world.ready()
    world.give()
    world.pass_time(19)
    assert world.state() is S.ACTIVE
    world.pass_time(2)
    assert world.state() is S.FREE


def test_messages_of_a_stale_job_master_are_dropped():
    world = World(slots=1)
    world.ready()
    world.give()
    assert world.accepts(job_master_epoch=Epoch(2))
    world.free("a")  # by epoch 1
    assert world.state() is S.ACTIVE
    assert world.core.table.dropped["SlotsFreed"] == 1
    assert world.core.table.refusals.by_sender == {"JobMaster": 1}


def test_a_job_master_that_leaves_frees_all_of_its_slots():
    world = World()
    world.start_all()
    world.give("a", 0)
    world.give("b", 1)
    world.handle(events.JobMasterLeft(cause="finished", **JM))
    assert world.reported() == ["", ""]
    assert world.core.table.jobs == {}


def test_a_new_resource_manager_gets_a_report_and_nothing_else_changes():
    world = World(slots=1)
    world.ready()
    world.give()
    world.submit("t")
    world.handle(events.ResourceManagerRegistered(resource_manager_epoch=Epoch(9)))
    assert [type(command) for command in world.commands] == [commands.ReportSlots]
    assert world.reported() == ["a"]


def test_reports_are_numbered_without_repetition():
    world = World()
    numbers = []
    for event in (events.ReportDue(), events.ReportDue(), events.ReportDue()):
        world.handle(event)
        numbers.append(world.only(commands.ReportSlots).sequence)
    assert numbers == sorted(set(numbers))


def test_a_revoked_slot_is_reported_lost():
    world = World(slots=1)
    world.ready()
    world.give()
    world.submit("t")
    world.handle(
        events.SlotRevoked(resource_manager_epoch=Epoch(1), allocation_id="a", cause="job unknown")
    )  # type: ignore[arg-type]
    assert "job unknown" in world.only(commands.ReportSlotLost).reason
    assert world.only(commands.CancelInProcess)


def test_at_the_end_slots_are_reported_lost_and_processes_killed():
    world = World()
    world.start_all()
    world.give("a", 0)
    world.handle(events.StopRequested(cause="SIGTERM"))
    assert "SIGTERM" in world.only(commands.ReportSlotLost).reason
    assert len(world.all(commands.KillProcess)) == 2
    world.die(0)
    world.die(1)
    assert world.none(commands.StartProcess)
    assert not world.accepts("b")
