"""The SlotManager by events in, commands out; one story each. The harness validates every invariant
after every event.
"""

from __future__ import annotations

import pytest

from firesteel.common.ids import AllocationId, Epoch
from firesteel.common.resources import UNKNOWN, ResourceProfile, SlotStatus
from firesteel.common.states import IllegalTransition
from resourcemanager.core import commands, events
from resourcemanager.core.settings import PROCESS_ENDED, REGISTRATION_S
from resourcemanager.core.slots import SlotState
from tests.slot_manager import EPOCH, GIB, SLOT, Harness, executor_id, free, held, job_id

FREE, PENDING, ALLOCATED, UNCLEAR = (
    SlotState.FREE,
    SlotState.PENDING,
    SlotState.ALLOCATED,
    SlotState.UNCLEAR,
)


# ---------------------------------------------------------------- the ordinary way


def test_a_job_gets_its_slots() -> None:
    rm = Harness()
    rm.register("a")
    rm.register("b")
    assert rm.sent(commands.Welcome) == [commands.Welcome(connection=rm.connection("b"))]

    requests = rm.submit("job", 3)

    assert {(r.connection, r.slot_index) for r in requests} == {
        (rm.connection("a"), 0),
        (rm.connection("b"), 0),
        (rm.connection("a"), 1),
    }
    assert all(
        r.profile == SLOT and r.job_master_address == "jm:1" and r.job_id == job_id("job")
        for r in requests
    )
    assert len({r.allocation_id for r in requests}) == 3
    assert rm.count(PENDING) == 3
    rm.accept(*requests)
    assert (rm.count(ALLOCATED), rm.count(FREE)) == (3, 1)


def test_slots_come_back_by_report_and_go_to_the_job_that_waits() -> None:
    rm = Harness()
    rm.register("a", 1)
    first = rm.submit("first", 1)
    rm.accept(*first)
    assert rm.submit("second", 1) == []
    assert [n.missing for n in rm.sent(commands.NotEnoughResources)] == [1]

    rm.declare("first", 0)
    assert rm.commands == []  # the slot is free when its TaskExecutor says so, not before
    rm.report("a", *free(0))

    assert [r.job_id for r in rm.sent(commands.RequestSlot)] == [job_id("second")]
    assert rm.slot(first[0].allocation_id) is None


def test_a_job_whose_process_died_gets_a_warm_slot_immediately() -> None:
    rm = Harness()
    rm.register("a")
    rm.register("b", free(0, 1, warm=True))
    first, second = rm.submit("job", 2)
    assert {first.slot_index, second.slot_index} == {0, 1}
    assert first.connection == second.connection == rm.connection("b")
    rm.report("a", *free(0), *free(1, warm=True))
    rm.accept(first, second)
    rm.report("b", *free(first.slot_index), held(second.slot_index, second))
    (third,) = rm.sent(commands.RequestSlot)
    assert (third.connection, third.slot_index) == (rm.connection("a"), 1)


def test_a_known_size_is_given_exactly() -> None:
    big = ResourceProfile(cpu_cores=1.5, heap_bytes=GIB + 1)
    rm = Harness()
    rm.register("a", 2)
    assert [r.profile for r in rm.submit("job", (big, 1))] == [big]
    rm.submit("other", 1)  # what remains is less than a default slot
    [shortage] = rm.sent(commands.NotEnoughResources)
    assert shortage.missing == 1
    assert shortage.explanation == (
        "2 slots exist, 1 is taken, 1 is free but not large enough; no driver can add TaskExecutors"
    )


def test_declarations_are_gathered_if_so_configured() -> None:
    rm = Harness(requirements_delay_s=0.5)
    rm.register("a", 2)
    assert rm.submit("job", 1) == []
    rm.declare("job", 2)
    rm.advance(0.5)
    assert len(rm.sent(commands.RequestSlot)) == 2


def test_the_job_environment_is_passed_on() -> None:
    rm = Harness()
    rm.register("a")
    rm.register_job("job")
    environment = (("spark.sql.session.timeZone", "UTC"),)
    rm.handle(
        events.RequirementsDeclared(
            connection=rm.connection("job"),
            job_id=job_id("job"),
            epoch=Epoch(1),
            sequence=1,
            requirements=(events.Requirement(profile=SLOT, count=1),),
            environment=environment,
        )
    )
    assert [r.environment for r in rm.sent(commands.RequestSlot)] == [environment]


