"""Contenders for one Lease on virtual time, with clocks that differ in time and speed, and faults
drawn from a seed: the API server is away or slow, answers are lost, the watch lags, processes
pause, are killed or stop, and people edit or delete the Lease.
"""

from __future__ import annotations

import heapq
import itertools
import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from firesteel.common.ids import Epoch
from firesteel.common.leader import NO_EPOCH
from firesteel.common.service.core import Tick
from firesteel.high_availability.election import ElectionState, End, Lead, Resigned
from firesteel.high_availability.kubernetes.core import (
    Durations,
    Failed,
    Found,
    LeaseCore,
    Observed,
    Read,
    Refused,
    Release,
    Stored,
    Write,
)
from firesteel.high_availability.kubernetes.lease import Lease
from tests.long import long_after

CONTENDERS = 3
FAULTS_S = 1500.0  # then there are none
CALM_S = 150.0
TIMEOUT_S = Durations().renew_deadline_s / 3
LATE_S = 8.0  # a request may be executed so long after it was sent
BETWEEN_EDITS_S = 60.0  # no two edits of the Lease within a lease duration


class World:
    """The API server, the Lease and the time; and the checks."""

    def __init__(self, seed: int, *, with_store: bool) -> None:
        self.random = random.Random(seed)
        self.with_store = with_store
        self.now = 1000.0
        self.lease: Lease | None = None
        self.away = False
        self.calm = False
        self.stored_epoch = NO_EPOCH  # in the job store
        self.acting_epoch = NO_EPOCH
        self.leaders: dict[int, str] = {}
        self.log: list[str] = []
        self._versions = itertools.count(1)
        self._queue: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()
        self.contenders = [Contender(self, index) for index in range(CONTENDERS)]

    def after(self, delay_s: float, action: Callable[[], None]) -> None:
        heapq.heappush(self._queue, (self.now + delay_s, next(self._order), action))

    def run(self, for_s: float) -> None:
        end = self.now + for_s
        while self._queue and self._queue[0][0] <= end:
            self.now, _, action = heapq.heappop(self._queue)
            self.check()
            action()
            self.check()
        self.now = end

    def store(self, lease: Lease | None) -> Lease | None:
        """Stores the Lease, and lets the watches know."""
        if lease is not None:
            created_s = self.lease.created_s if self.lease else int(self.now)
            lease = replace(lease, version=str(next(self._versions)), created_s=created_s)
        self.lease = lease
        self.log.append(f"{self.now:.2f} stored {lease}")
        for contender in self.contenders:
            contender.watch(lease)
        return lease

    def write(self, written: Lease) -> Lease | None:
        """Executes a write; None: it is refused."""
        if written.version != (self.lease.version if self.lease else ""):
            return None
        return self.store(written)

    def check(self) -> None:
        acting = [each for each in self.contenders if each.acts]
        assert len(acting) <= 1, self.story(f"{len(acting)} leaders act")
        for each in acting:
            epoch = each.core.epoch
            assert epoch >= self.acting_epoch, self.story("an epoch falls")
            assert self.leaders.setdefault(epoch, each.holder) == each.holder, self.story(
                "an epoch repeats"
            )
            self.acting_epoch = epoch
            self.stored_epoch = max(self.stored_epoch, epoch)

    def story(self, what: str) -> str:
        return "\n".join((*self.log[-40:], f"{self.now:.2f} {what}"))


