from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import pytest

from firesteel.common.service.core import Effects, Tick
from firesteel.common.service.core_loop import CoreLoop, MailboxFull
from tests.waiting import PATIENCE_S


@dataclass
class Recorder:
    """A core that answers each event from a script and records what it handles."""

    answers: dict[str, Effects[str, str]] = field(default_factory=dict)
    deadline: float | None = None
    handled: list[object] = field(default_factory=list)

    def handle(self, event: str | Tick, now: float) -> Effects[str, str]:
        self.handled.append((event, now) if isinstance(event, Tick) else event)
        if isinstance(event, Tick):
            self.deadline = None
            return Effects(commands=["ticked"])
        return self.answers.get(event, Effects())

    def next_deadline(self) -> float | None:
        return self.deadline


async def run(
    core: Recorder,
    *events: str,
    execute: Callable[[str], None] | None = None,
    persist: Callable[[Sequence[str]], None] | None = None,
    clock: Callable[[], float] = lambda: 0.0,
    until: str = "stop",
) -> list[str]:
    """Runs the loop over these events until the core commands `until`; everything that was done,
    in order.
    """
    done: list[str] = []

    def carry_out(command: str) -> None:
        done.append(command)
        if execute:
            execute(command)
        if command == until:
            loop.stop()

    async def save(records: Sequence[str]) -> None:
        done.append(f"saving {' '.join(records)}")
        await asyncio.sleep(0)
        if persist:
            persist(records)
        done.append(f"saved {' '.join(records)}")

    loop = CoreLoop(core, execute=carry_out, persist=save, clock=clock)
    for event in events:
        loop.post(event)
    try:
        await asyncio.wait_for(loop.run(), PATIENCE_S)
    except RuntimeError as error:
        done.append(f"raised {error}")
    return done


STOP: dict[str, Effects[str, str]] = {"end": Effects(commands=["stop"])}


async def test_records_are_saved_before_commands_and_the_next_event_waits() -> None:
    core = Recorder(
        {
            "a": Effects(records=["r1", "r2"], commands=["c1", "c2"]),
            "b": Effects(commands=["c3"]),
            **STOP,
        }
    )
    assert await run(core, "a", "b", "end") == [
        "saving r1 r2",
        "saved r1 r2",
        "c1",
        "c2",
        "c3",
        "stop",
    ]


async def test_what_cannot_be_saved_is_not_acted_on() -> None:
    def refuse(records: Sequence[str]) -> None:
        raise RuntimeError("a newer leader wrote")

    core = Recorder({"a": Effects(records=["r"], commands=["c"])})
    assert await run(core, "a", "b", persist=refuse) == ["saving r", "raised a newer leader wrote"]
    assert core.handled == ["a"]


async def test_a_command_that_raises_ends_the_driver() -> None:
    def fail(command: str) -> None:
        raise RuntimeError("wrong")

    assert await run(Recorder({"a": Effects(commands=["c", "d"])}), "a", execute=fail) == [
        "c",
        "raised wrong",
    ]


async def test_results_of_commands_come_back_as_events_behind_those_that_wait() -> None:
    core = Recorder({"a": Effects(commands=["ask"]), "answer": Effects(commands=["stop"])})
    loop: CoreLoop[str, str, str]

    def execute(command: str) -> None:
        loop.post("answer") if command == "ask" else loop.stop()

    loop = CoreLoop(core, execute=execute)
    loop.post("a")
    loop.post("b")
    await loop.run()
    assert core.handled == ["a", "b", "answer"]


async def test_a_core_gets_a_tick_at_its_deadline() -> None:
    deadline = time.monotonic() + 0.05
    core = Recorder(deadline=deadline)
    assert await run(core, clock=time.monotonic, until="ticked") == ["ticked"]
    [(event, now)] = core.handled
    assert event == Tick()
    assert now >= deadline


async def test_mail_that_has_come_is_handled_before_a_deadline_that_is_past() -> None:
    core = Recorder(deadline=5.0)
    assert await run(core, "a", "b", clock=lambda: 5.5, until="ticked") == ["ticked"]
    assert core.handled == ["a", "b", (Tick(), 5.5)]