# ---------------------------------------------------------------- not enough


def test_a_shortage_is_sent_once_until_it_changes() -> None:
    rm = Harness()
    rm.submit("job", 3)
    assert rm.sent(commands.NotEnoughResources) == [
        commands.NotEnoughResources(
            connection=rm.connection("job"),
            sequence=1,
            missing=3,
            growing=0,
            explanation="no TaskExecutor is registered; no driver can add TaskExecutors",
        )
    ]
    rm.declare("job", 3, sequence=1)  # doubled
    assert rm.commands == []
    rm.register("a", 2)
    assert [(n.missing, n.explanation) for n in rm.sent(commands.NotEnoughResources)] == [
        (1, "2 slots exist, 2 are taken; no driver can add TaskExecutors")
    ]
    rm.register("b", 2)
    assert rm.sent(commands.NotEnoughResources) == []
    assert rm.core.missing == 0


# ---------------------------------------------------------------- stale messages


def test_older_declarations_are_dropped_and_counted() -> None:
    rm = Harness()
    rm.register("a", 4)
    rm.register_job("job")
    rm.declare("job", 1, sequence=5)
    rm.declare("job", 4, sequence=4)
    assert rm.commands == []
    assert rm.core.fence.dropped["declaration is older than the last"] == 1


def test_older_reports_are_dropped() -> None:
    rm = Harness()
    rm.register("a", 1)
    [request] = rm.submit("job", 1)
    rm.accept(request)
    rm.report("a", held(0, request), sequence=9)
    rm.report("a", *free(0), sequence=8)
    assert rm.count(ALLOCATED) == 1
    assert rm.core.fence.dropped["slot report is older than the last"] == 1


def test_messages_of_another_epoch_are_dropped() -> None:
    rm = Harness()
    rm.register("a", 1)
    [request] = rm.submit("job", 1)
    rm.accept(request)
    rm.report("a", *free(0), epoch=Epoch(EPOCH - 1))
    assert rm.count(ALLOCATED) == 1
    rm.declare("job", 0, epoch=99)
    assert rm.core.jobs[job_id("job")].required == 1
    assert rm.core.fence.dropped.total() == 2


def test_an_old_job_master_is_turned_away() -> None:
    rm = Harness()
    rm.register("a", 1)
    rm.register_job("job", epoch=2)
    old = rm.register_job("job", epoch=1)
    assert rm.commands == [
        commands.CloseConnection(
            connection=old,
            cause=f"a JobMaster of job {job_id('job')} with a higher epoch has registered",
        )
    ]
    rm.declare("job", 1, epoch=1)
    assert rm.sent(commands.RequestSlot) == []


def test_a_new_job_master_replaces_the_old_one() -> None:
    rm = Harness()
    rm.register("a", 2)
    [request] = rm.submit("job", 1)
    old = rm.connection("job")
    rm.register_job("job", epoch=2, address="jm:2")
    assert rm.sent(commands.CloseConnection)[0].connection == old
    assert [f.allocation_id for f in rm.sent(commands.FreeSlot)] == [
        request.allocation_id
    ]  # it named the old JobMaster
    rm.declare("job", 1, epoch=2)
    assert [(r.job_master_address, r.job_master_epoch) for r in rm.sent(commands.RequestSlot)] == [
        ("jm:2", 2)
    ]


def test_a_new_job_master_takes_over_the_slots_of_the_old_one() -> None:
    rm = Harness()
    executor = rm.register("a", 2)
    [held, pending] = rm.submit("job", 2)
    rm.accept(held)
    rm.register_job("job", epoch=2, address="jm:2")
    assert [freed.allocation_id for freed in rm.sent(commands.FreeSlot)] == [pending.allocation_id]
    assert rm.sent(commands.JobMasterChanged) == [
        commands.JobMasterChanged(
            connection=executor,
            job_id=job_id("job"),
            job_master_address="jm:2",
            job_master_epoch=Epoch(2),
        )
    ]


