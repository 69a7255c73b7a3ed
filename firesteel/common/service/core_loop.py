"""The loop that runs every core.

The loop owns a bounded mailbox. gRPC servicers, stream readers and child watchers only `post`
events. For each event, the loop in this order lets the core handle it, persists `effects.records`
in one transaction, and only then executes `effects.commands`. The result of a command comes back as
another event.

A deadline never overtakes mail. A core acts on its deadlines at a Tick and at no other event, and
the loop posts a Tick only after the events that were waiting when the deadline expired: a peer
whose heartbeat is in the mailbox is not declared dead. A Tick that is late by `LATE_S` or more
means that this process was paused or starved (SIGSTOP, a frozen machine), so heartbeats may still
be in the sockets; the event loop then gets `CATCH_UP_S` to read them first. Only the events
that have come by then go before the Tick, so a busy mailbox cannot hold it back.

The core loop of a leader handles nothing while it may not act (`Permit`): events wait, and a Tick
that was due then is due after them.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, Protocol

from firesteel.common.logs import get_logger
from firesteel.common.service.core import Command, Core, Event, Record, Tick

log = get_logger(__name__)

LATE_S = 1.0
CATCH_UP_S = 0.3


class MailboxFull(Exception):
    """The core cannot keep up: reject the sender, or close its stream."""


class Permit(Protocol):
    """Tells whether a leader may act; see firesteel.common.leader.LeaderElection."""

    def acts(self) -> bool: ...

    async def acting(self) -> None: ...


class CoreLoop(Generic[Event, Record, Command]):
    """Runs one core on the current event loop, until `stop` or until the core or a command raises.

    `execute` executes one command and must not block: long work is started as a task that posts its
    result.
    """

    def __init__(
        self,
        core: Core[Event, Record, Command],
        *,
        execute: Callable[[Command], None],
        persist: Callable[[Sequence[Record]], Awaitable[None]] | None = None,
        clock: Callable[[], float] = time.monotonic,
        mailbox_size: int = 100_000,
        name: str = "core",
        permit: Permit | None = None,
    ) -> None:
        self.core = core
        self._execute = execute
        self._persist = persist
        self._clock = clock
        self._name = name
        self._permit = permit
        self._mailbox: asyncio.Queue[Event | None] = asyncio.Queue(mailbox_size)
        self._stopping = False
        self._stopped = asyncio.Event()
        self._before_tick: int | None = None  # events still to handle before the Tick that is due

    def post(self, event: Event) -> None:
        """Hands an event to the core. Other threads use the loop's `call_soon_threadsafe`."""
        if self._stopping:
            return
        try:
            self._mailbox.put_nowait(event)
        except asyncio.QueueFull:
            raise MailboxFull(f"{self._name}: {self._mailbox.maxsize} events are waiting") from None

    def stop(self) -> None:
        """Ends `run` after the current event; waiting events are dropped."""
        self._stopping = True
        self._stopped.set()
        if self._mailbox.empty():
            self._mailbox.put_nowait(None)

    async def run(self) -> None:
        while not self._stopping:
            event = await self._next()
            waited = False
            while self._permit is not None and not self._stopping and not self._permit.acts():
                # Check repeatedly: the permit may have ended before this task wakes up.
                await self._wait_for_permit(self._permit)
                waited = True
            if self._stopping or event is None:
                return
            if waited and isinstance(event, Tick):
                continue
            effects = self.core.handle(event, self._clock())
            if effects.records and self._persist is not None:
                await self._persist(effects.records)
            for command in effects.commands:
                self._execute(command)

    async def _wait_for_permit(self, permit: Permit) -> None:
        """Waits for the permit, or until `stop`."""
        waits = [asyncio.ensure_future(w) for w in (permit.acting(), self._stopped.wait())]
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        for wait in waits:
            wait.cancel()

    async def _next(self) -> Event | Tick | None:
        deadline = self.core.next_deadline()
        if deadline is None:
            self._before_tick = None
            return await self._mailbox.get()
        late_s = self._clock() - deadline
        if late_s < 0:
            self._before_tick = None
            if not self._mailbox.empty():
                return self._mailbox.get_nowait()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(-late_s):
                    return await self._mailbox.get()
            late_s = self._clock() - deadline
        return await self._overdue(late_s)

    async def _overdue(self, late_s: float) -> Event | Tick | None:
        """Returns what to handle after a deadline: the events that were waiting when it was
        noticed, then the Tick.
        """
        if self._before_tick is None:
            if late_s >= LATE_S:
                log.warning("paused or overloaded", core=self._name, late_s=round(late_s, 1))
                await asyncio.sleep(CATCH_UP_S)
            self._before_tick = self._mailbox.qsize()
        if self._before_tick > 0:
            self._before_tick -= 1
            return self._mailbox.get_nowait()
        self._before_tick = None
        return Tick()
