"""Labels the pod whose ResourceManager leads, which a Service selects.

TaskExecutors have no token with which they could read the Lease; they follow the Service.
"""

from __future__ import annotations

import asyncio

import structlog

from firesteel.common.backoff import Backoff
from firesteel.common.config import Configuration
from firesteel.common.leader import Leader, Office
from firesteel.high_availability.kubernetes.leaders import KubernetesLeaders
from firesteel.high_availability.kubernetes.offices import LeaseOffices
from firesteel.kubernetes.client import KubernetesClient
from firesteel.kubernetes.cluster.objects import LEADS
from firesteel.kubernetes.configuration import access_of
from firesteel.kubernetes.errors import KubernetesError
from firesteel.kubernetes.resources import PODS, Object

log = structlog.get_logger(__name__)

FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.2, 5.0


class Leadership:
    """Keeps the label of this pod equal to the leadership of the ResourceManager at `host`."""

    def __init__(self, conf: Configuration, *, pod: str, host: str) -> None:
        self._leaders = KubernetesLeaders(LeaseOffices.of(conf))
        self._access = access_of(conf)
        self._pod = pod
        self._host = host

    async def run(self) -> None:
        retriever = self._leaders.of(Office.RESOURCE_MANAGER, "")
        await self._leaders.start()
        try:
            async with KubernetesClient(self._access) as client:
                leader: Leader | None = None
                await self._label(client, label_of(leader, self._host))
                while True:
                    leader = await retriever.changed(leader)
                    await self._label(client, label_of(leader, self._host))
        finally:
            await self._leaders.close()

    async def _label(self, client: KubernetesClient, labels: Object) -> None:
        """Retries until the API server has accepted the labels."""
        pause = Backoff(FIRST_PAUSE_S, LONGEST_PAUSE_S)
        while True:
            try:
                await client.patch(PODS, self._pod, {"metadata": {"labels": labels}})
                return
            except KubernetesError as error:
                log.warning("the pod cannot be labelled; retrying", reason=str(error))
            await asyncio.sleep(pause.next())


def label_of(leader: Leader | None, host: str) -> Object:
    """Returns the label of a pod with this address, for a merge patch: None removes it."""
    leads = leader is not None and leader.address.rpartition(":")[0] == host
    return dict(LEADS) if leads else dict.fromkeys(LEADS)
