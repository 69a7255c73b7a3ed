"""Long-lived streams to the Dispatcher and the ResourceManager that are opened again whenever they break.

A link only carries messages. What has to be said anew after a reconnection is said by its owner, in `on_up`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Generic, TypeVar

import grpc
import structlog

from firesteel.rpc.server import aio_channel

log = structlog.get_logger(__name__)

Sent = TypeVar("Sent")
Received = TypeVar("Received")

EOF: Any = grpc.aio.EOF  # type: ignore[attr-defined]  # missing in the stubs
_RETRY_FIRST_S = 0.1
_RETRY_MOST_S = 1.0


class Link(Generic[Sent, Received]):
    def __init__(
        self,
        *,
        name: str,
        address: str,
        open_stream: Callable[[grpc.aio.Channel], Any],  # calls the stub's streaming method
        heartbeat: Callable[[], Sent],
        on_up: Callable[[], None],
        on_message: Callable[[Received], None],
        on_down: Callable[[float], None],  # seconds since the link was last up
        heartbeat_interval_s: float,
        heartbeat_timeout_s: float,
    ) -> None:
        self._name = name
        self._address = address
        self._open_stream = open_stream
        self._heartbeat = heartbeat
        self._on_up = on_up
        self._on_message = on_message
        self._on_down = on_down
        self._heartbeat_interval_s = heartbeat_interval_s
        self._heartbeat_timeout_s = heartbeat_timeout_s
        self._outbox: asyncio.Queue[Sent] | None = None

    def send(self, message: Sent) -> bool:
        """False if the link is down: the owner says it again in `on_up`, if it still matters."""
        if self._outbox is None:
            return False
        self._outbox.put_nowait(message)
        return True

    async def run(self) -> None:
        """Until cancelled."""
        loop = asyncio.get_running_loop()
        last_up = loop.time()
        pause_s = _RETRY_FIRST_S
        while True:
            self._heard = False
            try:
                await self._once()
                problem = "the peer closed it"
            except (grpc.RpcError, TimeoutError) as error:
                problem = (error.details() or "") if isinstance(error, grpc.aio.AioRpcError) else "no heartbeat"
            self._outbox = None
            if self._heard:
                last_up = loop.time()
                pause_s = _RETRY_FIRST_S
            if pause_s == _RETRY_FIRST_S:  # once per outage, not once per attempt
                log.warning("link is down", peer=self._name, address=self._address, cause=problem)
            self._on_down(loop.time() - last_up)
            await asyncio.sleep(pause_s)
            pause_s = min(_RETRY_MOST_S, pause_s * 2)

    async def _once(self) -> None:
        async with aio_channel(self._address) as channel:
            call = self._open_stream(channel)
            outbox: asyncio.Queue[Sent] = asyncio.Queue()
            self._outbox = outbox
            self._on_up()
            writer = asyncio.create_task(self._write(call, outbox))
            try:
                while True:
                    message = await asyncio.wait_for(call.read(), self._heartbeat_timeout_s)
                    if message is EOF:
                        return
                    self._heard = True
                    self._on_message(message)
            finally:
                writer.cancel()
                call.cancel()

    async def _write(self, call: Any, outbox: asyncio.Queue[Sent]) -> None:
        try:
            while True:
                try:
                    message = await asyncio.wait_for(outbox.get(), self._heartbeat_interval_s)
                except TimeoutError:
                    message = self._heartbeat()
                await call.write(message)
        except (grpc.RpcError, asyncio.InvalidStateError):
            pass  # the reader sees the same and says so
