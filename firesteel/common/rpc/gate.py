"""Lets calls through to a master's servicer while it leads, and tells others why not.

A master that does not lead serves: its health and metrics answer, and so does this.
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import AsyncIterator, Collection
from typing import Any, TypeAlias

import grpc

from firesteel.common.fencing import Refusals
from firesteel.common.leader import LeaderElection
from firesteel.common.rpc.status import Reason, abort

_Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"


class Gate:
    """Takes a servicer's place before there is one; `open` gives it one.

    `peers` names the methods of other services of the cluster. They are let through also while the
    leader may not act, because they decide nothing: what they post waits, and what they write is
    rejected where it is written if another master leads.
    """

    def __init__(
        self,
        kind: type[Any],
        election: LeaderElection,
        *,
        peers: Collection[str],
        refusals: Refusals | None = None,
    ) -> None:
        """`refusals`: of calls that come after the leader may not act any more."""
        self._refusals = refusals or Refusals()
        self._epoch = 0
        self._kind = kind
        self._election = election
        self._peers = peers
        self._servicer: Any = None

    def open(self, servicer: Any, epoch: int) -> None:
        """`epoch`: of the leader that this master is now."""
        self._servicer, self._epoch = servicer, epoch

    def __getattr__(self, name: str) -> Any:
        """The method of this name, as generated code registers it."""
        if inspect.isasyncgenfunction(getattr(self._kind, name)):

            async def streaming(request: Any, context: _Context) -> AsyncIterator[Any]:
                await self._check(name, context)
                async with contextlib.aclosing(
                    getattr(self._servicer, name)(request, context)
                ) as answers:
                    async for answer in answers:
                        yield answer
                        if not self._passes(name):
                            await self._refuse(name, context)

            return streaming

        async def unary(request: Any, context: _Context) -> Any:
            await self._check(name, context)
            return await getattr(self._servicer, name)(request, context)

        return unary

    def _passes(self, name: str) -> bool:
        return self._servicer is not None and (name in self._peers or self._election.acts())

    async def _check(self, name: str, context: _Context) -> None:
        if not self._passes(name):
            await self._refuse(name, context)

    async def _refuse(self, name: str, context: _Context) -> None:
        if self._servicer is not None:
            holder = self._kind.__name__.removesuffix("Servicer")
            self._refusals.refuse(f"answer to {name}", sender=holder, epoch=self._epoch, in_force=0)
        why = self._election.not_acting()
        if why is None:
            await abort(context, Reason.STARTING, "this master does not serve yet")
        if not why.coordinated:
            await abort(context, Reason.COORDINATION_UNAVAILABLE, why.message)
        leader = why.leader
        known = {} if leader is None else {"leader": leader.address, "epoch": leader.epoch}
        await abort(context, Reason.NOT_LEADER, why.message, **known)
