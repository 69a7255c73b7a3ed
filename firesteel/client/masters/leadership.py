"""Marks the pods of the leaders.

The label of the ResourceManager's pod is selected by a Service: TaskExecutors have no token with
which they could read the Lease. The cost of deletion lets a rolling update end standbys first.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping, Set

from firesteel.common.backoff import Backoff
from firesteel.common.config import Configuration
from firesteel.common.leader import Leader, LeaderRetriever, Office
from firesteel.common.logs import get_logger
from firesteel.high_availability.kubernetes.leaders import KubernetesLeaders
from firesteel.high_availability.kubernetes.offices import LeaseOffices
from firesteel.kubernetes.client import KubernetesClient
from firesteel.kubernetes.cluster.objects import LEADS
from firesteel.kubernetes.configuration import access_of
from firesteel.kubernetes.errors import KubernetesError
from firesteel.kubernetes.resources import PODS, Object

log = get_logger(__name__)

# A ReplicaSet deletes the pods with the lowest cost first.
DELETION_COST = "controller.kubernetes.io/pod-deletion-cost"
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.2, 5.0
UNMARKED_WITHIN_S = 1.0


class Leadership:
    """Keeps the marks of this pod equal to the leadership of the masters at `host`."""

    def __init__(self, conf: Configuration, *, pod: str, host: str) -> None:
        self._leaders = KubernetesLeaders(LeaseOffices.of(conf))
        self._access = access_of(conf)
        self._pod = pod
        self._host = host
        self._led: set[Office] = set()
        self._lock = asyncio.Lock()  # a later request is sent after an earlier one was answered

    async def run(self) -> None:
        retrievers = {office: self._leaders.of(office, "") for office in Office}
        await self._leaders.start()
        try:
            async with KubernetesClient(self._access) as client:
                try:
                    await self._follow_all(client, retrievers)
                finally:
                    await self._unmark(client)
        finally:
            await self._leaders.close()

    async def _follow_all(
        self, client: KubernetesClient, retrievers: Mapping[Office, LeaderRetriever]
    ) -> None:
        await self._mark(client)
        async with asyncio.TaskGroup() as following:
            for office, retriever in retrievers.items():
                following.create_task(self._follow(client, office, retriever))

    async def _follow(
        self, client: KubernetesClient, office: Office, retriever: LeaderRetriever
    ) -> None:
        leader: Leader | None = None
        while True:
            leader = await retriever.changed(leader)
            if leader is not None and leader.address.rpartition(":")[0] == self._host:
                self._led.add(office)
            else:
                self._led.discard(office)
            await self._mark(client)

    async def _mark(self, client: KubernetesClient) -> None:
        """Retries until the API server has accepted the marks."""
        pause = Backoff(FIRST_PAUSE_S, LONGEST_PAUSE_S)
        while True:
            try:
                async with self._lock:
                    await client.patch(PODS, self._pod, {"metadata": marks_of(self._led)})
                return
            except KubernetesError as error:
                log.warning("the pod cannot be labelled; retrying", reason=str(error))
            await asyncio.sleep(pause.next())

    async def _unmark(self, client: KubernetesClient) -> None:
        """Removes the marks, because the masters end: TaskExecutors would try this pod first."""
        with contextlib.suppress(KubernetesError):
            marks = {"metadata": marks_of(set())}
            await client.patch(PODS, self._pod, marks, within_s=UNMARKED_WITHIN_S)


def marks_of(led: Set[Office]) -> Object:
    """Returns the labels and annotations of a pod whose masters have these offices, for a merge
    patch: None removes one.
    """
    labels = dict(LEADS) if Office.RESOURCE_MANAGER in led else dict.fromkeys(LEADS)
    return {"labels": labels, "annotations": {DELETION_COST: str(len(led)) if led else None}}
