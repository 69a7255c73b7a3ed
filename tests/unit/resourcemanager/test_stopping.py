"""A TaskExecutor is stopped, immediately or after a drain."""

from __future__ import annotations

from resourcemanager.core import commands, events
from resourcemanager.core.commands import Command
from resourcemanager.core.events import WorkerId
from resourcemanager.core.settings import REGISTRATION_S
from resourcemanager.core.slots import SlotState
from resourcemanager.core.workers import WorkerSpec
from tests.slot_manager import SLOT, WORKER, Harness, executor_id, free, job_id

ONE_SLOT = WorkerSpec(slots=1, total=SLOT, default_slot=SLOT)


def cluster(*names: str, slots: int = 1, **settings: object) -> Harness:
    rm = Harness(**settings)
    rm.start()
    for name in names:
        rm.register(name, slots)
    return rm


def run(rm: Harness, name: str, slots: int) -> list[commands.RequestSlot]:
    requests = rm.submit(name, slots)
    rm.accept(*requests)
    return requests


def stop(
    rm: Harness, name: str, *, drain: bool = True, force: bool = False, request: int = 1
) -> list[Command]:
    return rm.handle(
        events.StopRequested(
            request=request, task_executor_id=executor_id(name), drain=drain, force=force
        )
    )


def test_a_drained_one_gets_no_slots_and_ends_when_it_is_empty() -> None:
    rm = cluster("one", "two", "three")
    requests = run(rm, "job", 2)
    taken = next(name for name in ("one", "two") if rm.connection(name) == requests[0].connection)
    stop(rm, taken)
    assert rm.sent(commands.Vacate) == [
        commands.Vacate(connection=rm.connection("job"), task_executor_id=executor_id(taken))
    ]
    assert rm.sent(commands.StopProgress)[0].slots == ((job_id("job"), 1),)
    assert not rm.sent(commands.Shutdown)
    rm.declare("job", 3)
    (elsewhere,) = rm.sent(commands.RequestSlot)
    assert elsewhere.connection == rm.connection("three")
    rm.accept(elsewhere)
    rm.report(taken, *free(0))
    assert [c.connection for c in rm.sent(commands.Shutdown)] == [rm.connection(taken)]
    rm.declare("job", 4)
    assert not rm.sent(commands.RequestSlot), "its free slot is not given"
    rm.close(taken)
    assert rm.sent(commands.StopEnded) == [commands.StopEnded(request=1)]


def test_without_room_for_its_tasks_nothing_is_changed() -> None:
    rm = cluster("one", "two")
    run(rm, "job", 2)
    (refused,) = stop(rm, "one")
    assert isinstance(refused, commands.StopRefused)
    assert refused.problem == (
        "1 slot is missing elsewhere for the tasks that it runs: 1 slot exists, 1 is taken;"
        " no driver can add TaskExecutors"
    )
    rm.declare("job", 1)
    rm.report("one", *free(0))
    (request,) = run(rm, "another", 1)
    assert request.connection == rm.connection("one"), "it gives slots"


def test_a_forced_drain_waits_neither_for_slots_nor_for_results() -> None:
    rm = cluster("one", "two")
    run(rm, "job", 2)
    stop(rm, "one", force=True)
    assert rm.sent(commands.Vacate)[0].forced
    rm.report("one", *free(0), stored_partitions=3)
    assert rm.sent(commands.Shutdown)


def test_results_that_are_stored_there_are_waited_for() -> None:
    rm = cluster("one", "two")
    rm.report("one", *free(0), stored_partitions=3)
    stop(rm, "one")
    assert rm.sent(commands.StopProgress)[0].stored_partitions == 3
    assert not rm.sent(commands.Shutdown)
    rm.report("one", *free(0), stored_partitions=0)
    assert rm.sent(commands.Shutdown)


