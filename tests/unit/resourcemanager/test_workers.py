"""The number of workers that the SlotManager requests of its driver, and when it releases them."""

from __future__ import annotations

from firesteel.common.ids import AllocationId
from firesteel.common.resources import ResourceProfile
from resourcemanager.core import commands, events
from resourcemanager.core.events import WorkerId
from resourcemanager.core.settings import PROCESS_ENDED, WORKER_START_TIMEOUT_S
from tests.slot_manager import GIB, SLOT, WORKER, Harness, executor_id, free, job_id


def requested(rm: Harness) -> list[WorkerId]:
    return [command.worker_id for command in rm.sent(commands.RequestWorker)]


def quiet(**settings: object) -> Harness:
    """Nobody dies of silence here."""
    return Harness(heartbeat_timeout_s=1e9, **settings)


def cluster(initial: int, **settings: object) -> tuple[Harness, list[WorkerId]]:
    """Started, and its initial workers registered under the names of their ids."""
    rm = quiet(initial_workers=initial, worker=WORKER, **settings)
    rm.start()
    workers = requested(rm)
    for worker in workers:
        rm.handle(events.WorkerStarted(worker_id=worker))
        rm.register(worker, worker_id=worker)
    return rm, workers


def shortage(rm: Harness) -> list[tuple[int, int, str]]:
    return [
        (sent.missing, sent.growing, sent.explanation)
        for sent in rm.sent(commands.NotEnoughResources)
    ]


def test_the_initial_workers_are_started_immediately() -> None:
    rm = quiet(initial_workers=2, worker=WORKER)
    rm.start()
    first, second = requested(rm)
    assert first != second
    rm.submit("job", 3)
    assert shortage(rm) == [(3, 3, "no TaskExecutor is registered; 2 TaskExecutors are starting")]


def test_a_dead_initial_worker_is_replaced_immediately() -> None:
    rm, [first, second] = cluster(2)
    rm.register_job("job")
    rm.advance(60.0)
    rm.handle(events.WorkerExited(worker_id=first, cause="its process was killed by SIGKILL"))
    assert len(requested(rm)) == 1
    assert [(x.task_executor_id, x.cause) for x in rm.sent(commands.TaskExecutorLost)] == [
        (executor_id(first), "its process was killed by SIGKILL")
    ]
    assert second in rm.core.workers.known


def test_a_worker_that_lost_its_connection_is_ended_and_replaced() -> None:
    rm, [first] = cluster(1)
    rm.break_stream(first)
    rm.advance(1.0)
    assert [x.worker_id for x in rm.sent(commands.ReleaseWorker)] == [first]
    assert len(requested(rm)) == 1
    rm.handle(
        events.WorkerExited(worker_id=first, cause="killed")
    )  # what the driver says of it afterwards
    assert requested(rm) == []


def test_no_more_than_the_initial_workers_without_a_limit() -> None:
    rm, _ = cluster(1)
    rm.submit("job", 3)
    assert requested(rm) == []
    assert shortage(rm) == [
        (
            1,
            0,
            "2 slots exist, 2 are taken;"
            " no TaskExecutor may be added (slotmanager.number-of-slots.max=0)",
        )
    ]


def test_on_demand_up_to_the_limit() -> None:
    rm, _ = cluster(1, max_slots=7)
    rm.submit("job", 9)
    [extra, another] = requested(rm)  # 2 + 2 + 2 slots; one more TaskExecutor would make 8
    assert shortage(rm) == [
        (
            7,
            4,
            "2 slots exist, 2 are taken; 2 TaskExecutors are starting;"
            " the limit slotmanager.number-of-slots.max=7 is reached",
        )
    ]
    rm.register(extra, worker_id=extra)
    assert len(rm.sent(commands.RequestSlot)) == 2
    rm.register(another, worker_id=another)
    assert requested(rm) == []
    assert [sent[:2] for sent in shortage(rm)] == [(3, 0)]


def test_only_as_many_workers_as_are_needed() -> None:
    rm, _ = cluster(1, max_slots=100)
    rm.submit("job", 5)
    assert len(requested(rm)) == 2
    rm.declare("job", 6)
    assert requested(rm) == []


