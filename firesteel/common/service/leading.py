"""The life of a service that leads when it is elected."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from firesteel.common.leader import LeaderElection


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
