"""A retriever that announcements of leaders are passed to.

Epochs only rise: an announcement of an earlier leader, by a server that lags behind, is ignored.
"""

from __future__ import annotations

import asyncio

from firesteel.common.leader import NO_EPOCH, Leader, Office
from firesteel.common.logs import get_logger

log = get_logger(__name__)


class Retriever:
    """Implements `LeaderRetriever`, on one event loop."""

    fixed = False

    def __init__(self, office: Office) -> None:
        self._office = office
        self._leader: Leader | None = None
        self._highest = NO_EPOCH
        self._changed = asyncio.Event()

    @property
    def leader(self) -> Leader | None:
        return self._leader

    async def changed(self, known: Leader | None) -> Leader | None:
        while self._leader == known:
            self._changed.clear()
            await self._changed.wait()
        return self._leader

    def announced(self, leader: Leader | None) -> None:
        if leader is not None and leader.epoch < self._highest:
            log.warning(
                "an earlier leader is announced; it is ignored",
                office=self._office.value,
                address=leader.address,
                epoch=leader.epoch,
                known=self._highest,
            )
            return
        if leader is not None:
            self._highest = leader.epoch
        self._leader = leader
        self._changed.set()
