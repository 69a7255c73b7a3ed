"""Leadership, as contenders for an office and those that look for its holder see it.

With `high-availability.type: none`, the leader of an office is the process at a fixed address; else
it is elected. Services do not depend on the type: they contend through a
`LeaderElection` and find leaders through a `LeaderRetriever`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from enum import Enum
from typing import Any, Protocol

from firesteel.common.ids import Epoch
from firesteel.errors import FiresteelError

NO_EPOCH = Epoch(0)  # lower than every leader's


class Office(Enum):
    """The offices for which leaders are elected; the value is the name in ZooKeeper."""

    DISPATCHER = "dispatcher"
    RESOURCE_MANAGER = "resource_manager"

    @property
    def holder(self) -> str:
        """The name of the holder, for people."""
        return "Dispatcher" if self is Office.DISPATCHER else "ResourceManager"


@dataclass(frozen=True, slots=True)
class Leader:
    """A leader. `epoch` is higher than that of every earlier leader; 0 for a fixed leader."""

    address: str
    epoch: Epoch


@dataclass(frozen=True, slots=True, kw_only=True)
class NotActing:
    """Why a contender does not act as the leader."""

    message: str
    leader: Leader | None = None  # the acting leader, if known
    # False: the contender leads, but cannot reach the service that elects leaders.
    coordinated: bool = True


class LeadershipLost(FiresteelError):
    """Another contender leads, or may lead, from now on; the previous leader has to end."""


class LeaderElection(Protocol):
    """One contender's part in the election for one office."""

    contested: bool  # False: this contender leads from the start, and for ever

    async def start(self, address: str) -> None:
        """Contends from now on; `address` is where this contender serves. Raises FiresteelError."""

    async def granted(self) -> Epoch | None:
        """Returns once this contender leads, with its epoch, which is higher than that of every
        earlier leader; None if there are no epochs.
        """

    def acts(self) -> bool:
        """Whether this contender leads, and may act as the leader now."""

    async def acting(self) -> None:
        """Returns when this contender may act, immediately if it may now."""

    async def lost(self) -> None:
        """Raises LeadershipLost when the leadership has ended; never returns before."""

    def not_acting(self) -> NotActing | None:
        """Returns why it does not act as the leader, and who does; None while it acts."""

    async def close(self) -> None:
        """Resigns if it leads, so that another contender need not wait for a timeout."""


class LeaderRetriever(Protocol):
    """Finds the leader of one office."""

    fixed: bool  # it never changes

    @property
    def leader(self) -> Leader | None:
        """The leader that was announced last; None while there is none."""

    async def changed(self, known: Leader | None) -> Leader | None:
        """Returns the leader once it differs from `known`."""


class Leaders(Protocol):
    """Finds the leaders of a cluster."""

    def of(self, office: Office, address: str) -> LeaderRetriever:
        """Returns the retriever of an office. `address` belongs to a fixed leader; else it is
        unused.
        """

    async def start(self) -> None:
        """Starts to look for the leaders. Does not wait."""

    async def standbys(self, office: Office) -> tuple[str, ...]:
        """Returns the addresses of the contenders that do not lead, as far as they are known."""

    async def close(self) -> None: ...


class FixedElection:
    """The only contender for an office, which leads for ever."""

    contested = False

    async def start(self, address: str) -> None:
        pass

    async def granted(self) -> Epoch | None:
        return None

    def acts(self) -> bool:
        return True

    async def acting(self) -> None:
        pass

    async def lost(self) -> None:
        await asyncio.get_running_loop().create_future()

    def not_acting(self) -> NotActing | None:
        return None

    async def close(self) -> None:
        pass


class FixedLeader:
    """The leader is the process at this address."""

    fixed = True

    def __init__(self, address: str) -> None:
        self._leader = Leader(address, NO_EPOCH)

    @property
    def leader(self) -> Leader | None:
        return self._leader

    async def changed(self, known: Leader | None) -> Leader | None:
        if known != self._leader:
            return self._leader
        await asyncio.get_running_loop().create_future()
        raise AssertionError("it never changes")


class FixedLeaders:
    """The leaders are the processes at the given addresses."""

    def of(self, office: Office, address: str) -> LeaderRetriever:
        return FixedLeader(address)

    async def start(self) -> None:
        pass

    async def standbys(self, office: Office) -> tuple[str, ...]:
        return ()

    async def close(self) -> None:
        pass


async def wait_for_leader(retriever: LeaderRetriever) -> Leader:
    """Returns the leader, as soon as there is one."""
    leader = retriever.leader
    while leader is None:
        leader = await retriever.changed(None)
    return leader


async def lead(
    election: LeaderElection,
    take_office: Callable[[], Coroutine[Any, Any, None]],
    run: Callable[[], Coroutine[Any, Any, None]],
    *,
    stop: Callable[[], None],
    stopping: asyncio.Event,
) -> None:
    """Waits for the office, takes it and runs the service, until the service is stopped or loses
    the office. `stop` sets `stopping` and makes `run` return.

    A service without other contenders has taken its office before. Raises LeadershipLost, and the
    exceptions of the others.
    """
    if not election.contested:
        await run()
        return
    stopped = asyncio.create_task(stopping.wait())
    lost = asyncio.create_task(election.lost())
    taking = asyncio.create_task(take_office())
    try:
        await asyncio.wait({taking, stopped, lost}, return_when=asyncio.FIRST_COMPLETED)
        if taking.done():
            taking.result()
            running = asyncio.create_task(run())
            await asyncio.wait({running, lost}, return_when=asyncio.FIRST_COMPLETED)
            stop()
            await running
        if lost.done():
            lost.result()
    finally:
        for task in (stopped, lost, taking):
            task.cancel()
        await asyncio.gather(stopped, lost, taking, return_exceptions=True)
