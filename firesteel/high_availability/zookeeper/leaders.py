"""Finds the elected leaders in ZooKeeper, and follows them.

While ZooKeeper is unavailable, the leaders are those that were announced last.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

from kazoo.exceptions import ConnectionClosedError, KazooException, NoNodeError
from kazoo.handlers.threading import KazooTimeoutError
from kazoo.recipe.watchers import DataWatch

from firesteel.common.leader import LeaderRetriever, Office
from firesteel.common.logs import get_logger
from firesteel.errors import FiresteelError
from firesteel.high_availability.retriever import Retriever
from firesteel.high_availability.zookeeper.ensemble import (
    CONNECT_TIMEOUT_S,
    Client,
    Ensemble,
)
from firesteel.high_availability.zookeeper.nodes import decode

log = get_logger(__name__)

READ_TIMEOUT_S = 2.0


class ZooKeeperLeaders:
    """Implements `Leaders`."""

    def __init__(self, ensemble: Ensemble, client: Client | None = None) -> None:
        self._ensemble = ensemble
        self._client = client or Client(ensemble)
        self._retrievers: dict[Office, Retriever] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._said: asyncio.TimerHandle | None = None

    def of(self, office: Office, address: str) -> LeaderRetriever:
        if office not in self._retrievers:
            self._retrievers[office] = Retriever(office)
            if self._loop is not None:
                self._client.requests.submit(self._watch, office)
        return self._retrievers[office]

    async def start(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._client.start_async()
        self._said = self._loop.call_later(CONNECT_TIMEOUT_S, self._say_if_away)
        for office in self._retrievers:
            self._client.requests.submit(self._watch, office)

    async def standbys(self, office: Office) -> tuple[str, ...]:
        if not self._client.connected:
            return ()
        return await asyncio.to_thread(self._read_standbys, office)

    async def close(self) -> None:
        if self._said is not None:
            self._said.cancel()
        await asyncio.to_thread(self._client.disconnect)

    def _say_if_away(self) -> None:
        if not self._client.connected:
            log.warning("ZooKeeper does not answer; waiting for it", servers=str(self._ensemble))

    # ---- in threads

    def _read_standbys(self, office: Office) -> tuple[str, ...]:
        children = self._client.get_children_async(self._ensemble.standbys(office))
        holder = self._client.get_async(self._ensemble.leader(office))
        leader = ""
        try:
            names = children.get(timeout=READ_TIMEOUT_S)
            with suppress(NoNodeError):  # the office is vacant
                leader = decode(holder.get(timeout=READ_TIMEOUT_S)[0]).address
        except NoNodeError:  # it never had a standby
            return ()
        except (KazooException, KazooTimeoutError, FiresteelError) as error:
            log.warning("standbys are unknown", office=office.value, reason=str(error))
            return ()
        return tuple(sorted({name.rpartition("@")[0] for name in names} - {leader}))

    def _watch(self, office: Office) -> None:
        """Watches an office. Returns when its state is known."""
        try:
            DataWatch(
                self._client,
                self._ensemble.leader(office),
                lambda data, stat: self._found(office, data),
            )
        except ConnectionClosedError:
            pass  # by `close`
        except KazooException as error:
            log.error("the leader cannot be found", reason=str(self._ensemble.refused(error)))

    def _found(self, office: Office, data: Any) -> None:
        """Announces the leader. Also called in kazoo's thread."""
        try:
            leader = decode(data) if data else None
        except FiresteelError as error:
            log.error("the leader cannot be found", reason=str(error))
            return
        assert self._loop is not None
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._retrievers[office].announced, leader)
