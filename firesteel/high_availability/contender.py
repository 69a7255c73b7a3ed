"""A contender as its service sees it, whatever elects the leaders."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Protocol

from firesteel.common.ids import Epoch
from firesteel.common.leader import Leader, LeadershipLost, NotActing, Office
from firesteel.high_availability.election import ElectionState


class Candidate(Protocol):
    """The core of a contender."""

    state: ElectionState
    epoch: Epoch
    other: Leader | None

    def acts(self, now: float) -> bool: ...


class Contender:
    """The queries of `LeaderElection`. `authority` names the service that elects the leaders."""

    contested = True

    def __init__(
        self,
        office: Office,
        authority: str,
        candidate: Callable[[], Candidate],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._office = office
        self._authority = authority
        self._candidate = candidate
        self._clock = clock
        self._changed = asyncio.Event()  # set by every command
        self._end: LeadershipLost | None = None

    async def granted(self) -> Epoch | None:
        await self._until(lambda: self._candidate().state is not ElectionState.STANDBY)
        return self._candidate().epoch

    def acts(self) -> bool:
        return self._candidate().acts(self._clock())

    async def acting(self) -> None:
        await self._until(self.acts)

    async def lost(self) -> None:
        await self._until(lambda: self._end is not None)
        assert self._end is not None
        raise self._end

    def not_acting(self) -> NotActing | None:
        holder, candidate = self._office.holder, self._candidate()
        match candidate.state:
            case ElectionState.STANDBY if candidate.other is not None:
                other = candidate.other
                return NotActing(
                    message=f"this {holder} is a standby, not the leader; the leader is"
                    f" {other.address} (epoch {other.epoch})",
                    leader=other,
                )
            case ElectionState.STANDBY:
                return NotActing(
                    message=f"this {holder} is a standby, and no leader is elected now"
                )
            case ElectionState.ENDED:
                return NotActing(message=f"this {holder} no longer leads, and ends")
            case _ if self.acts():
                return None
            case _:
                return NotActing(
                    message=f"this {holder} (epoch {candidate.epoch}) cannot reach"
                    f" {self._authority}, and does not act before it knows that it still leads",
                    coordinated=False,
                )

    async def _until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            self._changed.clear()
            await self._changed.wait()

    def _ended(self, reason: str) -> None:
        epoch = self._candidate().epoch
        self._end = LeadershipLost(
            f"the {self._office.holder} with epoch {epoch} no longer leads: {reason}"
        )