def test_a_job_master_that_takes_over_learns_the_holders_of_its_slots() -> None:
    """Once the TaskExecutors of an earlier ResourceManager can have registered; and again when that
    changes, until it declares what it requires.
    """
    rm = Harness()
    rm.register("a", 1)
    rm.register("b", 1)
    rm.accept(*rm.submit("job", 2))
    rm.register_job("job", epoch=2, address="jm:2")
    assert rm.sent(commands.SlotHolders) == []
    rm.advance(REGISTRATION_S)
    assert [set(told.task_executor_ids) for told in rm.sent(commands.SlotHolders)] == [
        {executor_id("a"), executor_id("b")}
    ]
    rm.report("a", *free(0))
    assert [told.task_executor_ids for told in rm.sent(commands.SlotHolders)] == [
        (executor_id("b"),)
    ]
    rm.declare("job", 1, epoch=2)
    rm.report("b", *free(0))
    assert rm.sent(commands.SlotHolders) == []


def test_keepers_of_results_and_the_next_job_master_learn_of_each_other() -> None:
    """Although none of its slots is the job's any more."""
    rm = Harness()
    rm.register("a", 1)
    rm.register("b", 1)
    rm.register_job("job")
    rm.report("a", *free(0), stored_partitions=1, stored_jobs=[job_id("job")])
    rm.register_job("job", epoch=2, address="jm:2")
    (changed,) = rm.sent(commands.JobMasterChanged)
    assert (changed.connection, changed.job_master_epoch) == (rm.connection("a"), 2)
    rm.advance(REGISTRATION_S)
    assert [told.task_executor_ids for told in rm.sent(commands.SlotHolders)] == [
        (executor_id("a"),)
    ]
    rm.report("a", *free(0))
    assert [told.task_executor_ids for told in rm.sent(commands.SlotHolders)] == [()]


def test_a_job_master_that_reconnects_keeps_its_slots() -> None:
    rm = Harness()
    rm.register("a", 2)
    rm.accept(*rm.submit("job", 2))
    rm.break_stream("job")
    rm.register_job("job")
    assert rm.sent(commands.FreeSlot) == []


def test_a_repeated_registration_changes_nothing() -> None:
    rm = Harness()
    rm.register("a", 1)
    [request] = rm.submit("job", 1)
    rm.accept(request)
    again = events.TaskExecutorRegistered(
        connection=rm.connection("a"),
        task_executor_id=executor_id("a"),
        address="a:1",
        host="a",
        pid=1,
        worker_id=None,
        total=SLOT,
        default_slot=SLOT,
        slots=free(0),
    )
    assert rm.handle(again) == [commands.Welcome(connection=rm.connection("a"))]
    assert rm.count(ALLOCATED) == 1


# ---------------------------------------------------------------- slot requests that go wrong


def test_a_report_written_before_the_request_came_does_not_undo_it() -> None:
    rm = Harness()
    rm.register("a", 1)
    [request] = rm.submit("job", 1)
    rm.report("a", *free(0))
    assert rm.count(PENDING) == 1
    rm.report("a", held(0, request))  # the acceptance was lost
    assert rm.count(ALLOCATED) == 1
    rm.accept(request)  # or late
    assert rm.count(ALLOCATED) == 1


def test_a_rejected_request_is_placed_elsewhere() -> None:
    rm = Harness()
    rm.register("a", 1)
    [request] = rm.submit("job", 1)
    rm.register("b", 1)
    rm.reject(request)
    [again] = rm.sent(commands.RequestSlot)
    assert again.connection == rm.connection("b")
    assert again.allocation_id != request.allocation_id
    assert rm.count(UNCLEAR) == 1


def test_a_rejected_request_is_not_repeated_before_a_report_or_a_pause() -> None:
    rm = Harness()
    rm.register("a", 1)
    [request] = rm.submit("job", 1)
    rm.reject(request)
    assert rm.sent(commands.RequestSlot) == []
    rm.report("a", *free(0))
    [second] = rm.sent(commands.RequestSlot)
    rm.reject(second)
    assert rm.sent(commands.RequestSlot) == []
    rm.advance(1.0)
    assert len(rm.sent(commands.RequestSlot)) == 1


def test_an_unanswered_request_is_sent_again_then_given_up() -> None:
    rm = Harness()
    rm.register("a", 1)
    [request] = rm.submit("job", 1)
    rm.advance(5.0)
    assert rm.sent(commands.RequestSlot) == [request]
    rm.advance(5.0)
    assert rm.sent(commands.RequestSlot) == [request]
    rm.advance(5.0)
    assert [f.allocation_id for f in rm.sent(commands.FreeSlot)] == [request.allocation_id]
    rm.advance(1.0)
    [another] = rm.sent(commands.RequestSlot)
    assert another.allocation_id != request.allocation_id
    rm.accept(request)  # its answer, at last: too late
    assert rm.count(PENDING) == 1


