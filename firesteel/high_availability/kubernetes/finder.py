"""Finds the leader for a client, and waits until there is one.

Blocks. The requests run in a thread with an event loop, because clients may be called in one.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from firesteel.common.leader import Leader, Office
from firesteel.high_availability.incumbent import Incumbent, LeadersUnreachable
from firesteel.high_availability.kubernetes.lease import acquired_ms, lease_of
from firesteel.high_availability.kubernetes.offices import LeaseOffices
from firesteel.kubernetes.client import KubernetesClient
from firesteel.kubernetes.errors import NotFound, TooManyRequests, Unavailable
from firesteel.kubernetes.resources import LEASES

T = TypeVar("T")

ANSWER_WITHIN_S = 5.0
PAUSE_S = 0.2  # while there is no leader


def incumbents(offices: LeaseOffices) -> dict[Office, Incumbent]:
    """Returns the holders of all offices that are occupied now. Raises FiresteelError."""

    async def find(client: KubernetesClient) -> dict[Office, Incumbent]:
        found = {office: await _read(client, offices, office) for office in Office}
        return {office: each for office, each in found.items() if each is not None}

    with ThreadPoolExecutor(1, "leases") as thread:
        return _run(thread, offices, find)


class LeaseFinder:
    """Connects when it is created. Raises LeadersUnreachable or FiresteelError."""

    def __init__(self, offices: LeaseOffices, office: Office) -> None:
        self._offices = offices
        self._office = office
        self._thread = ThreadPoolExecutor(1, "leases")
        try:
            self.find(timeout_s=0.0)
        except BaseException:
            self.close()
            raise

    def find(self, *, timeout_s: float) -> Leader | None:
        """Returns the leader. Waits up to `timeout_s` while there is none, and then returns None.

        Raises LeadersUnreachable or FiresteelError.
        """

        async def find(client: KubernetesClient) -> Leader | None:
            deadline = time.monotonic() + timeout_s
            while True:
                if (found := await _read(client, self._offices, self._office)) is not None:
                    return found.leader
                if time.monotonic() >= deadline:
                    return None
                await asyncio.sleep(PAUSE_S)

        return _run(self._thread, self._offices, find)

    def close(self) -> None:
        self._thread.shutdown()


def _run(
    thread: ThreadPoolExecutor,
    offices: LeaseOffices,
    work: Callable[[KubernetesClient], Coroutine[Any, Any, T]],
) -> T:
    async def run() -> T:
        async with KubernetesClient(offices.access, total_timeout_s=ANSWER_WITHIN_S) as client:
            return await work(client)

    try:
        return thread.submit(lambda: asyncio.run(run())).result()
    except (TooManyRequests, Unavailable) as error:
        raise LeadersUnreachable(
            f"the API server of Kubernetes ({offices.access.server}) cannot be reached: {error}"
        ) from None


async def _read(
    client: KubernetesClient, offices: LeaseOffices, office: Office
) -> Incumbent | None:
    try:
        manifest = await client.get(LEASES, offices.name(office))
    except NotFound:
        return None
    leader = lease_of(manifest).leader
    if leader is None or not leader.address:
        return None
    return Incumbent(leader, acquired_ms(manifest))