def test_a_size_that_no_worker_has_starts_none() -> None:
    huge = ResourceProfile(cpu_cores=1.0, heap_bytes=64 * GIB)
    rm, _ = cluster(1, max_slots=100)
    rm.submit("job", (huge, 1))
    assert requested(rm) == []
    [(missing, growing, explanation)] = shortage(rm)
    assert (missing, growing) == (1, 0)
    assert f"not large enough for {huge}" in explanation
    assert f"a TaskExecutor of this cluster offers {WORKER.total} at most" in explanation


def test_large_sizes_take_a_worker_each() -> None:
    large = ResourceProfile(cpu_cores=1.5, heap_bytes=2 * GIB)
    rm, _ = cluster(0, max_slots=100)
    rm.submit("job", (large, 3))
    assert len(requested(rm)) == 3


def test_idle_workers_beyond_the_initial_ones_are_stopped() -> None:
    rm, [first] = cluster(1, max_slots=4, idle_timeout_s=30.0)
    requests = rm.submit("job", 4)
    [extra] = requested(rm)
    rm.accept(*requests)
    rm.register(extra, worker_id=extra)
    rm.accept(*rm.sent(commands.RequestSlot))
    rm.declare("job", 0)
    rm.report(extra, *free(0, 1))
    rm.advance(10.0)
    rm.report(first, *free(0, 1))
    rm.advance(19.0)
    assert rm.sent(commands.ReleaseWorker) == []
    rm.advance(1.0)
    assert [x.worker_id for x in rm.sent(commands.ReleaseWorker)] == [extra]
    assert [x.connection for x in rm.sent(commands.Shutdown)] == [rm.connection(extra)]
    rm.close(extra)
    rm.advance(1000.0)
    assert list(rm.core.workers.known) == [first]
    assert requested(rm) == []


def test_the_slots_of_a_worker_that_shuts_down_are_not_given() -> None:
    rm, _ = cluster(0, max_slots=2, idle_timeout_s=30.0)
    [request] = rm.submit("job", 0) or [None]
    assert request is None
    rm.declare("job", 1)
    [extra] = requested(rm)
    rm.declare("job", 0)
    rm.register(extra, worker_id=extra)
    rm.advance(30.0)
    assert len(rm.sent(commands.ReleaseWorker)) == 1
    rm.declare("job", 1)
    assert rm.sent(commands.RequestSlot) == []


def test_a_worker_that_keeps_results_is_not_idle() -> None:
    rm, _ = cluster(0, max_slots=2, idle_timeout_s=30.0)
    requests = rm.submit("job", 1)
    [extra] = requested(rm)
    rm.register(extra, worker_id=extra)
    rm.accept(*requests, *rm.sent(commands.RequestSlot))
    rm.declare("job", 0)
    rm.report(extra, *free(0, 1), stored_partitions=1)
    rm.advance(100.0)
    assert rm.sent(commands.ReleaseWorker) == []
    rm.report(extra, *free(0, 1))
    rm.advance(29.0)
    assert rm.sent(commands.ReleaseWorker) == []
    rm.advance(1.0)
    assert [x.worker_id for x in rm.sent(commands.ReleaseWorker)] == [extra]


def test_use_ends_idleness() -> None:
    rm, _ = cluster(0, max_slots=2, idle_timeout_s=30.0)
    rm.submit("job", 1)
    [extra] = requested(rm)
    rm.register(extra, worker_id=extra)
    [request] = rm.sent(commands.RequestSlot)
    rm.accept(request)
    rm.advance(100.0)
    assert rm.sent(commands.ReleaseWorker) == []


