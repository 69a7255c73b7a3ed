"""A contender for a Lease. It sends the requests of its core, and informs the service."""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import time
from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import Any, assert_never

from firesteel.common.config import options
from firesteel.common.ids import Epoch, random_id
from firesteel.common.leader import NO_EPOCH, LeadershipLost, Office
from firesteel.common.logs import get_logger
from firesteel.common.service.core_loop import CoreLoop
from firesteel.errors import FiresteelError
from firesteel.high_availability.contender import Contender
from firesteel.high_availability.election import End, Lead, Pause, Renewed, Resigned, Resume
from firesteel.high_availability.kubernetes.core import (
    Bar,
    Command,
    Event,
    Failed,
    Found,
    LeaseCore,
    Observed,
    Read,
    Refused,
    Release,
    Stored,
    Write,
)
from firesteel.high_availability.kubernetes.lease import Lease, lease_of, manifest_of
from firesteel.high_availability.kubernetes.offices import FOLLOWING, LeaseOffices
from firesteel.high_availability.kubernetes.permissions import check_permissions, missing
from firesteel.kubernetes.errors import (
    AlreadyExists,
    Conflict,
    Forbidden,
    NotFound,
    TooManyRequests,
    Unavailable,
)
from firesteel.kubernetes.reflector.reflector import Reflector
from firesteel.kubernetes.resources import LEASES, Object

log = get_logger(__name__)

CONNECT_TIMEOUT_S = 5.0
RELEASE_TIMEOUT_S = 2.0


