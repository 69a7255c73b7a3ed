"""All gRPC connections between processes through one proxy, which can break them, or hold what they
carry. gRPC and Arrow Flight ask a proxy that the environment names for a tunnel (HTTP CONNECT).
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

import psutil

PROXY = "grpc_proxy"  # the variable


class Ends(NamedTuple):
    """Processes, by pid."""

    client: int
    server: int


@dataclass(eq=False)
class _Tunnel:
    client_port: int
    server_port: int
    writers: list[asyncio.StreamWriter] = field(default_factory=list)
    passes: asyncio.Event = field(default_factory=asyncio.Event)

    def reset(self) -> None:
        for writer in self.writers:
            writer.transport.abort()


class Tunnels:
    """Listens on 127.0.0.1, from its own thread, until `close`. Processes that are started with
    `environment` connect through it.
    """

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="tunnels", daemon=True)
        self._thread.start()
        self._tunnels: set[_Tunnel] = set()
        self._held: set[frozenset[int]] = set()  # pairs of pids
        listener = socket.create_server(("127.0.0.1", 0))
        self._port = int(listener.getsockname()[1])
        started = asyncio.start_server(self._serve, sock=listener)
        self._server = asyncio.run_coroutine_threadsafe(started, self._loop).result()

    @property
    def environment(self) -> dict[str, str]:
        return {PROXY: f"http://127.0.0.1:{self._port}"}

    def between(self) -> list[Ends]:
        """Which processes are connected now."""
        return sorted({ends for _, ends in self._known()})

    def reset(self, pair: Ends) -> None:
        """Breaks the pair's connections; they may reconnect."""
        for tunnel in self._of(pair):
            self._loop.call_soon_threadsafe(tunnel.reset)

    @contextlib.contextmanager
    def silent(self, pair: Ends) -> Iterator[None]:
        """Lets nothing pass between the two, on old or new connections, without closing these.
        Messages sent in the meantime pass afterwards.
        """
        self._held.add(frozenset(pair))
        for tunnel in self._of(pair):
            self._loop.call_soon_threadsafe(tunnel.passes.clear)
        try:
            yield
        finally:
            self._held.discard(frozenset(pair))
            for tunnel in list(self._tunnels):
                self._loop.call_soon_threadsafe(tunnel.passes.set)

    def close(self) -> None:
        asyncio.run_coroutine_threadsafe(self._end(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    # ---- inside

    async def _end(self) -> None:
        self._server.close()
        connections = asyncio.all_tasks() - {asyncio.current_task()}
        for connection in connections:
            connection.cancel()
        await asyncio.gather(*connections, return_exceptions=True)
        await asyncio.sleep(0)  # asyncio closes the socket of an aborted transport a turn later

    def _of(self, pair: Ends) -> list[_Tunnel]:
        return [tunnel for tunnel, ends in self._known() if set(ends) == set(pair)]

    def _known(self) -> list[tuple[_Tunnel, Ends]]:
        clients, servers = self._owners()
        return [
            (tunnel, Ends(clients[tunnel.client_port], servers[tunnel.server_port]))
            for tunnel in list(self._tunnels)
            if tunnel.client_port in clients and tunnel.server_port in servers
        ]

    def _owners(self) -> tuple[dict[int, int], dict[int, int]]:
        """By port: the processes that have connected to this proxy, and those that listen."""
        clients, servers = {}, {}
        for found in psutil.net_connections("tcp"):
            if found.pid is None:
                continue
            if found.status == psutil.CONN_LISTEN:
                servers[found.laddr.port] = found.pid
            elif found.raddr and found.raddr.port == self._port:
                clients[found.laddr.port] = found.pid
        return clients, servers

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with (
            contextlib.closing(writer),
            contextlib.suppress(OSError, asyncio.IncompleteReadError, asyncio.CancelledError),
        ):
            request = (await reader.readuntil(b"\r\n\r\n")).split()
            assert request[0] == b"CONNECT", request
            host, _, port = request[1].decode().rpartition(":")
            tunnel = _Tunnel(writer.get_extra_info("peername")[1], int(port), [writer])
            self._tunnels.add(tunnel)
            try:
                await self._tunnel(tunnel, host, reader)
            finally:
                self._tunnels.discard(tunnel)
                tunnel.reset()

    async def _tunnel(self, tunnel: _Tunnel, host: str, reader: asyncio.StreamReader) -> None:
        if not (self._held and await asyncio.to_thread(self._is_held, tunnel)):
            tunnel.passes.set()
        await tunnel.passes.wait()
        (client,) = tunnel.writers
        answers, server = await asyncio.open_connection(host, tunnel.server_port)
        tunnel.writers.append(server)
        client.write(b"HTTP/1.1 200 OK\r\n\r\n")
        ways = [
            asyncio.create_task(_pass(tunnel, reader, server)),
            asyncio.create_task(_pass(tunnel, answers, client)),
        ]
        try:
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for way in ways:
                way.cancel()
            await asyncio.gather(*ways, return_exceptions=True)

    def _is_held(self, tunnel: _Tunnel) -> bool:
        clients, servers = self._owners()
        ends = {clients.get(tunnel.client_port), servers.get(tunnel.server_port)}
        return ends in self._held


async def _pass(
    tunnel: _Tunnel, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> None:
    with contextlib.suppress(OSError):
        while content := await reader.read(65_536):
            await tunnel.passes.wait()
            writer.write(content)
            await writer.drain()
