"""The streams of TaskExecutors and JobMasters, seen from the side that writes to them.

Each is one connection with a bounded queue of its own: a peer that does not read loses its
connection, and no other peer notices.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import grpc

from resourcemanager.core.events import Connection

OUTGOING_MAX = (
    20_000  # messages that wait for one peer; twice the slots of the largest TaskExecutor
)


class Peer:
    """One stream."""

    def __init__(self, connection: Connection, name: str, encode: Callable[[Any], Any]) -> None:
        self.connection = connection
        self.name = name
        self.closing: tuple[grpc.StatusCode, str] | None = None
        self._encode = encode
        self._outgoing: asyncio.Queue[Any] = asyncio.Queue()

    def send(self, command: Any) -> None:
        if self._outgoing.qsize() >= OUTGOING_MAX:
            self.close(
                grpc.StatusCode.RESOURCE_EXHAUSTED,
                f"{OUTGOING_MAX} messages wait: the peer does not read them",
            )
        if self.closing is None:
            self._outgoing.put_nowait(self._encode(command))

    def close(self, code: grpc.StatusCode, cause: str) -> None:
        """Ends the stream after the messages that wait."""
        if self.closing is None:
            self.closing = (code, cause)
            self._outgoing.put_nowait(None)

    async def messages(self) -> AsyncIterator[Any]:
        while (message := await self._outgoing.get()) is not None:
            yield message