class Contender:
    """One process after another, with a clock that is wrong in time and speed."""

    def __init__(self, world: World, index: int) -> None:
        self._world = world
        self._index = index
        self._starts = 0
        self._offset_s = world.random.uniform(-1e6, 1e6)
        self._speed = world.random.uniform(0.98, 1.02)
        self.cut_off = False
        self.start()

    def start(self) -> None:
        world = self._world
        self._starts += 1
        self.holder = f"{self._index}.{self._starts}"
        self.alive, self.paused = True, False
        self._inbox: list[Any] = []
        self._watched_at = 0.0
        self.core = LeaseCore(
            holder=self.holder,
            address=self.holder,
            durations=Durations(),
            now=self.clock,
            store_id="store" if world.with_store else "",
            above=Epoch(world.stored_epoch) if world.with_store else NO_EPOCH,
        )
        self.handle(Tick())
        self.watch(world.lease)

    @property
    def clock(self) -> float:
        return self._offset_s + self._speed * self._world.now

    @property
    def acts(self) -> bool:
        return self.alive and not self.paused and self.core.acts(self.clock)

    def watch(self, lease: Lease | None) -> None:
        if self._world.away or self.cut_off:
            return
        drawn = self._world.random
        lag_s = drawn.uniform(0.01, 0.3) if drawn.random() < 0.95 else drawn.uniform(1, 25)
        self._watched_at = max(self._watched_at, self._world.now + lag_s)
        self._later(self._watched_at - self._world.now, Observed(lease=lease))

    def handle(self, event: Any) -> None:
        if not self.alive:
            return
        if self.paused:
            self._inbox.append(event)
            return
        for command in self.core.handle(event, self.clock).commands:
            self._execute(command)
        self.core.validate()
        deadline = self.core.next_deadline()
        if deadline is not None and self.alive:
            wait_s = max((deadline - self.clock) / self._speed, 0.0)
            self._world.after(wait_s + 1e-6, self._same(lambda: self._tick(deadline)))

    def pause(self, for_s: float) -> None:
        if self.alive and not self.paused:
            self.paused = True
            self._world.after(for_s, self._same(self._resume))

    def kill(self, away_s: float) -> None:
        if self.alive:
            self.alive = False
            self._world.after(away_s, self.start)

    def stop(self, away_s: float) -> None:
        """Stops as SIGTERM makes it."""
        if not self.alive or self.paused:
            return
        for command in self.core.handle(Resigned(), self.clock).commands:
            if isinstance(command, Release):
                self._release(command.lease)
        self.kill(away_s)

    # ---- inside

    def _same(self, action: Callable[[], None]) -> Callable[[], None]:
        """Does nothing in a later process."""
        starts = self._starts
        return lambda: action() if self.alive and self._starts == starts else None

    def _later(self, delay_s: float, event: Any) -> None:
        self._world.after(delay_s, self._same(lambda: self.handle(event)))

    def _tick(self, deadline: float) -> None:
        if self.core.next_deadline() == deadline or self.paused:
            self.handle(Tick())

    def _resume(self) -> None:
        self.paused = False
        self._world.check()  # before it has noticed anything
        waiting, self._inbox = self._inbox, []
        if self._world.random.random() < 0.5:
            waiting.insert(0, Tick())
        for event in (*waiting, Tick()):
            self.handle(event)

    def _release(self, lease: Lease) -> None:
        def execute() -> None:
            world = self._world
            if world.away or world.lease is None:
                return
            if world.lease.version == lease.version or self.core.owns(world.lease):
                world.store(replace(world.lease, holder="", leader=None))

        self._world.after(self._world.random.uniform(0.005, 1.0), execute)

    def _execute(self, command: Any) -> None:
        world = self._world
        match command:
            case Read() | Write():
                drawn = world.random
                late = not world.calm and drawn.random() < 0.05
                delay_s = drawn.uniform(0.0, LATE_S) if late else drawn.uniform(0.002, 0.05)
                world.after(delay_s, self._carried(command, world.now, self._starts))
                self._later(TIMEOUT_S, Failed(number=command.number))
            case Lead():
                world.log.append(f"{world.now:.2f} {self.holder} leads with {command.epoch}")
            case End():
                world.log.append(f"{world.now:.2f} {self.holder} ends: {command.reason}")
                self.kill(world.random.uniform(0.1, 5.0))
            case _:
                pass

    def _carried(self, command: Read | Write, sent_at: float, starts: int) -> Callable[[], None]:
        """Executes a request, also of a process that was killed in the meantime."""

        def execute() -> None:
            world = self._world
            if world.away or self.cut_off:
                return
            if isinstance(command, Read):
                answer: Any = Found(number=command.number, lease=world.lease)
            elif (stored := world.write(command.lease)) is not None:
                answer = Stored(number=command.number, lease=stored)
            else:
                answer = Refused(number=command.number)
            lost = not world.calm and world.random.random() < 0.03
            if not lost and world.now - sent_at < TIMEOUT_S and self._starts == starts:
                self._later(world.random.uniform(0.002, 0.05), answer)

        return execute


class Faults:
    def __init__(self, world: World) -> None:
        self._world = world
        self._until = world.now + FAULTS_S
        self._edit_at = world.now + BETWEEN_EDITS_S
        self._next()

    def _next(self) -> None:
        world, drawn = self._world, self._world.random
        wait_s = drawn.expovariate(1 / 12.0)
        if world.now + wait_s < self._until:
            world.after(wait_s, self._inject)

    def _inject(self) -> None:
        world, drawn = self._world, self._world.random
        contender = drawn.choice(world.contenders)
        match drawn.randrange(6):
            case 0:
                world.away = True
                world.after(drawn.choice((1.0, 5.0, 12.0, 90.0)), self._come_back)
            case 1:
                contender.cut_off = True
                world.after(drawn.uniform(1.0, 40.0), lambda: self._heal(contender))
            case 2:
                contender.pause(drawn.uniform(0.5, 60.0))
            case 3:
                contender.kill(drawn.uniform(1.0, 20.0))
            case 4:
                contender.stop(drawn.uniform(1.0, 20.0))
            case _ if world.now >= self._edit_at:
                self._edit_at = world.now + BETWEEN_EDITS_S
                self._edit()
        self._next()

    def _edit(self) -> None:
        world, lease = self._world, self._world.lease
        if lease is None:
            return
        match world.random.randrange(5):
            case 0 | 1:
                world.store(None)
            case 2:
                world.store(replace(lease, holder=""))
            case 3:
                world.store(replace(lease, transitions=0))
            case _:
                world.store(lease)  # its labels

    def _come_back(self) -> None:
        self._world.away = False
        for contender in self._world.contenders:
            contender.watch(self._world.lease)

    def _heal(self, contender: Contender) -> None:
        contender.cut_off = False
        contender.watch(self._world.lease)


@pytest.mark.parametrize("with_store", [True, False])
@pytest.mark.parametrize("seed", long_after(25, range(400)))
def test_at_most_one_leader_acts_and_epochs_only_rise(seed: int, with_store: bool) -> None:
    world = World(seed, with_store=with_store)
    Faults(world)
    world.run(FAULTS_S)
    led, world.calm = len(world.leaders), True
    world.run(CALM_S)
    assert any(each.acts for each in world.contenders), world.story("nobody acts")
    assert led >= 3, "faults change leaders"


def test_a_simulated_outage_changes_no_leader() -> None:
    world = World(7, with_store=True)
    world.run(30.0)
    (leader,) = (each for each in world.contenders if each.acts)
    world.away = True
    world.run(12.0)
    assert not leader.acts
    assert leader.core.state is ElectionState.PAUSED
    world.run(200.0)
    world.away = False
    world.run(10.0)
    assert leader.acts and len(world.leaders) == 1


def test_a_simulated_leader_that_stops_is_followed_at_once() -> None:
    world = World(8, with_store=True)
    world.run(30.0)
    (leader,) = (each for each in world.contenders if each.acts)
    leader.stop(1000.0)
    world.run(3.0)
    assert any(each.acts for each in world.contenders)
