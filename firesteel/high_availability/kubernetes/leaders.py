"""Finds the elected leaders in their Leases, and follows them.

While the API server is away or a Lease is missing, the leaders are those that were announced last.
"""

from __future__ import annotations

import asyncio

from firesteel.common.leader import LeaderRetriever, Office
from firesteel.high_availability.kubernetes.lease import lease_of
from firesteel.high_availability.kubernetes.offices import FOLLOWING, LeaseOffices
from firesteel.high_availability.retriever import Retriever
from firesteel.kubernetes.client import KubernetesClient
from firesteel.kubernetes.reflector.reflector import Reflector
from firesteel.kubernetes.resources import LEASES


class KubernetesLeaders:
    """Implements `Leaders`."""

    def __init__(self, offices: LeaseOffices) -> None:
        self._offices = offices
        self._retrievers: dict[Office, Retriever] = {}
        self._client: KubernetesClient | None = None  # once started
        self._following: dict[Office, tuple[Reflector, asyncio.Task[None]]] = {}

    def of(self, office: Office, address: str) -> LeaderRetriever:
        if office not in self._retrievers:
            self._retrievers[office] = Retriever(office)
            if self._client is not None:
                self._follow(office, self._client)
        return self._retrievers[office]

    async def start(self) -> None:
        self._client = self._offices.client()
        for office in self._retrievers:
            self._follow(office, self._client)

    async def standbys(self, office: Office) -> tuple[str, ...]:
        """Returns none: contenders that do not lead are not announced."""
        return ()

    async def close(self) -> None:
        following = list(self._following.values())
        self._following.clear()
        for reflector, _ in following:
            reflector.stop()
        await asyncio.gather(*(task for _, task in following))
        if self._client is not None:
            await self._client.close()

    # ---- inside

    def _follow(self, office: Office, client: KubernetesClient) -> None:
        reflector = Reflector(
            client,
            LEASES,
            fields=f"metadata.name={self._offices.name(office)}",
            settings=FOLLOWING,
            on_change=lambda names: self._changed(office),
        )
        task = asyncio.create_task(reflector.run(), name=f"leaders: {office.value}")
        self._following[office] = reflector, task

    def _changed(self, office: Office) -> None:
        if office not in self._following:
            return  # closed
        reflector, _ = self._following[office]
        if (found := reflector.snapshot.get(self._offices.name(office))) is None:
            return  # deleted: its holder recreates it, or another contender follows
        lease = lease_of(found)
        if lease.leader is None:
            self._retrievers[office].announced(None)
        elif lease.leader.address:
            self._retrievers[office].announced(lease.leader)
