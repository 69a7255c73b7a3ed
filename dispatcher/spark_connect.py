"""Runs the server for Spark Connect next to a Dispatcher, in a separate process, which starts again
if it ends.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from dispatcher.rest.process import listen
from firesteel.common.backoff import Backoff
from firesteel.common.logs import get_logger
from firesteel.common.process import WITHOUT_FORK_HANDLERS, StartFailed, module_command, spawn

log = get_logger(__name__)

MODULE = "firesteel.spark_connect.serving"
LOOK_EVERY_S = 1.0  # for a port that is taken
STEADY_S = 10.0  # the backoff of a process that lived this long is reset


class SparkConnectProcess:
    """Serves from its creation to `stop`, at a port that may be taken at first: by the server of
    another Dispatcher on this machine, or of one that has just ended.
    """

    def __init__(
        self, host: str, port: int, arguments: Sequence[str], log_path: Path | None
    ) -> None:
        """`log_path`: None: it shares the output of this process."""
        self._host, self._port = host, port
        self._argv = module_command(MODULE, "--host", host, *arguments)
        self._log_path = log_path
        self._running = asyncio.create_task(self._run(), name="spark-connect")

    async def stop(self) -> None:
        self._running.cancel()
        with suppress(asyncio.CancelledError):
            await self._running

    async def _run(self) -> None:
        backoff = Backoff(0.5, 30.0)
        while True:
            await self._await_port()
            started_s = time.monotonic()
            try:
                await self._serve()
            except (StartFailed, OSError) as error:
                log.error("the server for Spark Connect did not start", reason=str(error))
            if time.monotonic() - started_s > STEADY_S:
                backoff.reset()
            await asyncio.sleep(backoff.next())

    async def _await_port(self) -> None:
        waits = False
        while (listener := listen(self._host, [self._port])) is None:
            if not waits:
                log.warning("Spark Connect waits: its port is taken", port=self._port)
                waits = True
            await asyncio.sleep(LOOK_EVERY_S)
        listener.close()  # the server binds it

    async def _serve(self) -> None:
        """Runs one process from its start to its end. Raises StartFailed or OSError."""
        environment = {**WITHOUT_FORK_HANDLERS, **os.environ}  # PySpark forks to start the JVM
        child = await spawn(self._argv, log_path=self._log_path, env=environment)
        log.info("the server for Spark Connect runs", pid=child.pid)
        try:
            code = await child.wait()
            log.error("the server for Spark Connect has ended", exit_code=code)
        finally:
            await child.stop()
