"""A contender for an office. It sends the election's requests to ZooKeeper and informs the service.

kazoo calls its listeners and watches in its own threads; they only post events. Requests block in
one thread of this contender.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import assert_never

from kazoo.exceptions import ConnectionClosedError, KazooException, NoAuthError
from kazoo.protocol.states import KazooState

from firesteel.common.ids import Epoch
from firesteel.common.leader import NO_EPOCH, Office
from firesteel.common.logs import get_logger
from firesteel.common.service.core_loop import CoreLoop
from firesteel.high_availability.contender import Contender
from firesteel.high_availability.election import (
    Command,
    Confirm,
    Connected,
    Contend,
    ElectionCore,
    End,
    Event,
    Lead,
    Pause,
    Renewed,
    RequestFailed,
    Resigned,
    Resume,
    SessionLost,
    Suspended,
    Vacant,
)
from firesteel.high_availability.zookeeper.ensemble import Client, Ensemble
from firesteel.high_availability.zookeeper.nodes import OfficeNodes, claim_cluster

log = get_logger(__name__)


class ZooKeeperElection(Contender):
    """Implements `LeaderElection`. `store_id` is the id of the contender's job store, if it has
    one; its epoch will be higher than `above`.
    """

    def __init__(
        self,
        ensemble: Ensemble,
        office: Office,
        *,
        store_id: str = "",
        above: Epoch = NO_EPOCH,
        client: Client | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(office, f"ZooKeeper ({ensemble})", lambda: self.core, clock)
        self.core = ElectionCore()
        self._ensemble = ensemble
        self._store_id = store_id
        self._above = above
        self._client = client or Client(ensemble)
        self._nodes: OfficeNodes | None = None
        self._core_loop: CoreLoop[Event, None, Command] = CoreLoop(
            self.core, execute=self._execute, clock=clock, name=f"election of {office.value}"
        )
        self._running: asyncio.Task[None] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    # ---- LeaderElection

    async def start(self, address: str) -> None:
        self._loop = asyncio.get_running_loop()
        self._nodes = OfficeNodes(
            client=self._client,
            ensemble=self._ensemble,
            office=self._office,
            address=address,
            above=self._above,
            clock=self._clock,
        )
        try:
            await self._loop.run_in_executor(self._client.requests, self._prepare, self._nodes)
        except BaseException:
            await self.close()
            raise
        self._client.add_listener(self._state_changed)
        self._post_connected()
        self._running = asyncio.create_task(self._core_loop.run())

    async def close(self) -> None:
        if self._running is not None:
            self._client.remove_listener(self._state_changed)
            self._core_loop.stop()
            await self._running
        # The next leader may act before this process has ended, so it sends no more replies from
        # now on.
        self.core.handle(Resigned(), self._clock())
        await asyncio.to_thread(self._client.disconnect)

    # ---- inside

    def _prepare(self, nodes: OfficeNodes) -> None:
        self._client.connect()
        try:
            if self._store_id:
                claim_cluster(self._client, self._ensemble, self._store_id)
            nodes.prepare()
        except KazooException as error:
            raise self._ensemble.refused(error) from None

    def _post(self, event: Event) -> None:
        """Posts an event, from any thread."""
        assert self._loop is not None
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._core_loop.post, event)

    def _post_connected(self) -> None:
        session = self._client.client_id
        if session is not None:  # else the session is over: another one follows
            timeout_s = self._client.agreed_timeout_s
            self._post(Connected(session_id=session[0], session_timeout_s=timeout_s))

    def _state_changed(self, state: str) -> None:
        """Called in kazoo's thread."""
        if state == KazooState.CONNECTED:
            self._post_connected()
        elif state == KazooState.SUSPENDED:
            self._post(Suspended())
        else:
            self._post(SessionLost())

    def _execute(self, command: Command) -> None:
        self._changed.set()
        match command:
            case Contend():
                self._request(lambda nodes: nodes.contend(lambda _: self._post(Vacant())))
            case Confirm():
                self._request(OfficeNodes.confirm)
            case Renewed():
                pass
            case Lead():
                log.info("elected", office=self._office.value, epoch=command.epoch)
            case Pause():
                log.warning(
                    "does not act: ZooKeeper has not answered for long",
                    office=self._office.value,
                    epoch=self.core.epoch,
                )
            case Resume():
                log.info("acts again", office=self._office.value, epoch=self.core.epoch)
            case End():
                self._ended(command.reason)
            case _:
                assert_never(command)

    def _request(self, request: Callable[[OfficeNodes], Event]) -> None:
        assert self._nodes is not None
        self._client.requests.submit(self._carry, request, self._nodes)

    def _carry(self, request: Callable[[OfficeNodes], Event], nodes: OfficeNodes) -> None:
        """Runs in the thread of requests."""
        try:
            self._post(request(nodes))
        except ConnectionClosedError:
            pass  # by `close`
        except Exception as error:
            reason = f"{type(error).__name__}: {error}"
            if isinstance(error, NoAuthError) or not isinstance(error, KazooException):
                log.error("ZooKeeper refuses a request", reason=reason)
            self._post(RequestFailed(reason=reason))