def test_a_worker_is_replaced_before_its_tasks_move() -> None:
    rm = Harness(initial_workers=1, worker=WORKER)
    rm.start()
    (first,) = rm.sent(commands.RequestWorker)
    rm.register("one", 2, worker_id=first.worker_id)
    requests = run(rm, "job", 2)
    stop(rm, "one")
    assert not rm.sent(commands.StopRefused)
    (second,) = rm.sent(commands.RequestWorker)
    rm.declare("job", 4)
    rm.register("two", 2, worker_id=second.worker_id)
    rm.accept(*rm.sent(commands.RequestSlot))
    assert rm.count(SlotState.ALLOCATED) == 4
    rm.declare("job", 2)
    rm.report("one", *free(0, 1))
    assert [c.worker_id for c in rm.sent(commands.ReleaseWorker)] == [first.worker_id]
    rm.close("one")
    rm.handle(events.WorkerExited(worker_id=first.worker_id, cause="exit code 0"))
    assert not rm.sent(commands.RequestWorker), "one was started for it"
    assert len(requests) == 2


def test_who_leaves_a_drain_has_it_give_slots_again() -> None:
    rm = Harness(initial_workers=1, worker=WORKER)
    rm.start()
    (first,) = rm.sent(commands.RequestWorker)
    rm.register("one", 2, worker_id=first.worker_id)
    run(rm, "job", 1)
    stop(rm, "one", request=1)
    stop(rm, "one", request=2)
    assert not rm.handle(events.StopAbandoned(request=1)), "another one waits"
    rm.handle(events.StopAbandoned(request=2))
    assert len(rm.sent(commands.VacateWithdrawn)) == 1
    (request,) = run(rm, "another", 1)
    assert request.connection == rm.connection("one")
    assert first.worker_id in rm.core.workers.known


def test_every_job_master_that_connects_hears_of_a_drain() -> None:
    rm = cluster("one", "two")
    (request,) = run(rm, "job", 1)
    name = next(n for n in ("one", "two") if rm.connection(n) == request.connection)
    stop(rm, name)
    rm.break_stream("job")
    rm.register_job("job", epoch=2)
    assert rm.sent(commands.Vacate)[0].connection == rm.connection("job")


def test_requests_that_are_under_way_are_given_up() -> None:
    rm = cluster("one", "two")
    (request,) = rm.submit("job", 1)
    name = next(n for n in ("one", "two") if rm.connection(n) == request.connection)
    sent = stop(rm, name)
    assert [c.allocation_id for c in sent if isinstance(c, commands.FreeSlot)] == [
        request.allocation_id
    ]
    (again,) = [c for c in sent if isinstance(c, commands.RequestSlot)]
    assert again.connection != request.connection
    assert not rm.sent(commands.Shutdown), "it is not known yet whether its slot is free"
    rm.report(name, *free(0))
    assert rm.sent(commands.Shutdown)


def test_one_that_is_lost_while_it_is_drained_has_not_been_drained() -> None:
    rm = cluster("one", "two", "three")
    run(rm, "job", 1)
    name = next(n for n in ("one", "two", "three") if rm.core.table.executors[executor_id(n)].taken)
    stop(rm, name)
    rm.close(name)
    (ended,) = rm.sent(commands.StopEnded)
    assert "closed its connection" in ended.problem


def test_an_immediate_stop_waits_for_nothing() -> None:
    rm = cluster("one")
    run(rm, "job", 1)
    stop(rm, "one", drain=False)
    assert rm.sent(commands.Shutdown)
    assert not rm.sent(commands.Vacate)
    rm.close("one")
    assert rm.sent(commands.StopEnded) == [commands.StopEnded(request=1)]
    assert rm.sent(commands.TaskExecutorLost)


def test_an_unknown_one_is_refused() -> None:
    (refused,) = stop(cluster(), "one")
    assert isinstance(refused, commands.StopRefused) and refused.unknown


def workers(count: int, **settings: object) -> tuple[Harness, list[events.WorkerId]]:
    """A cluster with this many initial workers, of one slot each, which run."""
    rm = Harness(worker=ONE_SLOT, initial_workers=count, **settings)
    rm.start()
    requested = [each.worker_id for each in rm.sent(commands.RequestWorker)]
    for worker_id in requested:
        rm.register(worker_id, 1, worker_id=worker_id)
    return rm, requested


def of_slot(rm: Harness, request: commands.RequestSlot, names: list[events.WorkerId]) -> str:
    return next(name for name in names if rm.connection(name) == request.connection)