def test_workers_that_do_not_start_are_retried_with_a_reported_reason() -> None:
    rm = quiet(initial_workers=1, worker=WORKER)
    rm.start()
    [worker] = requested(rm)
    rm.submit("job", 1)
    for pause_s in (0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0):
        rm.handle(
            events.WorkerStartFailed(worker_id=worker, cause="no Java was found\nsome traceback")
        )
        assert requested(rm) == []
        sent = shortage(rm)
        assert sent[-1][:2] == (1, 0)
        assert (
            "the last TaskExecutor did not start (no Java was found) and is tried again"
            in sent[-1][2]
        )
        rm.advance(pause_s - 0.01)
        assert requested(rm) == []
        rm.advance(0.02)
        [worker] = requested(rm)
    rm.register(worker, worker_id=worker)
    assert rm.core.workers.last_failure == ""


def test_a_worker_that_never_registers_is_given_up() -> None:
    rm = quiet(initial_workers=1, worker=WORKER)
    rm.start()
    [worker] = requested(rm)
    rm.handle(events.WorkerStarted(worker_id=worker))
    rm.advance(120.0)
    assert [x.worker_id for x in rm.sent(commands.ReleaseWorker)] == [worker]
    rm.advance(1.0)
    assert len(requested(rm)) == 1


def test_workers_that_die_young_are_slowed_down() -> None:
    rm, [worker] = cluster(1)
    rm.handle(events.WorkerExited(worker_id=worker, cause="code 1"))
    [worker] = requested(rm)  # the first time without a delay
    rm.register(worker, worker_id=worker)
    rm.handle(events.WorkerExited(worker_id=worker, cause="code 1"))
    assert requested(rm) == []
    rm.advance(0.5)
    [worker] = requested(rm)
    rm.register(worker, worker_id=worker)
    rm.advance(11.0)
    rm.handle(events.WorkerExited(worker_id=worker, cause="code 1"))
    assert len(requested(rm)) == 1  # it had run for a while


def test_executors_started_by_hand_are_left_alone() -> None:
    rm = quiet(initial_workers=0, max_slots=8, worker=WORKER, idle_timeout_s=1.0)
    rm.start()
    rm.register("by hand", 2)
    rm.advance(100.0)
    assert rm.sent(commands.Shutdown) == []
    rm.submit("job", 4)
    assert len(requested(rm)) == 1


def test_what_a_worker_brings_corrects_the_configuration() -> None:
    rm = quiet(initial_workers=1, max_slots=100, worker=WORKER)
    rm.start()
    [worker] = requested(rm)
    rm.register(worker, 4, worker_id=worker, slot=SLOT)
    rm.submit("job", 12)
    assert len(requested(rm)) == 2


def test_a_released_worker_that_registers_again_is_refused() -> None:
    rm, [first] = cluster(1, max_slots=4, idle_timeout_s=5.0)
    rm.submit("job", 4)
    [extra] = requested(rm)
    rm.declare("job", 2)
    rm.register(extra, worker_id=extra)
    rm.advance(5.0)
    assert [x.worker_id for x in rm.sent(commands.ReleaseWorker)] == [extra]
    rm.close(extra)
    rm.register(extra, worker_id=extra)
    assert [x.connection for x in rm.sent(commands.Shutdown)] == [rm.connection(extra)]
    rm.declare("job", 4)
    assert rm.sent(commands.RequestSlot) == []
    assert requested(rm) == []  # as long as it is there, its slots count for the limit
    rm.handle(events.WorkerExited(worker_id=extra, cause="code 0"))
    assert len(requested(rm)) == 1  # another one instead
    assert rm.core.workers.not_before == 0.0  # its end was not a failure
    assert first in rm.core.workers.known


def test_after_a_restart_living_workers_are_awaited_and_dead_ones_replaced() -> None:
    before = WorkerId("worker-1-before")
    rm = quiet(initial_workers=2, worker=WORKER)
    rm.start(before)
    assert requested(rm) == [], "nothing yet: it may bring anything"
    rm.register(before, worker_id=before)
    assert len(requested(rm)) == 1, "the other one is gone"


def test_after_a_restart_nothing_is_matched_before_taken_slots_are_known() -> None:
    one, two = WorkerId("worker-1-before"), WorkerId("worker-2-before")
    rm = quiet(initial_workers=2, worker=WORKER)
    rm.start(one, two)
    rm.register(one, worker_id=one)
    assert rm.submit("job", 2) == []
    held = tuple(
        events.SlotStatus(
            slot_index=i, profile=SLOT, allocation_id=AllocationId(f"a{i}"), job_id=job_id("job")
        )
        for i in range(2)
    )
    rm.register(two, held, worker_id=two)
    assert rm.sent(commands.RequestSlot) == [], "the job has its slots already"
    assert requested(rm) == []