def test_the_executor_holds_another_allocation_than_requested() -> None:
    rm = Harness()
    rm.register("a", 1)
    [request] = rm.submit("job", 1)
    stranger = SlotStatus(
        slot_index=0, profile=SLOT, allocation_id=AllocationId("f" * 32), job_id=job_id("earlier")
    )
    rm.report("a", stranger)
    slot = rm.slot(AllocationId("f" * 32))
    assert slot is not None
    assert slot.state is ALLOCATED
    assert rm.slot(request.allocation_id) is None
    assert [n.missing for n in rm.sent(commands.NotEnoughResources)] == [1]


def test_one_allocation_on_two_executors_is_freed_on_the_second() -> None:
    rm = Harness()
    rm.register("a", 1)
    [request] = rm.submit("job", 1)
    rm.accept(request)
    rm.register("b", (held(0, request),))
    assert [(f.connection, f.allocation_id) for f in rm.sent(commands.FreeSlot)] == [
        (rm.connection("b"), request.allocation_id)
    ]
    slot = rm.slot(request.allocation_id)
    assert slot is not None
    assert slot.executor.task_executor_id == executor_id("a")


def test_registrations_tell_a_restarted_resource_manager_the_allocations() -> None:
    before = Harness()
    before.register("a", 2)
    requests = before.submit("job", 1)
    before.accept(*requests)

    after = Harness(seed=b"restarted")
    after.register("a", (held(0, requests[0]), *free(1)))
    assert after.submit("job", 1) == []
    assert (after.count(ALLOCATED), after.count(FREE)) == (1, 1)


# ---------------------------------------------------------------- peers that come and go


def test_a_broken_stream_that_returns_in_time_changes_nothing() -> None:
    rm = Harness()
    rm.register("a", 2)
    accepted, pending = rm.submit("job", 2)
    rm.accept(accepted)
    rm.break_stream("a")
    rm.advance(0.9)
    rm.register("a", (held(accepted.slot_index, accepted), *free(pending.slot_index)))
    assert rm.sent(commands.TaskExecutorLost) == []
    [resent] = rm.sent(
        commands.RequestSlot
    )  # on the new connection: it was not seen on the old one
    assert (resent.allocation_id, resent.connection) == (pending.allocation_id, rm.connection("a"))
    rm.advance(2.0)
    assert rm.sent(commands.TaskExecutorLost) == []


def test_a_task_executor_with_a_broken_stream_is_dead_to_every_job() -> None:
    rm = Harness()
    rm.register("a", 1)
    rm.register("b", 1)
    requests = rm.submit("job", 1)
    rm.accept(*requests)
    rm.register_job("other")
    rm.break_stream("a")
    rm.advance(1.0)
    lost = rm.sent(commands.TaskExecutorLost)
    assert {x.connection for x in lost} == {rm.connection("job"), rm.connection("other")}
    assert {x.task_executor_id for x in lost} == {executor_id("a")}
    assert [r.connection for r in rm.sent(commands.RequestSlot)] == [
        rm.connection("b")
    ]  # immediately and without a request
    assert rm.core.table.total == 1


def test_peers_that_left_a_paused_resource_manager_have_time_to_come_back() -> None:
    rm = Harness()
    rm.start()
    rm.register("a", 1)
    rm.register("b", 1)
    rm.register_job("job")
    rm.now += 10.0  # without a Tick: the process was stopped
    rm.break_stream("a")
    rm.break_stream("b")
    rm.advance(4.0)  # as long as an attempt to connect and the pause before it may take
    assert rm.sent(commands.TaskExecutorLost) == []
    rm.register("a", 1)
    rm.advance(2.0)
    (lost,) = rm.sent(commands.TaskExecutorLost)
    assert lost.task_executor_id == executor_id("b")
    rm.break_stream("a")
    rm.advance(1.0)
    (lost,) = rm.sent(commands.TaskExecutorLost)
    assert lost.task_executor_id == executor_id("a"), "no longer: it was paused long ago"


