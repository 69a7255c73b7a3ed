"""A machine on which no process starts."""

from __future__ import annotations

import asyncio
from typing import Any

from firesteel.common.service.platform import Process


class NoProcesses:
    pid = 1

    async def spawn(self, *arguments: Any, **named: Any) -> Process:
        """Never starts a process, nor fails, so that jobs wait for their JobMaster."""
        return await asyncio.get_running_loop().create_future()

    def kill(self, pid: int) -> None:
        pass
