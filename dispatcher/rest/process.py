"""Runs the REST server next to a Dispatcher, in a separate process: load on it does not slow the
Dispatcher.

The Dispatcher listens, and starts the process when a client connects: a cluster without clients of
its REST API pays nothing for it. The process inherits the socket as its standard input. A process
that dies leaves the port and the waiting connections to its successor.
"""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path

from firesteel.common.backoff import Backoff
from firesteel.common.logs import get_logger
from firesteel.common.process import StartFailed, module_command, spawn

log = get_logger(__name__)

MODULE = "dispatcher.rest"
BACKLOG = 1024
STEADY_S = 10.0  # the backoff of a process that lived this long is reset


def listen(host: str, ports: Iterable[int]) -> socket.socket | None:
    """Returns a socket that listens on the first free port; None if none is free."""
    for port in ports:
        with suppress(OSError):
            family = socket.AF_INET6 if ":" in host else socket.AF_INET
            return socket.create_server((host, port), family=family, backlog=BACKLOG)
    return None


class RestProcess:
    """Serves at the address of `listener`, from its creation to `stop`."""

    def __init__(
        self, listener: socket.socket, arguments: Sequence[str], log_path: Path | None
    ) -> None:
        """`log_path`: None: it shares the output of this process."""
        host, port = listener.getsockname()[:2]
        self.address = f"{host}:{port}"
        self._listener = listener
        self._argv = module_command(MODULE, *arguments)
        self._log_path = log_path
        self._running = asyncio.create_task(self._run(), name="rest")

    async def stop(self) -> None:
        self._running.cancel()
        with suppress(asyncio.CancelledError):
            await self._running
        self._listener.close()

    async def _run(self) -> None:
        backoff = Backoff(0.1, 10.0)
        while True:
            await self._connected()
            started_s = time.monotonic()
            try:
                await self._serve()
            except (StartFailed, OSError) as error:
                log.error("the REST server did not start", reason=str(error))
            if time.monotonic() - started_s > STEADY_S:
                backoff.reset()
            await asyncio.sleep(backoff.next())

    async def _connected(self) -> None:
        """Returns when a client has connected that no process serves."""
        loop, connected = asyncio.get_running_loop(), asyncio.Event()
        loop.add_reader(self._listener, connected.set)
        try:
            await connected.wait()
        finally:
            loop.remove_reader(self._listener)

    async def _serve(self) -> None:
        """Runs one process from its start to its end. Raises StartFailed or OSError."""
        child = await spawn(self._argv, log_path=self._log_path, stdin=self._listener)
        log.info("the REST server runs", pid=child.pid)
        try:
            code = await child.wait()
            log.error("the REST server has ended", exit_code=code)
        finally:
            await child.stop()