async def test_mail_that_keeps_coming_does_not_hold_a_deadline_back() -> None:
    core = Recorder({"a": Effects(commands=["again"])}, deadline=5.0)
    loop: CoreLoop[str, str, str]

    def execute(command: str) -> None:
        loop.post("a") if command == "again" else loop.stop()

    loop = CoreLoop(core, execute=execute, clock=lambda: 5.5)
    loop.post("a")
    await loop.run()
    assert core.handled == ["a", (Tick(), 5.5)]


async def test_after_a_pause_waiting_mail_is_handled_before_the_deadline() -> None:
    """The heartbeat arrives a moment after the process has resumed; its deadline is long past."""
    now = 4.0
    core = Recorder(deadline=5.0)
    loop: CoreLoop[str, str, str] = CoreLoop(
        core, execute=lambda command: loop.stop(), clock=lambda: now
    )
    running = asyncio.create_task(loop.run())
    await asyncio.sleep(0)
    now = 25.0  # the process was paused for 20 s
    asyncio.get_running_loop().call_later(1.1, loop.post, "heartbeat")
    await asyncio.wait_for(running, PATIENCE_S)
    assert core.handled == ["heartbeat", (Tick(), 25.0)]


async def test_a_deadline_ahead_does_not_delay_events() -> None:
    core = Recorder(STOP, deadline=1000.0)
    assert await run(core, "a", "end") == ["stop"]
    assert core.handled == ["a", "end"]


async def test_what_still_waits_when_it_is_stopped_is_dropped() -> None:
    core = Recorder(STOP)
    await run(core, "end", "a", "b")
    assert core.handled == ["end"]


async def test_an_idle_driver_stops_immediately_and_takes_nothing_more() -> None:
    core = Recorder()
    loop: CoreLoop[str, str, str] = CoreLoop(core, execute=lambda command: None)
    running = asyncio.create_task(loop.run())
    await asyncio.sleep(0)
    loop.stop()
    await asyncio.wait_for(running, PATIENCE_S)
    loop.post("a")
    assert core.handled == []


async def test_a_full_mailbox_refuses() -> None:
    loop: CoreLoop[str, str, str] = CoreLoop(
        Recorder(), execute=lambda command: None, mailbox_size=2, name="slots"
    )
    loop.post("a")
    loop.post("b")
    with pytest.raises(MailboxFull, match="slots: 2 events are waiting"):
        loop.post("c")


class Office:
    """A leader's, which may act or not."""

    def __init__(self) -> None:
        self.may_act = asyncio.Event()

    def acts(self) -> bool:
        return self.may_act.is_set()

    async def acting(self) -> None:
        await self.may_act.wait()


async def test_a_leader_that_may_not_act_queues_events_before_the_tick() -> None:
    core, office = Recorder(deadline=1.0), Office()
    loop = CoreLoop(core, execute=lambda _: loop.stop(), clock=lambda: 1.5, permit=office)
    running = asyncio.create_task(loop.run())
    await asyncio.sleep(0.01)
    loop.post("a heartbeat")
    await asyncio.sleep(0.01)
    assert core.handled == []
    office.may_act.set()
    await asyncio.wait_for(running, PATIENCE_S)
    assert core.handled == ["a heartbeat", (Tick(), 1.5)]


async def test_a_permit_that_ends_before_the_leader_wakes_up_does_not_count() -> None:
    class Flapping(Office):
        """Announces once a permit that has ended by the time somebody looks."""

        announced = False

        async def acting(self) -> None:
            if self.announced:
                await super().acting()
            self.announced = True

    core, office = Recorder({"an event": Effects(commands=["stop"])}), Flapping()
    loop = CoreLoop(core, execute=lambda _: loop.stop(), permit=office)
    loop.post("an event")
    running = asyncio.create_task(loop.run())
    await asyncio.sleep(0.01)
    assert office.announced and core.handled == []
    office.may_act.set()
    await asyncio.wait_for(running, PATIENCE_S)
    assert core.handled == ["an event"]


async def test_a_leader_that_may_not_act_can_be_stopped() -> None:
    loop: CoreLoop[str, str, str] = CoreLoop(Recorder(), execute=lambda _: None, permit=Office())
    loop.post("an event")
    running = asyncio.create_task(loop.run())
    await asyncio.sleep(0.01)
    loop.stop()
    await asyncio.wait_for(running, PATIENCE_S)
