"""The outgoing side of the streams to TaskExecutors and JobMasters.

Each connection has its own bounded queue: a peer that does not read its messages loses its
connection, and no other peer is affected.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import NamedTuple

from google.protobuf.message import Message

from firesteel.common.rpc.status import Reason
from resourcemanager.core.commands import ToPeer
from resourcemanager.core.events import Connection

OUTGOING_MAX = 20_000  # messages that wait for a peer; twice the slots of the largest TaskExecutor


class Closing(NamedTuple):
    reason: Reason | None  # None: in order
    cause: str


class Peer:
    """One stream. `encode` converts a command to a message for this kind of peer."""

    def __init__(
        self, connection: Connection, name: str, encode: Callable[[ToPeer], Message]
    ) -> None:
        self.connection = connection
        self.name = name
        self.closing: Closing | None = None
        self._encode = encode
        self._outgoing: asyncio.Queue[Message | None] = asyncio.Queue()  # None ends the stream

    def send(self, command: ToPeer) -> None:
        if self._outgoing.qsize() >= OUTGOING_MAX:
            self.close(
                Reason.PEER_TOO_SLOW,
                f"{OUTGOING_MAX} messages wait: the peer does not read them",
            )
        if self.closing is None:
            self._outgoing.put_nowait(self._encode(command))

    def close(self, reason: Reason | None, cause: str) -> None:
        """Ends the stream after the queued messages."""
        if self.closing is None:
            self.closing = Closing(reason, cause)
            self._outgoing.put_nowait(None)

    async def messages(self) -> AsyncIterator[Message]:
        while (message := await self._outgoing.get()) is not None:
            yield message
