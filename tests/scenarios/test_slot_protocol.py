"""The slot protocol under lost, doubled, late and reordered messages, and under deaths of
everybody.

The real SlotManager, and simple models of TaskExecutors, JobMasters and the driver, joined by a
network that a seed makes unkind for a while. After every event the SlotManager's invariants hold
and no allocation is on two slots. Once the network is kind again everything comes to rest:
everybody believes the same, and all that is required and fits is allocated.

A failure names its seed; one seed alone:  FIRESTEEL_SEED=17 pytest
tests/scenarios/test_slot_protocol.py
"""

from __future__ import annotations

import itertools
import os
import random
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from firesteel.common.ids import AllocationId, Epoch, IdSource, JobId, TaskExecutorId
from firesteel.common.resources import UNKNOWN, ResourceProfile
from firesteel.common.service.core import Tick
from resourcemanager.core import commands, events
from resourcemanager.core.commands import Command
from resourcemanager.core.core import SlotManager
from resourcemanager.core.events import Connection, Event, WorkerId
from resourcemanager.core.settings import Settings
from resourcemanager.core.slots import SlotState
from tests.long import long_after
from tests.simulation.loop import VirtualLoop
from tests.slot_manager import GIB, SLOT, WORKER

SEEDS = (
    [int(os.environ["FIRESTEEL_SEED"])]
    if "FIRESTEEL_SEED" in os.environ
    else long_after(20, range(150))
)
CHAOS_S = 60.0  # virtual seconds of faults
REST_S = 120.0  # more than any timeout of the protocol added up
PERIOD_S = 2.0  # heartbeats, reports, offers that are still unanswered
LARGE = ResourceProfile(cpu_cores=1.5, heap_bytes=GIB + GIB // 2, off_heap_bytes=GIB)


@dataclass(frozen=True)
class Faults:
    lost: float
    doubled: float
    delay_s: float


UNKIND = Faults(lost=0.1, doubled=0.1, delay_s=1.5)
KIND = Faults(lost=0.0, doubled=0.0, delay_s=0.01)


class Network:
    """Datagrams on the simulation's event loop: crueler than its streams, which lose nothing while
    they live. `after_each` is called after everything that happens.
    """

    def __init__(self, seed: int, after_each: Callable[[], None]) -> None:
        self.random = random.Random(seed)
        self.ids = IdSource(b"simulation %d" % seed)
        self.faults = UNKIND
        self._after_each = after_each
        self._loop = VirtualLoop(self.random, _raise)

    @property
    def now(self) -> float:
        return self._loop.time()

    def after(self, seconds: float, action: Callable[[], None]) -> None:
        self._loop.call_later(seconds, self._act, action)

    def _act(self, action: Callable[[], None]) -> None:
        action()
        self._after_each()

    def send(self, deliver: Callable[[], None]) -> None:
        if self.random.random() < self.faults.lost:
            return
        for _ in range(2 if self.random.random() < self.faults.doubled else 1):
            self.after(self.random.random() * self.faults.delay_s, deliver)

    def run(self, for_s: float) -> None:
        self._loop.run_until(self.now + for_s)


def _raise(process: object, where: str, error: BaseException | None) -> None:
    raise AssertionError(where) from error


@dataclass
class Held:
    allocation_id: AllocationId
    job_id: JobId
    profile: ResourceProfile


class ModelTaskExecutor:
    def __init__(self, world: World, slots: int, worker_id: WorkerId | None) -> None:
        self.world, self.worker_id = world, worker_id
        self.id = TaskExecutorId(world.network.ids.next())
        self.total = SLOT * slots
        self.slots: dict[int, Held | None] = dict.fromkeys(range(slots))
        self.alive = True
        self.connection: Connection | None = None
        self.epoch = Epoch(0)
        self.sequence = 0
        self.connect()
        self.every_period()

    def connect(self) -> None:
        self.connection, self.epoch = self.world.connect(self), Epoch(0)
        self.sequence = 0

    def register(self) -> None:
        if self.connection is None:
            return
        self.world.to_manager(
            events.TaskExecutorRegistered(
                connection=self.connection,
                task_executor_id=self.id,
                address="te:1",
                host="te",
                pid=1,
                worker_id=self.worker_id,
                total=self.total,
                default_slot=SLOT,
                slots=self.statuses(),
            )
        )

    def every_period(self) -> None:
        if not self.alive:
            return
        if self.epoch == 0:
            self.register()  # not welcomed yet
        self.report()
        for held in filter(None, self.slots.values()):
            self.offer(held)
        self.world.network.after(PERIOD_S, self.every_period)

    def statuses(self) -> tuple[events.SlotStatus, ...]:
        return tuple(
            events.SlotStatus(slot_index=index, profile=UNKNOWN)
            if held is None
            else events.SlotStatus(
                slot_index=index,
                profile=held.profile,
                allocation_id=held.allocation_id,
                job_id=held.job_id,
            )
            for index, held in self.slots.items()
        )

    def report(self) -> None:
        self.sequence += 1
        if self.connection is not None:
            self.world.to_manager(
                events.SlotsReported(
                    connection=self.connection,
                    epoch=self.epoch,
                    sequence=self.sequence,
                    slots=self.statuses(),
                )
            )

    def receive(self, command: Command, epoch: Epoch) -> None:
        assert self.connection is not None
        match command:
            case commands.Welcome():
                self.epoch = epoch
            case commands.RequestSlot():
                if (reason := self.refusal(command)) is None:
                    held = Held(command.allocation_id, command.job_id, command.profile)
                    self.slots[command.slot_index] = held
                    answer: Event = events.SlotRequestAccepted(
                        connection=self.connection,
                        epoch=self.epoch,
                        allocation_id=command.allocation_id,
                    )
                    self.offer(held)
                else:
                    answer = events.SlotRequestRejected(
                        connection=self.connection,
                        epoch=self.epoch,
                        allocation_id=command.allocation_id,
                        reason=reason,
                    )
                self.world.to_manager(answer)
            case commands.FreeSlot(allocation_id=allocation_id):
                self.release(allocation_id)
            case commands.Shutdown():
                self.die("shut down", orderly=True)
            case _:
                pass

    def refusal(self, request: commands.RequestSlot) -> str | None:
        held = self.slots[request.slot_index]
        if held is not None and held.allocation_id == request.allocation_id:
            return None
        if held is not None:
            return f"taken by {held.allocation_id}"
        left = self.total
        for other in filter(None, self.slots.values()):
            left = left - other.profile
        return None if request.profile.fits_in(left) else "too large"

    def offer(self, held: Held) -> None:
        self.world.network.send(lambda: self.world.offered(self, held))

    def release(self, allocation_id: AllocationId) -> None:
        for index, held in self.slots.items():
            if held is not None and held.allocation_id == allocation_id:
                self.slots[index] = None
                self.report()

    def die(self, cause: str, *, orderly: bool = False) -> None:
        if not self.alive:
            return
        self.alive = False
        self.world.executors.remove(self)
        self.world.disconnect(self, orderly=orderly)
        if self.worker_id is not None:
            self.world.driver_says(events.WorkerExited(worker_id=self.worker_id, cause=cause))


class ModelJobMaster:
    def __init__(self, world: World, required: dict[ResourceProfile, int]) -> None:
        self.world = world
        self.id = JobId(world.network.ids.next())
        self.alive = True
        self.welcomed = False
        self.epoch = Epoch(1)
        self.connection: Connection | None = None
        self.sequence = 0
        self.required = required
        self.slots: dict[AllocationId, tuple[ModelTaskExecutor, ResourceProfile]] = {}
        self.refused: set[AllocationId] = (
            set()
        )  # what was given back or not wanted is never taken again
        self.connect()
        self.every_period()

    def connect(self) -> None:
        self.connection, self.welcomed = self.world.connect(self), False

    def every_period(self) -> None:
        if not self.alive:
            return
        if not self.welcomed and self.connection is not None:
            self.world.to_manager(
                events.JobMasterRegistered(
                    connection=self.connection,
                    job_id=self.id,
                    epoch=self.epoch,
                    address="jm:1",
                    job_name="job",
                )
            )
        self.declare()
        # A broken stream has this effect: the slots of a lost TaskExecutor are lost.
        for allocation_id, (executor, _) in list(self.slots.items()):
            if not executor.alive or all(
                h is None or h.allocation_id != allocation_id for h in executor.slots.values()
            ):
                self.forget(allocation_id)
        self.world.network.after(PERIOD_S, self.every_period)

    def declare(self) -> None:
        """As good as a heartbeat."""
        if self.connection is None:
            return
        requirements = tuple(
            events.Requirement(profile=p, count=n) for p, n in self.required.items() if n
        )
        self.world.to_manager(
            events.RequirementsDeclared(
                connection=self.connection,
                job_id=self.id,
                epoch=self.epoch,
                sequence=self.sequence,
                requirements=requirements,
            )
        )

    def require(self, required: dict[ResourceProfile, int]) -> None:
        self.required = required
        self.sequence += 1
        self.declare()
        for allocation_id in list(self.slots):
            if self.has_too_many(self.slots[allocation_id][1]):
                self.give_back(allocation_id)

    def give_back(self, allocation_id: AllocationId) -> None:
        executor, _ = self.slots[allocation_id]
        self.forget(allocation_id)
        self.world.network.send(lambda: executor.release(allocation_id))

    def forget(self, allocation_id: AllocationId) -> None:
        self.slots.pop(allocation_id, None)
        self.refused.add(allocation_id)

    def offered(self, executor: ModelTaskExecutor, held: Held) -> None:
        if held.allocation_id in self.slots:
            return
        if held.allocation_id in self.refused or not self.wants(held.profile):
            self.refused.add(held.allocation_id)
            self.world.network.send(lambda: executor.release(held.allocation_id))
        else:
            self.slots[held.allocation_id] = (executor, held.profile)

    def wants(self, profile: ResourceProfile) -> bool:
        return self.having(profile) < self.wanting(profile)

    def has_too_many(self, profile: ResourceProfile) -> bool:
        return self.having(profile) > self.wanting(profile)

    def having(self, profile: ResourceProfile) -> int:
        return sum(p == profile for _, p in self.slots.values())

    def wanting(self, profile: ResourceProfile) -> int:
        """Returns how many slots of this size are required; UNKNOWN became the default slot."""
        return self.required.get(UNKNOWN if profile == SLOT else profile, 0)

    def receive(self, command: Command, epoch: Epoch) -> None:
        match command:
            case commands.Welcome():
                self.welcomed = True
                self.declare()
            case commands.TaskExecutorLost(task_executor_id=lost):
                for allocation_id, (executor, _) in list(self.slots.items()):
                    if executor.id == lost:
                        self.give_back(allocation_id)
            case _:
                pass

    def finds_lost(self, executor: ModelTaskExecutor) -> None:
        """Rightly or not."""
        for allocation_id in [a for a, (of, _) in self.slots.items() if of is executor]:
            self.forget(allocation_id)
        if self.connection is not None:
            self.world.to_manager(
                events.TaskExecutorReportedLost(
                    connection=self.connection,
                    job_id=self.id,
                    epoch=self.epoch,
                    task_executor_id=executor.id,
                    cause="silent",
                )
            )

    def die(self, *, orderly: bool) -> None:
        self.alive = False
        self.world.job_masters.remove(self)
        self.world.disconnect(self, orderly=orderly)


Model = ModelTaskExecutor | ModelJobMaster


@dataclass
class World:
    """The SlotManager and everybody around it."""

    seed: int
    settings: Settings
    network: Network = field(init=False)
    executors: list[ModelTaskExecutor] = field(default_factory=list)
    job_masters: list[ModelJobMaster] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.network = Network(self.seed, self.no_allocation_on_two_slots)
        self.connections: dict[Connection, Model] = {}
        self._numbers = itertools.count(1)
        self._ticking_at: float | None = None
        self.start_manager(1)

    # ------------------------------------------------------------ the SlotManager and its driver

    def start_manager(self, epoch: int) -> None:
        settings = {name: getattr(self.settings, name) for name in Settings.__slots__} | {
            "epoch": Epoch(epoch)
        }
        self.manager = SlotManager(Settings(**settings), IdSource(b"manager %d" % epoch))
        self.handle(events.Started())

    def restart_manager(self) -> None:
        """Dies and comes back knowing nothing. Its driver's processes live on."""
        for model in list(self.connections.values()):
            self.disconnect(model, orderly=False, told=False)
            self.network.after(
                self.network.random.random(), lambda model=model: self.reconnect(model)
            )
        self.start_manager(self.manager.settings.epoch + 1)

    def handle(self, event: Event) -> None:
        manager = self.manager
        for command in manager.handle(event, self.network.now).commands:
            self.carry_out(command, manager.settings.epoch)
        manager.validate()
        self.schedule_tick()

    def schedule_tick(self) -> None:
        deadline = self.manager.next_deadline()
        if deadline is None or (
            self._ticking_at is not None and self.network.now < self._ticking_at <= deadline
        ):
            return
        self._ticking_at = deadline
        self.network.after(max(0.0, deadline - self.network.now), self.tick)

    def tick(self) -> None:
        self._ticking_at = None
        self.handle(Tick())

    def carry_out(self, command: Command, epoch: Epoch) -> None:
        match command:
            case commands.RequestWorker(worker_id=worker_id):
                self.network.after(
                    1 + self.network.random.random() * 3, lambda: self.worker_comes_up(worker_id)
                )
            case commands.ReleaseWorker(worker_id=worker_id):
                for executor in [x for x in self.executors if x.worker_id == worker_id]:
                    self.network.after(0.1, lambda executor=executor: executor.die("released"))
            case commands.ProbeTaskExecutor(task_executor_id=probed):
                if all(executor.id != probed for executor in self.executors):
                    gone = events.TaskExecutorGone(task_executor_id=probed)
                    self.network.after(self.network.random.random(), lambda: self.handle(gone))
            case commands.CloseConnection(connection=connection):
                model = self.connections.get(connection)
                if model is not None:
                    self.disconnect(model, orderly=False)
                    self.network.after(0.2, lambda: self.reconnect(model))
            case _:
                self.network.send(lambda: self.deliver(command, epoch))

    def worker_comes_up(self, worker_id: WorkerId) -> None:
        if self.network.faults is UNKIND and self.network.random.random() < 0.2:
            self.driver_says(events.WorkerStartFailed(worker_id=worker_id, cause="no memory"))
        else:
            self.executors.append(ModelTaskExecutor(self, WORKER.slots, worker_id))
            self.driver_says(events.WorkerStarted(worker_id=worker_id))

    def driver_says(self, event: Event) -> None:
        self.network.after(0.01, lambda: self.handle(event))

    # ------------------------------------------------------------ streams

    def connect(self, model: Model) -> Connection:
        connection = Connection(next(self._numbers))
        self.connections[connection] = model
        return connection

    def disconnect(self, model: Model, *, orderly: bool, told: bool = True) -> None:
        connection, model.connection = model.connection, None
        if connection is None or self.connections.pop(connection, None) is None or not told:
            return
        event = (
            events.ConnectionClosed(connection=connection)
            if orderly
            else events.ConnectionBroken(connection=connection, cause="")
        )
        self.network.after(0.01, lambda: self.handle(event))

    def reconnect(self, model: Model) -> None:
        if model.alive and model.connection is None:
            model.connect()

    def to_manager(self, event: Event) -> None:
        """Late messages of streams that are gone arrive as well: the fence must stop them."""
        self.network.send(lambda: self.handle(event))

    def deliver(self, command: Command, epoch: Epoch) -> None:
        model = self.connections.get(command.connection)  # type: ignore[union-attr]
        if model is not None and model.alive:
            model.receive(command, epoch)

    def offered(self, executor: ModelTaskExecutor, held: Held) -> None:
        job_master = next((j for j in self.job_masters if j.id == held.job_id), None)
        if job_master is None:
            executor.release(held.allocation_id)  # the JobMaster does not answer
        elif executor.alive and held in executor.slots.values():
            job_master.offered(executor, held)

    # ------------------------------------------------------------ faults

    def something_happens(self) -> None:
        choose = self.network.random
        if self.network.faults is not UNKIND:
            return
        match choose.randrange(13):
            case 0 | 1 if len(self.executors) < 5:
                self.executors.append(ModelTaskExecutor(self, choose.randint(1, 3), None))
            case 2 if self.executors:
                choose.choice(self.executors).die("killed", orderly=choose.random() < 0.3)
            case 3 | 4 if self.job_masters or self.executors:
                model = choose.choice([*self.job_masters, *self.executors])
                self.disconnect(model, orderly=False)
                self.network.after(choose.random() * 2, lambda: self.reconnect(model))
            case 5 | 6 if len(self.job_masters) < 4:
                self.job_masters.append(ModelJobMaster(self, self.some_requirements()))
            case 7 if self.job_masters:
                choose.choice(self.job_masters).die(orderly=choose.random() < 0.5)
            case 8 | 9 | 10 if self.job_masters:
                job_master = choose.choice(self.job_masters)
                job_master.require(self.some_requirements())
            case 11 if choose.random() < 0.3:
                self.restart_manager()
            case 12 if self.job_masters and self.executors:
                choose.choice(self.job_masters).finds_lost(choose.choice(self.executors))
            case _:
                pass
        self.network.after(choose.random() * 2, self.something_happens)

    def some_requirements(self) -> dict[ResourceProfile, int]:
        choose = self.network.random
        return {UNKNOWN: choose.randint(0, 3), LARGE: choose.choice([0, 0, 1])}

    # ------------------------------------------------------------ what must hold

    def no_allocation_on_two_slots(self) -> None:
        held = [h.allocation_id for x in self.executors for h in x.slots.values() if h is not None]
        assert len(set(held)) == len(held), f"seed {self.seed}: an allocation is on two slots"

    def at_rest(self) -> None:
        table = self.manager.table
        assert {x.id for x in self.executors} == set(table.executors), "TaskExecutors"
        assert table.count(SlotState.FREE) + table.count(SlotState.ALLOCATED) == table.total, (
            "free + allocated = total"
        )
        for executor in self.executors:
            believed = {i: s.allocation_id for i, s in table.executors[executor.id].slots.items()}
            assert believed == {i: h and h.allocation_id for i, h in executor.slots.items()}, (
                "slots as their owner has them"
            )
        on_slots = {
            h.allocation_id for x in self.executors for h in x.slots.values() if h is not None
        }
        used = {
            allocation_id for job_master in self.job_masters for allocation_id in job_master.slots
        }
        assert on_slots == used, (
            "every allocated slot is held by its JobMaster, and the other way round"
        )
        assert {j.id for j in self.job_masters} == set(self.manager.jobs), "JobMasters"
        for job_master in self.job_masters:
            surplus = [p for _, p in job_master.slots.values() if job_master.has_too_many(p)]
            assert not surplus, "no JobMaster has more slots than it requires"
            for profile, count in job_master.required.items():
                size = SLOT if profile.unknown else profile
                if job_master.having(size) < count:
                    assert not self.would_fit(size), f"{size} is required and would fit"
        if self.settings.worker is not None:
            assert (
                len([x for x in self.executors if x.worker_id]) >= self.settings.initial_workers
            ), "initial workers"

    def would_fit(self, size: ResourceProfile) -> bool:
        return any(
            x.free_slots() and size.fits_in(x.remaining)
            for x in self.manager.table.executors.values()
            if not x.leaving
        )


def play(seed: int, settings: Settings) -> World:
    world = World(seed, settings)
    world.something_happens()
    world.network.run(CHAOS_S)
    world.network.faults = KIND
    for model in (*world.executors, *world.job_masters):
        world.network.after(1.0, lambda model=model: world.reconnect(model))
    world.network.run(REST_S)
    try:
        world.at_rest()
    except AssertionError as error:
        raise AssertionError(f"seed {seed}, at rest: {error}") from error
    return world


@pytest.mark.parametrize("seed", SEEDS)
def test_started_by_hand(seed: int) -> None:
    play(seed, Settings(epoch=Epoch(1), spread=seed % 2 == 0))


@pytest.mark.parametrize("seed", SEEDS)
def test_with_workers(seed: int) -> None:
    world = play(
        seed,
        Settings(
            epoch=Epoch(1),
            initial_workers=1,
            max_slots=6,
            worker=WORKER,
            idle_timeout_s=5.0,
            heartbeat_timeout_s=10.0,
        ),
    )
    idle = [x for x in world.executors if x.worker_id and not any(x.slots.values())]
    busy = [x for x in world.executors if x.worker_id and any(x.slots.values())]
    assert len(idle) <= max(0, 1 - len(busy)), (
        f"seed {seed}: idle workers beyond the initial ones are stopped"
    )


def test_the_network_is_unkind() -> None:
    """The seeds do meet stale messages of every kind; else the scenarios above show little."""
    dropped: set[str] = set()
    for seed in range(10):
        dropped |= set(play(seed, Settings(epoch=Epoch(1))).manager.fence.dropped)
    assert {
        "TaskExecutor's connection is superseded or not registered",
        "JobMaster's connection is superseded or not registered",
        "slot report is older than the last",
        "declaration is older than the last",
        "registration repeated on its connection",
        "answer to a slot request that is settled or abandoned",
    } <= dropped
