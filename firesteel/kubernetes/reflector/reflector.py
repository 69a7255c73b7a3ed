"""Follows the objects of one resource that match selectors."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, assert_never

from firesteel.common.logs import get_logger
from firesteel.common.service.core_loop import CoreLoop
from firesteel.errors import FiresteelError
from firesteel.kubernetes.client import KubernetesClient
from firesteel.kubernetes.errors import Gone, TooManyRequests, Unavailable
from firesteel.kubernetes.reflector.core import (
    Bookmarked,
    Cancel,
    Command,
    Event,
    Fail,
    List,
    Listed,
    ListFailed,
    Notify,
    ObjectChanged,
    ObjectDeleted,
    ReflectorCore,
    ReflectorSettings,
    Watch,
    WatchEnded,
    WatchFailed,
    WatchGone,
    WatchOpened,
)
from firesteel.kubernetes.resources import Object, Resource
from firesteel.kubernetes.watch import WatchEvent, WatchEventType

log = get_logger(__name__)


class ReflectorStale(FiresteelError):
    """The objects have not been known to be current for too long."""


class Reflector:
    """Readers get the latest snapshot. Reconcile by the snapshot, not by the notifications: they
    say where it has changed, and several changes of an object may arrive as one.
    """

    def __init__(
        self,
        client: KubernetesClient,
        resource: Resource,
        *,
        namespace: str = "",
        labels: str = "",
        fields: str = "",
        settings: ReflectorSettings | None = None,
        on_change: Callable[[frozenset[str]], None] = lambda names: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._client = client
        self._resource = resource
        self._namespace = namespace
        self._labels = labels
        self._fields = fields
        self._settings = settings or ReflectorSettings()
        self._on_change = on_change
        self._clock = clock
        self.core = ReflectorCore(self._settings, clock())
        self._core_loop: CoreLoop[Event, None, Command] = CoreLoop(
            self.core,
            execute=self._execute,
            clock=clock,
            name=f"reflector of {resource.plural}",
        )
        self._request: asyncio.Task[None] | None = None
        self._synced = asyncio.Event()
        self._failure: ReflectorStale | None = None

    async def run(self) -> None:
        """Runs until `stop` is called. Raises ReflectorStale."""
        try:
            await self._core_loop.run()
        finally:
            await self._cancel()
        if self._failure is not None:
            raise self._failure

    def stop(self) -> None:
        self._core_loop.stop()

    async def synced(self) -> None:
        """Returns once the snapshot is complete for the first time."""
        await self._synced.wait()

    @property
    def snapshot(self) -> Mapping[str, Object]:
        """The objects by name, as they were last known."""
        return self.core.objects

    @property
    def problem(self) -> str:
        """Why the snapshot may not be current; empty if the last request succeeded."""
        return self.core.problem

    def age_s(self) -> float:
        """Returns the seconds since the snapshot was known to be current. Between signs of life,
        it rises up to the timeout of a watch.
        """
        return self.core.age_s(self._clock())

    # ---- inside

    def _execute(self, command: Command) -> None:
        match command:
            case List():
                self._start(self._list(command.number))
            case Watch():
                self._start(self._watch(command))
            case Cancel():
                if self._request is not None:
                    self._request.cancel()
            case Notify():
                self._synced.set()
                self._on_change(command.names)
            case Fail():
                what = f"the {self._resource.plural} of namespace {self._where} are"
                self._failure = ReflectorStale(f"{what} {command.reason}")
                self.stop()
            case _:
                assert_never(command)

    @property
    def _where(self) -> str:
        return self._namespace or self._client.namespace

    def _start(self, request: Coroutine[Any, Any, None]) -> None:
        self._request = asyncio.create_task(request, name=f"reflector of {self._resource.plural}")

    async def _cancel(self) -> None:
        if self._request is not None:
            self._request.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._request

    async def _list(self, number: int) -> None:
        try:
            found = await self._client.list(
                self._resource,
                namespace=self._namespace,
                labels=self._labels,
                fields=self._fields,
                within_s=0,
            )
        except FiresteelError as error:
            self._warn(error)
            self._post(
                ListFailed(number=number, reason=str(error), retry_after_s=_retry_after_s(error))
            )
        else:
            self._post(
                Listed(number=number, objects=found.items, resource_version=found.resource_version)
            )

    async def _watch(self, command: Watch) -> None:
        number = command.number
        watch = self._client.watch(
            self._resource,
            resource_version=command.resource_version,
            timeout_s=self._settings.watch_timeout_s,
            namespace=self._namespace,
            labels=self._labels,
            fields=self._fields,
        )
        try:
            async with watch as events:
                self._post(WatchOpened(number=number))
                async for event in events:
                    self._post(_event(number, event))
        except Gone:
            self._post(WatchGone(number=number))
        except FiresteelError as error:
            self._warn(error)
            self._post(
                WatchFailed(number=number, reason=str(error), retry_after_s=_retry_after_s(error))
            )
        else:
            self._post(WatchEnded(number=number))

    def _warn(self, error: FiresteelError) -> None:
        """Logs the first failure; `problem` has the later ones."""
        if not self.core.problem:
            log.warning(
                "cannot follow objects of Kubernetes",
                resource=self._resource.plural,
                reason=str(error),
            )

    def _post(self, event: Event) -> None:
        self._core_loop.post(event)


def _event(number: int, event: WatchEvent) -> Event:
    match event.type:
        case WatchEventType.ADDED | WatchEventType.MODIFIED:
            return ObjectChanged(number=number, object=event.object)
        case WatchEventType.DELETED:
            return ObjectDeleted(number=number, object=event.object)
        case WatchEventType.BOOKMARK:
            return Bookmarked(number=number, resource_version=event.resource_version)
        case _:
            assert_never(event.type)


def _retry_after_s(error: FiresteelError) -> float:
    return error.retry_after_s if isinstance(error, TooManyRequests | Unavailable) else 0.0
