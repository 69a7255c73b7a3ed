"""A gRPC stub of whoever leads, for single calls."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

import grpc

from firesteel.common.leader import FixedLeader, Leader, LeaderRetriever, wait_for_leader

Stub = TypeVar("Stub")
# The leader is away, stops (which cancels the calls that it is answering), or is slow; anything
# else is its answer.
_TRANSIENT = (
    grpc.StatusCode.UNAVAILABLE,
    grpc.StatusCode.CANCELLED,
    grpc.StatusCode.DEADLINE_EXCEEDED,
)


def is_transient(error: BaseException) -> bool:
    """Whether a call that failed so may succeed when it is tried again."""
    return isinstance(error, grpc.aio.AioRpcError) and error.code() in _TRANSIENT


class LeaderStub(Generic[Stub]):
    """Owns the channel; an async context manager. A call that fails is tried again with `get`.

    For one caller, which makes one call after another: `get` closes the channel to the leader of
    before, and ends what goes on there.
    """

    def __init__(
        self,
        to: str | LeaderRetriever,  # an address, or whoever leads
        stub: Callable[[grpc.aio.Channel], Stub],
        channel: Callable[[str], grpc.aio.Channel],  # to an address
    ) -> None:
        self._to = FixedLeader(to) if isinstance(to, str) else to
        self._new_stub = stub
        self._new_channel = channel
        self._leader: Leader | None = None
        self._channel: grpc.aio.Channel | None = None
        self._stub: Stub | None = None

    async def get(self) -> Stub:
        """Waits while nobody leads."""
        leader = await wait_for_leader(self._to)
        if self._stub is None or leader != self._leader:
            await self._close()
            self._leader, self._channel = leader, self._new_channel(leader.address)
            self._stub = self._new_stub(self._channel)
        return self._stub

    async def __aenter__(self) -> LeaderStub[Stub]:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._close()

    async def _close(self) -> None:
        if self._channel is not None:
            await self._channel.close(grace=None)
        self._channel = self._stub = None