class LeaseElection(Contender):
    """Implements `LeaderElection`. `store_id` is the id of the contender's job store, if it has
    one; its epoch will be higher than `above`. `wall_clock` is for the times in the Lease.
    """

    def __init__(
        self,
        offices: LeaseOffices,
        office: Office,
        *,
        store_id: str = "",
        above: Epoch = NO_EPOCH,
        clock: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], datetime.datetime] = lambda: datetime.datetime.now(datetime.UTC),
    ) -> None:
        super().__init__(
            office,
            f"the API server of Kubernetes ({offices.access.server})",
            lambda: self.core,
            clock,
        )
        self._offices = offices
        self._name = offices.name(office)
        self._store_id = store_id
        self._above = above
        self._wall_clock = wall_clock
        self._client = offices.client()
        self._request: asyncio.Task[None] | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._problem = ""  # of the last request
        self._start_core("")

    # ---- LeaderElection

    async def start(self, address: str) -> None:
        try:
            await self._prepare()
        except BaseException:
            await self._client.close()
            raise
        self._start_core(address)
        self._reflector = Reflector(
            self._client,
            LEASES,
            fields=f"metadata.name={self._name}",
            settings=FOLLOWING,
            on_change=lambda names: self._observed(),
            clock=self._clock,
        )
        self._tasks = [
            asyncio.create_task(self._core_loop.run()),
            asyncio.create_task(self._reflector.run()),
        ]

    async def close(self) -> None:
        if self._tasks:
            self._reflector.stop()
            self._core_loop.stop()
            await asyncio.gather(*self._tasks)
            if self._request is not None:
                self._request.cancel()
                await asyncio.gather(self._request, return_exceptions=True)
        # The next leader may act before this process has ended, so it sends no more replies from
        # now on.
        for command in self.core.handle(Resigned(), self._clock()).commands:
            if isinstance(command, Release):
                await self._release(command.lease)
        self._tasks.clear()
        await self._client.close()

    # ---- inside

    def _start_core(self, address: str) -> None:
        self.core = LeaseCore(
            holder=f"{address}_{random_id()}",
            address=address,
            durations=self._offices.durations,
            now=self._clock(),
            store_id=self._store_id,
            above=self._above,
        )
        self._core_loop: CoreLoop[Event, None, Command] = CoreLoop(
            self.core,
            execute=self._execute,
            clock=self._clock,
            name=f"election of {self._office.value}",
        )

    async def _prepare(self) -> None:
        """Raises FiresteelError if the configuration or the permissions do not allow to contend."""
        await check_permissions(self._client, within_s=CONNECT_TIMEOUT_S)
        with contextlib.suppress(NotFound):
            found = lease_of(await self._client.get(LEASES, self._name, within_s=CONNECT_TIMEOUT_S))
            if self._store_id and found.job_store not in ("", self._store_id):
                raise FiresteelError(self._foreign(found))

    def _foreign(self, lease: Lease) -> str:
        return (
            f"another cluster uses the Lease {self._name} in namespace {self._client.namespace}:"
            f" its job store is {lease.job_store}, that of this Dispatcher {self._store_id}. All"
            f" Dispatchers of a cluster need one {options.DATABASE_URL.key}; another cluster needs"
            f" another {options.KUBERNETES_CLUSTER_ID.key}. If that job store is gone for good,"
            " delete the Lease"
        )

    def _observed(self) -> None:
        found = self._reflector.snapshot.get(self._name)
        self._core_loop.post(Observed(lease=None if found is None else lease_of(found)))

    def _execute(self, command: Command) -> None:
        self._changed.set()
        match command:
            case Read():
                self._start(self._read(command))
            case Write():
                self._start(self._write(command))
            case Renewed() | Release():
                pass  # `close` releases
            case Lead():
                log.info("elected", office=self._office.value, epoch=command.epoch)
            case Pause():
                log.warning(
                    "does not act: the API server of Kubernetes has not renewed the Lease",
                    office=self._office.value,
                    epoch=self.core.epoch,
                    lease=self._name,
                    reason=self._problem,
                )
            case Resume():
                log.info("acts again", office=self._office.value, epoch=self.core.epoch)
            case End():
                self._ended(command.reason)
            case Bar():
                self._end = LeadershipLost(self._foreign(command.lease))
            case _:
                assert_never(command)

    def _start(self, request: Coroutine[Any, Any, Event]) -> None:
        async def carry() -> None:
            self._core_loop.post(await request)

        self._request = asyncio.create_task(carry(), name=f"election of {self._office.value}")

    async def _read(self, command: Read) -> Event:
        try:
            found = await self._client.get(LEASES, self._name, within_s=0)
        except NotFound:
            return Found(number=command.number, lease=None)
        except Exception as error:
            return self._failed(command.number, error)
        return Found(number=command.number, lease=lease_of(found))

    async def _write(self, command: Write) -> Event:
        manifest = manifest_of(command.lease, self._name, self._wall_clock(), taken=command.taken)
        try:
            stored = await self._put(manifest, new=not command.lease.version)
        except (AlreadyExists, Conflict, NotFound):
            return Refused(number=command.number)
        except Exception as error:
            return self._failed(command.number, error)
        self._problem = ""
        return Stored(number=command.number, lease=lease_of(stored))

    async def _put(self, manifest: Object, *, new: bool) -> Object:
        if new:
            return await self._client.create(LEASES, manifest, within_s=0)
        return await self._client.replace(LEASES, manifest, within_s=0)

    def _failed(self, number: int, error: Exception) -> Failed:
        if str(error) != self._problem:  # text only: the same report is not repeated
            self._problem = str(error)
            report = log.warning if isinstance(error, Unavailable | TooManyRequests) else log.error
            reason = self._problem
            if isinstance(error, Forbidden):
                reason = missing(self._client.namespace, error.target.verb)
            report("a request for the Lease failed", lease=self._name, reason=reason)
        retry_after_s = (
            error.retry_after_s if isinstance(error, Unavailable | TooManyRequests) else 0.0
        )
        return Failed(number=number, retry_after_s=retry_after_s)

    async def _release(self, lease: Lease) -> None:
        """Clears the holder, also if the answer to the last renewal did not arrive."""
        try:
            async with asyncio.timeout(RELEASE_TIMEOUT_S):
                try:
                    await self._clear(lease)
                except Conflict:
                    found = lease_of(await self._client.get(LEASES, self._name))
                    if self.core.owns(found):
                        await self._clear(found)
        except (FiresteelError, TimeoutError) as error:
            log.warning(
                "the Lease is not released; another contender leads after the lease duration",
                lease=self._name,
                reason=str(error),
            )

    async def _clear(self, lease: Lease) -> None:
        left = manifest_of(
            replace(lease, holder="", leader=None), self._name, self._wall_clock(), taken=False
        )
        await self._client.replace(LEASES, left)
