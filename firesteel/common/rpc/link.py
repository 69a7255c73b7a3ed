"""A long-lived stream to a master that reconnects whenever it breaks, or another master leads.

A link only carries messages. Messages that are sent while it is down are dropped; its owner sends
in `on_up` whatever a new connection needs.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from typing import Any, Generic, TypeVar

import grpc

from firesteel.common.backoff import Backoff
from firesteel.common.leader import FixedLeader, Leader, LeaderRetriever, wait_for_leader
from firesteel.common.logs import get_logger
from firesteel.common.rpc.errors import RemoteProtocolError
from firesteel.common.rpc.server import aio_channel

log = get_logger(__name__)

Sent = TypeVar("Sent")
Received = TypeVar("Received")

_READY = grpc.ChannelConnectivity.READY
EOF: Any = grpc.aio.EOF  # type: ignore[attr-defined]  # missing in the stubs
FIRST_PAUSE_S = 0.05
LONGEST_PAUSE_S = 0.5
CONNECT_TIMEOUT_S = 3.0


class Link(Generic[Sent, Received]):
    """Connects and reconnects until `close`."""

    def __init__(
        self,
        *,
        name: str,
        to: str | LeaderRetriever,  # an address, or whoever leads
        # Calls the stub's streaming method.
        open_stream: Callable[[grpc.aio.Channel, AsyncIterator[Sent]], Any],
        # What to send, if anything, when nothing was sent for an interval.
        heartbeat: Callable[[], Sent | None],
        on_up: Callable[[], None],
        on_message: Callable[[Received], None],
        on_down: Callable[[str, float], None],  # the cause, and seconds since it was up
        heartbeat_interval_s: float,
        heartbeat_timeout_s: float,
        channel: Callable[[str], grpc.aio.Channel] = aio_channel,  # to an address
        # Whether nothing listens there any more, and what to do then: of a peer that never comes
        # back to its address.
        refuses: Callable[[str], Awaitable[bool]] | None = None,
        on_ended: Callable[[], None] = lambda: None,
    ) -> None:
        self._to = FixedLeader(to) if isinstance(to, str) else to
        self.peer = self._to.leader  # who it connects to
        self._name = name
        self._channel = channel
        self._open_stream = open_stream
        self._heartbeat = heartbeat
        self._on_up = on_up
        self._on_message = on_message
        self._on_down = on_down
        self._refuses = refuses
        self._on_ended = on_ended
        self._heartbeat_interval_s = heartbeat_interval_s
        self._heartbeat_timeout_s = heartbeat_timeout_s
        self._outbox: asyncio.Queue[Sent | None] | None = None  # None in it: the end
        self._heard = False
        self._over = False  # no more reconnections
        self._task: asyncio.Task[None] | None = None

    @property
    def address(self) -> str:
        """Empty: nobody has led so far."""
        return "" if self.peer is None else self.peer.address

    def send(self, message: Sent) -> bool:
        """False if the link is down: the owner sends it again in `on_up` if it still matters."""
        if self._outbox is None:
            return False
        self._outbox.put_nowait(message)
        return True

    def start(self) -> None:
        self._task = asyncio.create_task(self.run(), name=f"link-{self._name}")

    def end(self) -> None:
        """Does not reconnect when the link breaks next: the peer has said goodbye."""
        self._over = True

    async def close(self, flush_s: float = 0.0) -> None:
        """Closes the link; messages already sent get `flush_s` to reach the peer."""
        self._over = True
        if self._task is None:
            return
        if self._outbox is not None and flush_s > 0:
            self._outbox.put_nowait(None)
            await asyncio.wait([self._task], timeout=flush_s)
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task

    async def run(self) -> None:
        """Returns when closed or cancelled."""
        loop = asyncio.get_running_loop()
        last_up, last_cause = loop.time(), ""
        backoff = Backoff(FIRST_PAUSE_S, LONGEST_PAUSE_S)
        while True:
            if self._to.leader is None:
                log.info("waiting until one is elected", peer=self._name)
            self.peer = await wait_for_leader(self._to)
            cause = await self._once(self.peer)
            if self._heard:
                last_up = loop.time()
                backoff.reset()
            if self._over:
                return
            if self._heard or cause != last_cause:  # once per outage, not per attempt
                log.warning(
                    "link is down, reconnecting",
                    peer=self._name,
                    address=self.address,
                    cause=cause,
                )
            last_cause = cause
            self._on_down(cause, loop.time() - last_up)
            await asyncio.sleep(backoff.next())
            if self._refuses is not None and await self._refuses(self.address):
                self._on_ended()

    async def _once(self, peer: Leader) -> str:
        """One connection; returns why it ended."""
        self._heard = False
        try:
            async with self._channel(peer.address) as channel:
                if not await asyncio.wait_for(_connects(channel), CONNECT_TIMEOUT_S):
                    return "cannot connect"
                outbox: asyncio.Queue[Sent | None] = asyncio.Queue()
                call = self._open_stream(channel, self._outgoing(outbox))
                self._outbox = outbox
                try:
                    self._on_up()
                    return await self._while_it_leads(peer, self._listen(call))
                finally:
                    self._outbox = None
                    call.cancel()
        except TimeoutError:
            return (
                f"nothing heard for {self._heartbeat_timeout_s:g} s" if self._heard else "no answer"
            )
        except grpc.aio.AioRpcError as error:
            return f"{error.code().name}: {error.details()}"
        except RemoteProtocolError as error:
            return str(error)

    async def _while_it_leads(self, peer: Leader, listening: Coroutine[Any, Any, str]) -> str:
        if self._to.fixed:
            return await listening
        heard = asyncio.create_task(listening)
        changed = asyncio.create_task(self._to.changed(peer))
        try:
            await asyncio.wait((heard, changed), return_when=asyncio.FIRST_COMPLETED)
            if heard.done():
                return heard.result()
            follower = changed.result()
            return "nobody leads" if follower is None else f"{follower.address} leads"
        finally:
            heard.cancel()
            changed.cancel()
            await asyncio.gather(heard, changed, return_exceptions=True)

    async def _listen(self, call: Any) -> str:
        while True:
            async with asyncio.timeout(self._heartbeat_timeout_s):
                message = await call.read()
            if message is EOF:
                return "the peer ended the stream"
            self._heard = True
            self._on_message(message)

    async def _outgoing(self, outbox: asyncio.Queue[Sent | None]) -> AsyncIterator[Sent]:
        while True:
            try:
                async with asyncio.timeout(self._heartbeat_interval_s):
                    message = await outbox.get()
                if message is None:
                    return
            except TimeoutError:
                message = self._heartbeat()
            if message is not None:
                yield message


async def _connects(channel: grpc.aio.Channel) -> bool:
    """Whether the first attempt succeeds. Further ones would use the address that the name had,
    although the Service of a master has another one as soon as another master leads.
    """
    while (state := channel.get_state(try_to_connect=True)) is not _READY:
        if state is grpc.ChannelConnectivity.TRANSIENT_FAILURE:
            return False
        await channel.wait_for_state_change(state)
    return True
