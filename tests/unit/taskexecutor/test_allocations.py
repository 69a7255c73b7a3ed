"""Slots of one job after the other: requested, offered, used again."""

from __future__ import annotations

from dataclasses import replace

from firesteel.common.ids import Epoch, JobId
from firesteel.common.job_graph import Blob, BlobKind
from firesteel.common.resources import environment_key
from firesteel.common.states import ExecutionState as E
from taskexecutor.core import commands, events
from taskexecutor.core.slots import SlotState as S
from tests.unit.taskexecutor.slot_world import DEFAULT, JM, JOB, MIB, SPARK, World

BLOB = Blob(hash="0" * 32, name="u.py", kind=BlobKind.FILE, size_bytes=1)


def test_a_warm_slot_is_offered_as_soon_as_the_job_master_is_connected():
    world = World()
    world.start_all()
    assert world.accepts()
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


def test_a_repeated_request_gets_the_same_answer_and_changes_nothing():
    world = World()
    world.start_all()
    world.give()
    assert world.accepts()
    assert world.none(commands.ConnectJobMaster)
    assert world.reported() == ["a", ""]


def test_a_taken_slot_is_refused_with_the_job_that_holds_it():
    world = World()
    world.give()
    answer = world.request("b", 0, job_id=JobId("other"))
    assert isinstance(answer, commands.RejectSlotRequest)
    assert "taken by job job" in answer.reason


def test_one_allocation_cannot_have_two_slots():
    world = World()
    world.give("a", 0)
    assert not world.accepts("a", 1)


def test_a_late_request_for_an_ended_allocation_is_refused():
    world = World()
    world.start_all()
    world.give()
    world.free("a")
    assert world.state() is S.FREE
    answer = world.request("a", 0)
    assert isinstance(answer, commands.RejectSlotRequest)
    assert "has ended" in answer.reason


def test_a_profile_must_fit_into_what_is_left():
    world = World()
    big = replace(DEFAULT, heap_bytes=900 * MIB)
    assert world.accepts("a", 0, profile=big)
    answer = world.request("b", 1, profile=big)
    assert isinstance(answer, commands.RejectSlotRequest)
    assert "is available" in answer.reason


def test_a_heap_that_spark_cannot_run_in_is_refused():
    world = World()
    answer = world.request(profile=replace(DEFAULT, heap_bytes=100 * MIB))
    assert "Spark needs at least 192 MiB" in answer.reason


def test_messages_of_a_stale_resource_manager_are_dropped():
    world = World()
    world.handle(events.ResourceManagerRegistered(resource_manager_epoch=Epoch(5)))
    world.handle(
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
    assert world.core.table.refusals.by_sender == {"ResourceManager": 1}


def test_a_resource_manager_of_a_new_folder_is_heard_under_its_lower_epoch():
    world = World()
    world.handle(events.ResourceManagerRegistered(resource_manager_epoch=Epoch(5)))
    world.handle(events.ResourceManagerRegistered(resource_manager_epoch=Epoch(1)))
    world.handle(
        events.SlotRequested(
            resource_manager_epoch=Epoch(1),
            allocation_id="a",  # type: ignore[arg-type]
            job_id=JOB,
            slot_index=0,
            profile=DEFAULT,
            job_master_address="jm:1",
            job_master_epoch=Epoch(1),
        )
    )
    assert world.core.table.dropped["SlotRequested"] == 0
    assert world.only(commands.AcceptSlotRequest)


def test_an_offer_is_repeated_until_it_is_answered():
    world = World()
    world.start_all()
    world.request()
    world.connect()
    world.pass_time(3.5)
    assert world.only(commands.OfferSlots).slots[0].allocation_id == "a"
    world.handle(events.OffersAnswered(accepted=("a",), rejected=(), **JM))  # type: ignore[arg-type]
    world.pass_time(5)
    assert world.none(commands.OfferSlots)


def test_a_rejected_offer_frees_the_slot():
    world = World()
    world.start_all()
    world.request()
    world.connect()
    world.handle(events.OffersAnswered(accepted=(), rejected=("a",), **JM))  # type: ignore[arg-type]
    assert world.reported() == ["", ""]
    assert world.none(commands.KillProcess)


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


def test_a_job_with_special_spark_values_gets_a_separate_process():
    world = World(slots=1)
    world.ready()
    world.request(environment=SPARK)
    assert world.only(commands.KillProcess)
    world.die()
    assert world.only(commands.StartProcess).shape.environment == SPARK
    world.connect()
    world.ready()
    world.free("a")
    world.request("b", environment=SPARK)  # the next job of the same program
    assert world.none(commands.KillProcess)
    world.free("b")
    given = world.pass_time(world.core.table.settings.keep_s - 1)
    assert not [each for each in given if isinstance(each, commands.KillProcess)]
    given = world.pass_time(1)
    assert [each for each in given if isinstance(each, commands.KillProcess)]
    world.die()
    assert world.only(commands.StartProcess).shape.environment.spark == ()


def test_a_kept_process_makes_way_for_a_job_with_the_default_environment():
    world = World(slots=1)
    world.ready()
    world.request(environment=SPARK)
    world.die()
    world.ready()
    world.free("a")
    key = world.core.table.statuses()[0].environment
    assert key and key == environment_key(SPARK.spark)
    world.request("b")
    assert world.only(commands.KillProcess)
    world.die()
    assert world.only(commands.StartProcess).shape.environment.spark == ()


def test_idle_processes_make_room_for_a_large_allocation():
    world = World()
    world.start_all()
    big = DEFAULT + DEFAULT
    world.request(profile=big)
    assert len(world.all(commands.KillProcess)) == 2
    world.die(1)
    assert world.none(commands.StartProcess)
    world.die(0)
    assert world.only(commands.StartProcess).slot_index == 0
    world.handle(
        events.SlotRevoked(resource_manager_epoch=Epoch(1), allocation_id="a", cause="not needed")
    )  # type: ignore[arg-type]
    world.die(0)
    assert {command.slot_index for command in world.all(commands.StartProcess)} <= {0, 1}
    assert all(slot.process for slot in world.core.table.slots)


def test_a_process_with_a_thread_of_its_job_left_is_replaced():
    world = World(slots=1)
    world.start_all()
    world.give()
    world.submit("t")
    world.states(t=E.FINISHED)
    world.free("a")
    assert world.only(commands.CleanProcess)
    reason = "the job left threads that do not end: 'writer'"
    world.handle(events.ProcessEnding(executor_id=world.executor(), reason=reason))
    assert reason in world.only(commands.KillProcess).reason
    world.die()
    assert world.none(commands.ReportSlotLost), "its tasks have ended"
    assert world.state() is S.FREE
    assert world.only(commands.StartProcess)