def test_a_closed_stream_counts_as_death_immediately() -> None:
    rm = Harness()
    rm.register("a", 1)
    rm.register_job("job")
    rm.close("a")
    assert [x.task_executor_id for x in rm.sent(commands.TaskExecutorLost)] == [executor_id("a")]


def test_an_executor_whose_process_has_ended_is_dead_immediately() -> None:
    rm = Harness()
    rm.register("a", 1)
    rm.register_job("job")
    rm.break_stream("a")
    [probe] = rm.sent(commands.ProbeTaskExecutor)
    assert probe.address == "a:1"
    rm.handle(events.TaskExecutorGone(task_executor_id=probe.task_executor_id))
    assert [(x.task_executor_id, x.cause) for x in rm.sent(commands.TaskExecutorLost)] == [
        (executor_id("a"), PROCESS_ENDED)
    ]


def test_an_executor_that_is_back_before_the_probe_is_not_dead() -> None:
    rm = Harness()
    rm.register("a", 1)
    rm.break_stream("a")
    rm.register("a", 1)
    rm.handle(events.TaskExecutorGone(task_executor_id=executor_id("a")))
    assert executor_id("a") in rm.core.table.executors


def test_a_job_masters_finding_about_a_silent_executor_applies_to_all() -> None:
    rm = Harness(heartbeat_interval_s=2.0, heartbeat_timeout_s=20.0)
    rm.start()
    rm.register("a", 1)
    rm.register_job("found it", address="jm:1")
    rm.register_job("other", address="jm:2")
    rm.advance(5.0)
    rm.beat("found it")
    rm.report_lost("found it", "a")
    assert {x.connection for x in rm.sent(commands.TaskExecutorLost)} == {
        rm.connection("found it"),
        rm.connection("other"),
    }
    assert rm.core.table.total == 0


def test_an_executor_unreachable_for_one_job_loses_that_jobs_slots_only() -> None:
    rm = Harness(heartbeat_interval_s=2.0, heartbeat_timeout_s=20.0)
    rm.start()
    rm.register("a", 3)
    rm.accept(*rm.submit("other", 1))
    [cut, pending] = rm.submit("cut off", 2)
    rm.accept(cut)
    rm.advance(4.0)
    rm.beat("a", "cut off")
    rm.report_lost("cut off", "a", "no heartbeat for 3 s")
    assert {f.allocation_id for f in rm.sent(commands.FreeSlot)} == {
        cut.allocation_id,
        pending.allocation_id,
    }
    assert rm.sent(commands.TaskExecutorLost) == []
    assert rm.core.table.total == 3


def test_a_verdict_on_an_executor_that_is_gone_already_changes_nothing() -> None:
    rm = Harness()
    rm.register("a", 1)
    rm.register_job("job")
    rm.close("a")
    assert rm.report_lost("job", "a") == []


def test_a_silent_executor_dies_by_heartbeat_and_may_register_again() -> None:
    rm = Harness(heartbeat_interval_s=2.0, heartbeat_timeout_s=20.0)
    rm.start()
    rm.register("a", 1)
    rm.register("b", 1)
    rm.register_job("job")
    for _ in range(12):
        rm.advance(2.0)
        rm.beat("b", "job")
    assert executor_id("a") not in rm.core.table.executors
    assert executor_id("b") in rm.core.table.executors
    rm.register("a", 1)
    assert rm.core.table.total == 2


def test_heartbeats_go_to_every_peer() -> None:
    rm = Harness(heartbeat_interval_s=2.0)
    rm.start()
    rm.register("a")
    rm.register_job("job")
    rm.advance(2.0)
    assert {h.connection for h in rm.sent(commands.SendHeartbeat)} == {
        rm.connection("a"),
        rm.connection("job"),
    }


def test_a_dead_job_masters_requirements_vanish() -> None:
    rm = Harness()
    rm.register("a", 2)
    accepted, pending = rm.submit("job", 2)
    rm.accept(accepted)
    rm.submit("waiting", 1)
    rm.break_stream("job")
    rm.advance(1.0)
    assert job_id("job") not in rm.core.jobs
    assert [f.allocation_id for f in rm.sent(commands.FreeSlot)] == [pending.allocation_id]
    rm.report("a", held(accepted.slot_index, accepted), *free(pending.slot_index))
    assert [r.job_id for r in rm.sent(commands.RequestSlot)] == [job_id("waiting")]
    rm.report("a", *free(accepted.slot_index))  # its TaskExecutor has noticed, too
    assert rm.count(FREE) == 1


