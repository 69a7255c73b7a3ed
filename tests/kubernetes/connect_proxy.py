"""An HTTP proxy that opens tunnels (CONNECT), for users with a password."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress


class ConnectProxy:
    def __init__(self, user: str, password: str) -> None:
        self.targets: list[str] = []
        self._expected = base64.b64encode(f"{user}:{password}".encode()).decode()

    @asynccontextmanager
    async def serve(self) -> AsyncIterator[int]:
        """Yields the port."""
        server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        async with server:
            yield server.sockets[0].getsockname()[1]

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        method, target, _ = head.split(" ", 2)
        if method != "CONNECT" or f"Basic {self._expected}" not in head:
            writer.write(b"HTTP/1.1 407 Proxy Authentication Required\r\nContent-Length: 0\r\n\r\n")
            writer.close()
            return
        self.targets.append(target)
        host, _, port = target.rpartition(":")
        upstream, downstream = await asyncio.open_connection(host, int(port))
        writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
        await asyncio.gather(_copy(reader, downstream), _copy(upstream, writer))


async def _copy(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
    with suppress(ConnectionError):
        while data := await source.read(65_536):
            target.write(data)
            await target.drain()
    target.close()
