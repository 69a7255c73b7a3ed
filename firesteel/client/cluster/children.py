"""Services as child processes, which are restarted when they end."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from firesteel.common.backoff import Backoff
from firesteel.common.logs import get_logger
from firesteel.common.process import Child, StartFailed, module_command, spawn

log = get_logger(__name__)

STOP_GRACE_S = 5.0
FIRST_RESTART_PAUSE_S = 0.1
LONGEST_RESTART_PAUSE_S = 10.0
STEADY_S = 10.0  # the backoff of a service that lived this long is reset


class Children:
    """`command` returns the module of a service and its arguments; `restarted` is called after a
    service has been restarted. Without `logs`, the services share the output of this process.
    """

    def __init__(
        self,
        command: Callable[[str], tuple[str, Sequence[str]]],
        *,
        directory: Path,
        logs: Path | None = None,
        restarted: Callable[[], object] = lambda: None,
    ) -> None:
        self._command = command
        self._directory = directory
        self._logs = logs
        self._restarted = restarted
        self._children: dict[str, Child] = {}
        self._keepers: list[asyncio.Task[None]] = []

    def __getitem__(self, name: str) -> Child:
        return self._children[name]

    def get(self, name: str) -> Child | None:
        return self._children.get(name)

    async def start(self, *names: str) -> None:
        """Returns when all of them serve. Raises the first failure, such as StartFailed."""
        started = await asyncio.gather(*map(self._spawn, names), return_exceptions=True)
        for failure in started:
            if isinstance(failure, BaseException):
                raise failure

    def keep(self) -> None:
        """Restarts services that end from now on."""
        self._keepers = [asyncio.create_task(self._keep(name)) for name in self._children]

    async def stop(self, *, last: str = "", grace_s: float = STOP_GRACE_S) -> None:
        """Stops all services, and then the `last` one."""
        for keeper in self._keepers:
            keeper.cancel()
        children = dict(self._children)
        end = children.pop(last, None)
        await asyncio.gather(*(child.stop(grace_s) for child in children.values()))
        if end is not None:
            await end.stop(grace_s)

    async def _keep(self, name: str) -> None:
        backoff = Backoff(FIRST_RESTART_PAUSE_S, LONGEST_RESTART_PAUSE_S)
        while True:
            started = time.monotonic()
            code = await self._children[name].wait()
            if time.monotonic() - started > STEADY_S:
                backoff.reset()
            await self._restart(name, code, backoff)

    async def _restart(self, name: str, exit_code: int, backoff: Backoff) -> None:
        """Retries until the service has started."""
        while True:
            pause_s = backoff.next()
            log.error("restarting a service", service=name, exit_code=exit_code, pause_s=pause_s)
            await asyncio.sleep(pause_s)
            try:
                await self._spawn(name)
                break
            except (StartFailed, OSError) as error:
                log.error("a service did not start", service=name, reason=str(error))
        self._restarted()

    async def _spawn(self, name: str) -> None:
        module, arguments = self._command(name)
        child = await spawn(
            module_command(module, *arguments),
            log_path=self._logs / f"{name}.log" if self._logs is not None else None,
            cwd=self._directory,
        )
        self._children[name] = child
        log.info("service started", service=name, pid=child.pid, **child.ready)