def test_a_reconnecting_job_master_keeps_requirements_and_gets_missed_news() -> None:
    rm = Harness()
    rm.register("a", 1)
    rm.register("b", 1)
    rm.accept(*rm.submit("job", 2))
    rm.break_stream("job")
    rm.close("a")
    assert rm.sent(commands.TaskExecutorLost) == []
    rm.register_job("job")
    assert [x.task_executor_id for x in rm.sent(commands.TaskExecutorLost)] == [executor_id("a")]
    assert [n.missing for n in rm.sent(commands.NotEnoughResources)] == [1]


def test_an_executor_that_returns_with_other_slots_starts_over() -> None:
    rm = Harness()
    rm.register("a", 2)
    rm.accept(*rm.submit("job", 2))
    rm.register("a", 1)
    assert rm.core.table.total == 1
    assert len(rm.sent(commands.RequestSlot)) == 1


# ---------------------------------------------------------------- guards


def test_an_illegal_transition_names_the_slot() -> None:
    rm = Harness()
    rm.register("a", 1)
    slot = rm.core.table.executors[executor_id("a")].slots[0]
    with pytest.raises(
        IllegalTransition,
        match="slot 0 of TaskExecutor .*: GIVEN_UP is illegal in FREE",
    ):
        rm.core.table.give_up(slot)


def test_validate_finds_a_broken_bijection_and_shows_the_history() -> None:
    rm = Harness()
    rm.register("a", 2)
    first, second = rm.submit("job", 2)
    slots = rm.core.table.executors[executor_id("a")].slots
    slots[second.slot_index].allocation_id = first.allocation_id
    with pytest.raises(
        AssertionError,
        match=r"(?s)allocation .* is on slot 0 .* and on slot 1.*RequirementsDeclared",
    ):
        rm.core.validate()
    assert "JobMasterRegistered" in rm.core.story(job_id("job"))[0]


def test_a_slot_shows_how_it_reached_its_state() -> None:
    rm = Harness()
    rm.register("a", 1)
    [request] = rm.submit("job", 1)
    rm.advance(0.5)
    rm.accept(request)
    [slot] = rm.core.table.executors[executor_id("a")].slots.values()
    holder = f"as {request.allocation_id} of job {job_id('job')}"
    assert rm.core.story(request.allocation_id) == slot.story()
    assert slot.story() == [
        f"0.000 -> PENDING by REQUESTED {holder}",
        f"0.500 -> ALLOCATED by ACCEPTED {holder}",
    ]
    rm.report("a", *free(0))
    assert slot.story()[2] == "0.500 -> FREE by REPORTED_FREE"


# ---------------------------------------------------------------- slots without a process


def broken(*indexes: int) -> list[SlotStatus]:
    problem = "the process ended with exit code 1\n  and its log"
    return [SlotStatus(slot_index=i, profile=UNKNOWN, problem=problem) for i in indexes]


def explanation(rm: Harness) -> str:
    return rm.sent(commands.NotEnoughResources)[-1].explanation


def test_a_waiting_job_learns_why_its_slots_processes_cannot_start() -> None:
    rm = Harness()
    rm.register("a")
    rm.report("a", *broken(0, 1))
    for request in rm.submit("job", 2):
        rm.reject(request, reason="it has no process")
    assert explanation(rm) == (
        "2 slots exist, 0 are taken, 2 cannot start their processes"
        " (the process ended with exit code 1); no driver can add TaskExecutors"
    )


def test_a_slot_whose_process_cannot_start_is_given_last() -> None:
    rm = Harness()
    rm.register("a", 3)
    rm.report("a", *broken(0, 1), *free(2))
    assert [request.slot_index for request in rm.submit("job", 1)] == [2]


def test_a_problem_that_is_over_is_no_longer_explained() -> None:
    rm = Harness()
    rm.register("a")
    rm.report("a", *broken(0), *free(1))
    first, second = rm.submit("job", 3)
    assert (first.slot_index, second.slot_index) == (1, 0)
    rm.accept(first)
    rm.reject(second)
    assert "1 is taken, 1 cannot start its process (" in explanation(rm)
    rm.report("a", *free(0), held(1, first))
    rm.submit("other", 1)
    assert "cannot start" not in explanation(rm)
