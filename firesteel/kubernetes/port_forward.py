"""Forwards connections to a port of a pod, through WebSockets to the API server.

Each connection is one WebSocket of the protocol v4.channel.k8s.io. Its messages start with the
number of a channel: 0 has the content, 1 the error that ends it. The first message of each channel
is the number of the port.
"""

from __future__ import annotations

import asyncio
import contextlib
from types import TracebackType
from typing import Self

import aiohttp

from firesteel.kubernetes.client import KubernetesClient
from firesteel.kubernetes.errors import KubernetesError

LOOPBACK = "127.0.0.1"
PIECE_BYTES = 64 * 1024
CONTENT, ERROR = 0, 1
CLOSE_S = 2.0


class PortForward:
    """Listens on loopback inside the `async with`."""

    def __init__(self, client: KubernetesClient, pod: str, port: int) -> None:
        self._client = client
        self._pod = pod
        self._port = port
        self.address = ""  # HOST:PORT on this machine
        self._connections: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        """Raises KubernetesError if the API server does not forward."""
        async with self._client.port_forward(self._pod, self._port):
            pass
        self._server = await asyncio.start_server(self._accept, LOOPBACK, 0)
        self.address = f"{LOOPBACK}:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._server.close()
        for task in self._connections:
            task.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        try:
            async with self._client.port_forward(self._pod, self._port) as socket:
                await self._relay(socket, reader, writer)
        except (KubernetesError, aiohttp.ClientError, OSError):
            pass  # the peer sees the end of the connection
        except asyncio.CancelledError:
            pass  # the forward is closed
        finally:
            self._connections.discard(task)
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()

    async def _relay(
        self,
        socket: aiohttp.ClientWebSocketResponse,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        """Returns when one side has ended: the protocol has no half-closed connections."""
        ways = {
            asyncio.create_task(_send(reader, socket)),
            asyncio.create_task(self._receive(socket, writer)),
        }
        try:
            done, _ = await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
            for way in done:
                way.result()
        finally:
            for way in ways:
                way.cancel()
            await asyncio.gather(*ways, return_exceptions=True)

    async def _receive(
        self, socket: aiohttp.ClientWebSocketResponse, writer: asyncio.StreamWriter
    ) -> None:
        announced = {CONTENT: False, ERROR: False}  # whether the port of the channel has arrived
        async for message in socket:
            if message.type is not aiohttp.WSMsgType.BINARY or not message.data:
                continue
            channel, data = message.data[0], message.data[1:]
            if not announced.get(channel, False):
                announced[channel] = True
                data = data[2:]
            if not data:
                continue
            if channel == ERROR:  # nothing listens at the port
                return
            writer.write(data)
            await writer.drain()


async def _send(reader: asyncio.StreamReader, socket: aiohttp.ClientWebSocketResponse) -> None:
    while piece := await reader.read(PIECE_BYTES):
        await socket.send_bytes(bytes([CONTENT]) + piece)
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(CLOSE_S):
            await socket.close()