def test_earlier_workers_get_more_time_if_none_could_register() -> None:
    """A leader may not act while ZooKeeper does not answer it."""
    before = WorkerId("worker-1-before")
    rm = quiet(initial_workers=1, worker=WORKER, recovery_timeout_s=10.0, heartbeat_interval_s=2.0)
    rm.start(before)
    rm.advance(3.0)
    rm.now += 20.0  # without a Tick
    rm.advance(9.9)
    rm.register(before, worker_id=before)
    assert not rm.sent(commands.Shutdown)
    assert requested(rm) == []


def test_a_worker_of_before_that_does_not_come_is_replaced_and_later_ended() -> None:
    before = WorkerId("worker-1-before")
    rm = quiet(initial_workers=1, worker=WORKER, recovery_timeout_s=2.0)
    rm.start(before)
    rm.advance(1.9)
    assert requested(rm) == []
    rm.advance(0.1)
    assert len(requested(rm)) == 1
    assert not rm.sent(commands.ReleaseWorker), "its tasks may run: it cannot find the new leader"
    rm.advance(WORKER_START_TIMEOUT_S)
    assert before in [x.worker_id for x in rm.sent(commands.ReleaseWorker)]
    rm.register(before, worker_id=before)
    assert rm.sent(commands.Shutdown), "too late"


def test_a_worker_of_before_that_comes_late_keeps_its_tasks() -> None:
    before = WorkerId("worker-1-before")
    rm = quiet(initial_workers=1, worker=WORKER, recovery_timeout_s=2.0)
    rm.start(before)
    rm.advance(2.0)
    assert len(requested(rm)) == 1, "in its place"
    rm.advance(100.0)
    held = events.SlotStatus(
        slot_index=0, profile=SLOT, allocation_id=AllocationId("a"), job_id=job_id("job")
    )
    rm.register(before, (held,), worker_id=before)
    rm.advance(WORKER_START_TIMEOUT_S)
    assert not rm.sent(commands.Shutdown)
    assert before not in [x.worker_id for x in rm.sent(commands.ReleaseWorker)]


# ---- drivers that need time: for the earlier workers, and to start one


def elastic(**settings: object) -> Harness:
    return quiet(worker=WORKER, max_slots=8, **settings)


def explanation(rm: Harness) -> str:
    return shortage(rm)[-1][2]


def test_no_worker_is_started_while_earlier_ones_are_unknown() -> None:
    rm = elastic(recovery_timeout_s=10.0)
    rm.handle(events.Started(previous_workers=None))
    rm.register("one")
    rm.submit("job", 3)
    assert rm.sent(commands.RequestSlot) == [], "earlier workers may hold its slots"
    rm.advance(10.0)
    assert len(rm.sent(commands.RequestSlot)) == 2, "free slots do not wait for the driver"
    assert requested(rm) == []
    assert "of an earlier ResourceManager are not known yet" in explanation(rm)
    rm.handle(events.PreviousWorkersFound(worker_ids=()))
    assert len(requested(rm)) == 1


def test_earlier_workers_that_have_registered_are_not_waited_for() -> None:
    early, late = WorkerId("worker-1-early"), WorkerId("worker-2-late")
    rm = elastic(recovery_timeout_s=10.0)
    rm.handle(events.Started(previous_workers=None))
    rm.register(early, worker_id=early)
    rm.handle(events.PreviousWorkersFound(worker_ids=(early, late)))
    assert rm.core.workers.recovering == {late}
    rm.register(late, worker_id=late)
    rm.submit("job", 4)
    assert len(rm.sent(commands.RequestSlot)) == 4
    assert requested(rm) == []