def test_a_worker_that_something_else_ends_is_drained_and_replaced() -> None:
    rm, names = workers(2, max_slots=4)
    (request,) = run(rm, "job", 1)
    leaving = of_slot(rm, request, names)
    rm.handle(events.WorkerLeaving(worker_id=WorkerId(leaving), cause="its node is drained"))
    (vacate,) = rm.sent(commands.Vacate)
    assert vacate.task_executor_id == executor_id(leaving) and not vacate.without_slots
    assert len(rm.sent(commands.RequestWorker)) == 1, "its replacement starts"
    assert not rm.sent(commands.Shutdown)
    stop(rm, leaving, request=7)
    rm.handle(events.StopAbandoned(request=7))
    assert not rm.sent(commands.VacateWithdrawn), "no caller withdraws it"
    rm.report(leaving, *free(0))
    assert [c.connection for c in rm.sent(commands.Shutdown)] == [rm.connection(leaving)]
    assert [c.worker_id for c in rm.sent(commands.ReleaseWorker)] == [leaving]


def test_a_worker_that_leaves_before_it_registers_is_drained_then() -> None:
    rm = Harness(worker=ONE_SLOT, max_slots=4)
    rm.start()
    rm.submit("job", 1)
    (first,) = rm.sent(commands.RequestWorker)
    rm.handle(events.WorkerLeaving(worker_id=first.worker_id, cause="its node is drained"))
    (second,) = rm.sent(commands.RequestWorker)
    rm.register(first.worker_id, 1, worker_id=first.worker_id)
    assert not rm.sent(commands.RequestSlot)
    assert [c.worker_id for c in rm.sent(commands.ReleaseWorker)] == [first.worker_id]
    rm.register(second.worker_id, 1, worker_id=second.worker_id)
    assert len(rm.sent(commands.RequestSlot)) == 1


def test_a_worker_of_an_earlier_resourcemanager_that_leaves_is_not_waited_for() -> None:
    rm = Harness(worker=ONE_SLOT, max_slots=4)
    earlier = WorkerId("earlier")
    rm.start(earlier)
    rm.submit("job", 1)
    assert not rm.sent(commands.RequestWorker)
    rm.handle(events.WorkerLeaving(worker_id=earlier, cause="its node is drained"))
    assert len(rm.sent(commands.RequestWorker)) == 1


def replace_worker(rm: Harness, leaving: str) -> None:
    """The drained worker ends, and the new one registers."""
    new = [each.worker_id for each in rm.sent(commands.RequestWorker)]
    rm.report(leaving, *free(0))
    new += [each.worker_id for each in rm.sent(commands.RequestWorker)]
    rm.close(leaving)
    rm.handle(events.WorkerExited(worker_id=WorkerId(leaving), cause="it was released"))
    new += [each.worker_id for each in rm.sent(commands.RequestWorker)]
    (worker_id,) = new
    rm.register(worker_id, 1, worker_id=worker_id)


def test_outdated_workers_are_replaced_one_by_one() -> None:
    rm, names = workers(2, max_slots=3)
    (request,) = run(rm, "job", 1)
    busy = of_slot(rm, request, names)
    (idle,) = set(names) - {busy}
    rm.handle(events.WorkersOutdated(worker_ids=tuple(map(WorkerId, names))))
    assert not rm.sent(commands.Shutdown), "peers register first"
    rm.advance(REGISTRATION_S)
    assert [c.connection for c in rm.sent(commands.Shutdown)] == [rm.connection(idle)]
    assert {each.task_executor_id for each in rm.sent(commands.Vacate)} == {executor_id(idle)}
    rm.close(idle)
    assert not rm.sent(commands.Vacate), "its replacement has not registered"
    replaced = [w for w in rm.core.workers.known if w not in names]
    rm.register(replaced[0], 1, worker_id=replaced[0])
    (vacate,) = rm.sent(commands.Vacate)
    assert vacate.task_executor_id == executor_id(busy) and not vacate.without_slots
    replace_worker(rm, busy)
    assert rm.core.workers.outdated == set()
    assert not rm.sent(commands.Vacate) and not rm.sent(commands.Shutdown)


def test_at_the_limit_an_outdated_worker_ends_before_its_replacement_starts() -> None:
    rm, names = workers(1, max_slots=1)
    run(rm, "job", 1)
    rm.handle(events.WorkersOutdated(worker_ids=tuple(map(WorkerId, names))))
    rm.advance(REGISTRATION_S)
    (vacate,) = rm.sent(commands.Vacate)
    assert vacate.without_slots and not vacate.forced
