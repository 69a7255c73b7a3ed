"""Relays connections from loopback to the address of the pod.

Masters listen on the pod's address, under which the cluster knows them. A port-forward of
Kubernetes connects to loopback inside the pod.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence

from firesteel.common.logs import get_logger

log = get_logger(__name__)

LOOPBACK = "127.0.0.1"
PIECE_BYTES = 64 * 1024


class Relay:
    """Runs until it is cancelled. Content passes unchanged, so TLS ends at the master."""

    def __init__(self, host: str, ports: Sequence[int], *, listen: str = LOOPBACK) -> None:
        self._host = host
        self._ports = ports
        self._listen = listen
        # The event loop itself holds only weak references to tasks.
        self._connections: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        async with contextlib.AsyncExitStack() as stack:
            stack.push_async_callback(self._end_connections)
            for port in self._ports:
                try:
                    server = await asyncio.start_server(self._to(port), self._listen, port)
                except OSError as error:
                    log.warning("port-forwards do not work", port=port, reason=str(error))
                    continue
                await stack.enter_async_context(server)
            await asyncio.get_running_loop().create_future()

    def _to(self, port: int) -> Callable[[asyncio.StreamReader, asyncio.StreamWriter], None]:
        async def relayed(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            try:
                peer_reader, peer_writer = await asyncio.open_connection(self._host, port)
            except OSError:  # the master restarts
                writer.close()
                return
            except asyncio.CancelledError:
                writer.close()
                raise
            await splice((reader, writer), (peer_reader, peer_writer))

        def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            connection = asyncio.create_task(relayed(reader, writer))
            self._connections.add(connection)
            connection.add_done_callback(self._connections.discard)

        return accept

    async def _end_connections(self) -> None:
        for connection in self._connections:
            connection.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)


Stream = tuple[asyncio.StreamReader, asyncio.StreamWriter]


async def splice(one: Stream, other: Stream) -> None:
    """Copies both directions until both have ended, or one has failed."""
    try:
        async with asyncio.TaskGroup() as group:
            group.create_task(_copy(one[0], other[1]))
            group.create_task(_copy(other[0], one[1]))
    except* OSError:
        pass
    finally:
        for _, writer in (one, other):
            writer.close()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while piece := await reader.read(PIECE_BYTES):
        writer.write(piece)
        await writer.drain()
    if writer.can_write_eof():
        writer.write_eof()