def test_the_reason_why_a_worker_does_not_start_is_explained() -> None:
    rm = elastic()
    rm.start()
    rm.submit("job", 4)
    first, second = requested(rm)
    rm.handle(events.WorkerDelayed(worker_id=second, problem="ErrImagePull: no such tag"))
    assert "2 TaskExecutors are starting (ErrImagePull: no such tag)" in explanation(rm)
    rm.handle(events.WorkerDelayed(worker_id=second, problem="ErrImagePull: no such tag"))
    assert shortage(rm) == []
    rm.handle(events.WorkerDelayed(worker_id=second, problem=""))
    assert explanation(rm).endswith("2 TaskExecutors are starting")
    rm.handle(events.WorkerDelayed(worker_id=first, problem="0/3 nodes are available"))
    rm.advance(WORKER_START_TIMEOUT_S)
    causes = {sent.worker_id: sent.cause for sent in rm.sent(commands.ReleaseWorker)}
    assert causes[first] == "it did not register in time: 0/3 nodes are available"


def test_a_driver_that_cannot_act_is_explained() -> None:
    rm = elastic()
    rm.start()
    rm.submit("job", 1)
    rm.handle(events.DriverImpeded(problem="the API does not answer"))
    assert "no TaskExecutor can be started now: the API does not answer" in explanation(rm)
    rm.handle(events.DriverImpeded(problem=""))
    assert "the API" not in explanation(rm)


def test_the_time_to_register_counts_from_the_start_of_the_worker() -> None:
    rm = elastic(worker_start_timeout_s=60.0)
    rm.start()
    rm.submit("job", 1)
    (worker,) = requested(rm)
    rm.advance(50.0)
    rm.handle(events.WorkerStarted(worker_id=worker))
    rm.advance(59.0)
    assert rm.sent(commands.ReleaseWorker) == []
    rm.advance(1.0)
    (release,) = rm.sent(commands.ReleaseWorker)
    assert (release.worker_id, release.failed) == (worker, True)


def test_the_reason_of_a_loss_may_follow_the_verdict() -> None:
    rm, [worker] = cluster(1, max_slots=2)
    rm.submit("job", 2)
    rm.advance(60.0)
    rm.break_stream(worker)
    rm.advance(2.0)
    assert len(rm.sent(commands.TaskExecutorLost)) == 1
    (release,) = rm.sent(commands.ReleaseWorker)
    assert release.failed
    rm.handle(events.WorkerExited(worker_id=worker, cause="its pod was killed (OOMKilled)\nlog"))
    assert "the last TaskExecutor was lost (its pod was killed (OOMKilled))" in explanation(rm)


def test_a_dead_worker_is_lost_for_the_reason_that_its_driver_reports() -> None:
    rm, [worker] = cluster(1, reason_patience_s=0.5)
    rm.register_job("job")
    rm.break_stream(worker)
    rm.handle(events.TaskExecutorGone(task_executor_id=executor_id(worker)))
    assert rm.sent(commands.TaskExecutorLost) == []
    rm.advance(0.4)
    rm.handle(events.WorkerExited(worker_id=worker, cause="OOMKilled"))
    assert [lost.cause for lost in rm.sent(commands.TaskExecutorLost)] == ["OOMKilled"]


def test_the_verdict_waits_for_the_driver_only_for_a_moment() -> None:
    rm, [worker] = cluster(1, reason_patience_s=0.5)
    rm.register_job("job")
    rm.break_stream(worker)
    rm.handle(events.TaskExecutorGone(task_executor_id=executor_id(worker)))
    rm.advance(0.5)
    assert [lost.cause for lost in rm.sent(commands.TaskExecutorLost)] == [PROCESS_ENDED]
    rm.handle(events.WorkerExited(worker_id=worker, cause="OOMKilled"))
    (explained,) = rm.sent(commands.LossExplained)
    assert (explained.task_executor_id, explained.cause) == (executor_id(worker), "OOMKilled")
    rm.handle(events.WorkerExited(worker_id=worker, cause="again"))
    assert rm.sent(commands.LossExplained) == []
    rm.handle(events.WorkerLogRead(worker_id=worker, log="its last lines"))
    assert [each.log for each in rm.sent(commands.LossExplained)] == ["its last lines"]
