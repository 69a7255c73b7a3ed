"""Reaches the masters of a cluster on Kubernetes from outside, through port-forwards.

Blocks. The forwards run in a thread with an event loop until they are closed.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from contextlib import AsyncExitStack
from typing import Any, TypeVar

from firesteel.common.config import Configuration, options
from firesteel.common.leader import Office
from firesteel.errors import ClusterUnreachable
from firesteel.high_availability.kubernetes.offices import LeaseOffices
from firesteel.kubernetes.client import KubernetesClient
from firesteel.kubernetes.errors import KubernetesError, NotFound
from firesteel.kubernetes.pods.labels import selector_of
from firesteel.kubernetes.port_forward import PortForward
from firesteel.kubernetes.resources import DEPLOYMENTS, LEASES, PODS, name_of
from firesteel.kubernetes.security import client_configuration

T = TypeVar("T")
ANSWER_WITHIN_S = 5.0


class PortForwards:
    """Belongs to one client. `address` is kubernetes://NAMESPACE/CLUSTER-ID."""

    def __init__(self, address: str, conf: Configuration) -> None:
        offices = LeaseOffices.at(address, conf)
        self._access = offices.access
        self._cluster_id = offices.cluster_id
        self._open: dict[str, str] = {}  # the local address by that of the master
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    def secured(self, conf: Configuration) -> Configuration:
        """Returns the configuration with the credentials of this user for the cluster."""
        named = {
            options.KUBERNETES_CLUSTER_ID.key: self._cluster_id,
            options.KUBERNETES_NAMESPACE.key: self._access.namespace,
        }

        async def read() -> Configuration:
            return await client_configuration(self._client, conf.with_overrides(named))

        return self._run(read())

    def reach(self, address: str) -> str:
        """Returns the address at which this process reaches HOST:PORT of a pod: the same one if
        this process is in the cluster or no pod has that address. Raises ClusterUnreachable.
        """
        if self._access.in_pod:
            return address
        if address not in self._open:
            try:
                self._open[address] = self._run(self._forward(address))
            except KubernetesError as error:
                raise ClusterUnreachable(str(error)) from None
        return self._open[address]

    @property
    def any(self) -> bool:
        """Whether a master is reached through a port-forward."""
        return any(local != address for address, local in self._open.items())

    def check_exists(self) -> None:
        """Raises ClusterUnreachable if there is neither a Lease nor a Deployment of the cluster."""

        async def exists() -> bool:
            lease = f"{self._cluster_id}-{Office.DISPATCHER.value}"
            for resource, name in ((LEASES, lease), (DEPLOYMENTS, self._cluster_id)):
                try:
                    await self._client.get(resource, name, within_s=ANSWER_WITHIN_S)
                    return True
                except NotFound:
                    pass
            return False

        try:
            found = self._run(exists())
        except KubernetesError:
            return  # unknown
        if not found:
            raise ClusterUnreachable(
                f"there is no cluster {self._cluster_id} in namespace {self._access.namespace}"
            )

    def close(self) -> None:
        if self._loop is not None and self._thread is not None:
            self._run(self._resources.aclose())
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()
            self._loop = None
        self._open.clear()

    async def _forward(self, address: str) -> str:
        host, _, port = address.rpartition(":")
        found = await self._client.list(
            PODS,
            labels=selector_of(self._cluster_id),
            fields=f"status.podIP={host.strip('[]')}",
            within_s=ANSWER_WITHIN_S,
        )
        alive = [pod for pod in found.items if "deletionTimestamp" not in pod["metadata"]]
        if not (pods := alive or found.items):
            return address  # of a process that is not a pod
        forward = PortForward(self._client, name_of(pods[0]), int(port))
        await self._resources.enter_async_context(forward)
        return forward.address

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
            self._thread = threading.Thread(
                target=self._serve, args=(self._loop,), name="port-forwards", daemon=True
            )
            self._thread.start()
            asyncio.run_coroutine_threadsafe(self._begin(), self._loop).result()
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    async def _begin(self) -> None:
        self._resources = AsyncExitStack()
        self._client = await self._resources.enter_async_context(KubernetesClient(self._access))

    @staticmethod
    def _serve(loop: asyncio.AbstractEventLoop) -> None:
        asyncio.set_event_loop(loop)
        loop.run_forever()
