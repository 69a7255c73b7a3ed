"""Processes in slots: kept warm, retried, replaced when they die, hang or use too much memory."""

from __future__ import annotations

from firesteel.common.job_graph import Blob, BlobKind
from firesteel.common.states import ExecutionState as E
from taskexecutor.core import commands, events
from taskexecutor.core.slots import SlotState as S
from tests.unit.taskexecutor.slot_world import JM, MIB, World

BLOB = Blob(hash="0" * 32, name="u.py", kind=BlobKind.FILE, size_bytes=1)


def test_slots_get_their_processes_two_at_a_time():
    world = World(slots=3)
    assert len(world.all(commands.StartProcess)) == 2
    world.ready(0)
    assert world.only(commands.StartProcess).slot_index == 2


def test_a_slot_is_warm_while_its_process_is_ready_or_serves_a_job():
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


def test_fewer_free_slots_warm_up_at_once_than_slots_that_a_job_waits_for():
    world = World(slots=3, max_warming=1)
    assert [start.slot_index for start in world.all(commands.StartProcess)] == [0]
    world.request("a", index=2)
    assert world.only(commands.StartProcess).slot_index == 2
    world.request("b", index=1)
    assert world.none(commands.StartProcess), "no more than max_starting in all"
    assert [
        start.slot_index for start in world.ready(0) if isinstance(start, commands.StartProcess)
    ] == [1]


def test_processes_of_free_slots_start_after_a_jobs_first_seconds():
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


def test_a_dead_process_is_replaced_once_its_job_runs_elsewhere():
    def started(given: list[commands.Command]) -> list[int]:
        return [c.slot_index for c in given if isinstance(c, commands.StartProcess)]

    world = World(slots=3, quiet_s=10.0)
    world.start_all()
    world.give("a", index=0)
    world.give("b", index=1)
    assert started(world.die(0)) == [], "slot 2 is warm"
    world.give("c", index=2)
    assert started(world.pass_time(9.9)) == []
    assert started(world.pass_time(0.2)) == [0]
    world.ready(0)
    world.die(1)
    world.request("d", index=1)
    assert world.only(commands.StartProcess).slot_index == 1, "a job waits for it"


def test_a_process_that_dies_when_no_other_is_warm_is_replaced_immediately():
    world = World(slots=2, quiet_s=10.0)
    world.start_all()
    world.give("a", index=0)
    world.give("b", index=1)
    world.pass_time(20.0)
    world.die(0)
    assert world.only(commands.StartProcess).slot_index == 0


def test_a_process_that_cannot_start_is_retried_with_growing_pauses():
    world = World(slots=1)
    world.die(cause="exit code 1; the end of log: no java")
    assert world.none(commands.StartProcess)
    assert len([c for c in world.pass_time(1.0) if isinstance(c, commands.StartProcess)]) == 1
    world.die(cause="exit code 1")
    assert world.pass_time(1.9) == []
    assert isinstance(world.pass_time(0.2)[0], commands.StartProcess)


def test_a_process_that_cannot_start_is_logged_once_per_cause():
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
    assert isinstance(answer, commands.RejectSlotRequest)
    assert "no java" in answer.reason


def test_an_idle_process_that_dies_is_replaced_immediately():
    world = World(slots=1)
    world.ready()
    world.now += 60
    world.die()
    assert world.only(commands.StartProcess).slot_index == 0


def test_a_processs_death_is_reported_and_frees_its_slot():
    world = World(slots=1)
    world.ready()
    world.give()
    world.submit("t")
    world.die(cause="killed by SIGSEGV")
    assert "killed by SIGSEGV" in world.only(commands.ReportSlotLost).reason
    assert world.only(commands.StartProcess)
    assert world.reported() == [""]


def test_a_process_that_hangs_is_killed_and_the_reason_reported():
    world = World(slots=1)
    world.start_all()
    world.give()
    world.submit("t")
    world.hung.add(0)
    world.pass_time(15)
    world.handle(events.JobMasterHeartbeat(**JM))
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
    world.handle(events.ProcessLinkBroken(executor_id=world.executor(0)))
    assert world.none(commands.KillProcess)
    world.die(0, cause="exit code 3")
    assert "died: exit code 3" in world.only(commands.ReportSlotLost).reason

    world.handle(events.ProcessLinkBroken(executor_id=world.executor(1)))
    world.pass_time(5)
    assert "closed its link but did not end" in world.only(commands.KillProcess).reason


def test_the_reason_that_a_process_sends_before_it_ends_is_reported():
    world = World(slots=1)
    world.ready()
    world.give()
    world.handle(events.ProcessEnding(executor_id=world.executor(), reason="the JVM is gone"))
    assert world.only(commands.KillProcess)
    world.die()
    assert "the JVM is gone" in world.only(commands.ReportSlotLost).reason


def test_a_slot_whose_process_cannot_start_is_reported_lost_with_the_log():
    world = World(slots=1)
    world.request()
    world.connect()
    world.die(cause="exit code 1; the end of log: bad option")
    assert "bad option" in world.only(commands.ReportSlotLost).reason
    assert world.state() is S.FREE


def test_a_process_over_its_memory_limit_is_killed_with_both_numbers():
    world = World(slots=1)
    world.ready()
    world.give()
    assert (
        world.handle(events.MemorySampled(executor_id=world.executor(), used_bytes=1408 * MIB))
        == []
    )
    world.handle(events.MemorySampled(executor_id=world.executor(), used_bytes=1410 * MIB))
    assert world.only(commands.KillProcess)
    world.handle(events.MemorySampled(executor_id=world.executor(), used_bytes=1500 * MIB))
    assert world.none(commands.KillProcess)
    world.die()
    reason = world.only(commands.ReportSlotLost).reason
    assert "slot 0 of TaskExecutor te used 1,410 MiB, its limit is 1,408 MiB" in reason
    assert "taskmanager.slot.off-heap.size" in reason


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
    ]  # and it is no longer warm
    world.die()
    assert world.reported() == [""]
    assert world.none(commands.ReportSlotLost)


def test_a_too_small_slot_is_refused_and_retried_with_backoff():
    world = World(slots=1)
    for pause_s in (1, 2, 4):
        world.ready()
        world.handle(events.MemorySampled(executor_id=world.executor(), used_bytes=1410 * MIB))
        world.die()
        assert world.none(commands.StartProcess)
        assert "its limit is 1,408 MiB" in world.request(f"a{pause_s}").reason
        assert isinstance(world.pass_time(pause_s)[0], commands.StartProcess)


def test_the_reason_that_a_process_sends_when_it_cannot_start_is_kept():
    world = World(slots=1)
    world.request()
    world.connect()
    world.handle(events.ProcessEnding(executor_id=world.executor(), reason="bad spark.master"))
    world.die()
    assert "could not start: bad spark.master" in world.only(commands.ReportSlotLost).reason
    assert world.none(commands.StartProcess)
    assert "bad spark.master" in world.request("b").reason
