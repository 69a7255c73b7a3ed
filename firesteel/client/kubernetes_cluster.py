"""A cluster on Kubernetes, from the machine of its user: starts it, waits for it, and deletes it.

Blocks; Ctrl-C interrupts each method.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, TypeVar

import firesteel
from firesteel.common.config import Configuration, options
from firesteel.common.leader import Office
from firesteel.errors import ClusterUnreachable, FiresteelError
from firesteel.high_availability import elected_address
from firesteel.high_availability.kubernetes.lease import lease_of
from firesteel.kubernetes.client import KubernetesClient
from firesteel.kubernetes.cluster import Application, cluster_objects, job_id_of
from firesteel.kubernetes.cluster.deployed import DeployedCluster, Outcome, outcome_of
from firesteel.kubernetes.cluster.progress import masters_progress
from firesteel.kubernetes.configuration import access_of, cluster_id_of
from firesteel.kubernetes.errors import KubernetesError, NotFound
from firesteel.kubernetes.pods.labels import JOB_MANAGER
from firesteel.kubernetes.resources import LEASES, Object, name_of
from firesteel.kubernetes.security import cluster_secrets, save_client

if TYPE_CHECKING:
    from firesteel.client.client import Client

T = TypeVar("T")
Say = Callable[[str], None]
POLL_S = 0.5
GONE_WITHIN_S = 120.0
LOG_LINES = 20
CRASHES = 3  # restarts of a master after which it is not going to serve


class KubernetesCluster:
    """The cluster that the configuration names. Raises ConfigurationError or
    KubernetesConfigurationError.
    """

    def __init__(self, conf: Configuration, *, patience_s: float = 10.0) -> None:
        """`patience_s` limits the time for which a request to the API server is repeated."""
        self._patience_s = patience_s
        self.cluster_id = cluster_id_of(conf)
        self._access = access_of(conf)
        self.conf = conf.with_overrides({options.KUBERNETES_NAMESPACE.key: self._access.namespace})
        self.address = kubernetes_address(self.conf)
        self.job_id = job_id_of(self.cluster_id)

    def __str__(self) -> str:
        return f"{self.cluster_id} in namespace {self._access.namespace}"

    def options(self, target: str) -> str:
        """Returns the options of a command that name this cluster."""
        named = [f"-t {target}", f"-D {options.KUBERNETES_CLUSTER_ID.key}={self.cluster_id}"]
        if self._access.namespace != "default":
            named.append(f"-D {options.KUBERNETES_NAMESPACE.key}={self._access.namespace}")
        return " ".join(named)

    @property
    def stop_command(self) -> str:
        return f"firesteel cluster stop {self.options('kubernetes-session')}"

    # ---- start

    def create(self, application: Application | None = None, *, task_executors: int = 0) -> None:
        """Creates the objects of the cluster, and the credentials of this user. Raises ClusterTaken
        or KubernetesError; then nothing is left of them.
        """
        objects = cluster_objects(self.conf, application, task_executors=task_executors)
        made = cluster_secrets(self.conf)

        async def create(cluster: DeployedCluster, client: KubernetesClient) -> None:
            await cluster.create([*objects, *made.secrets])
            save_client(self.conf, self._access, made.client)

        self.run(create)

    def wait(self, say: Say) -> None:
        """Returns when a Dispatcher leads, or the application has ended. `say` gets each change of
        the pods of masters. Raises FiresteelError if none leads in time, or masters crash.
        """

        async def wait(cluster: DeployedCluster, client: KubernetesClient) -> None:
            deadline = time.monotonic() + self.conf.get(options.KUBERNETES_START_TIMEOUT)
            said: set[str] = set()
            while True:
                deployment = await cluster.get()
                if outcome_of(deployment) is not None or await self._leads(client):
                    return
                pods = await cluster.pods(JOB_MANAGER)
                progress = masters_progress(deployment, pods)
                for line in progress.lines:
                    if line not in said:
                        said.add(line)
                        say(line)
                if progress.restarts >= CRASHES or time.monotonic() > deadline:
                    log = await last_log(client, pods) if progress.restarts else ""
                    raise self._not_started(progress.lines, log)
                await asyncio.sleep(POLL_S)

        self.run(wait)

    def _not_started(self, lines: Sequence[str], log: str) -> FiresteelError:
        reasons = "; ".join(lines) or "no pod has been created for its Deployment"
        error = FiresteelError(f"the masters of the cluster {self} do not serve: {reasons}")
        if log:
            error.add_note(f"The last lines of the log of the pod:\n{log}")
        return error

    async def _leads(self, client: KubernetesClient) -> bool:
        try:
            lease = await client.get(LEASES, f"{self.cluster_id}-{Office.DISPATCHER.value}")
        except NotFound:
            return False
        leader = lease_of(lease).leader
        return leader is not None and bool(leader.address)

    def client(self) -> Client:
        """Connects to the leading Dispatcher. Raises ClusterUnreachable, also if the version of the
        cluster is another one.
        """
        from firesteel.client.client import Client

        client = Client(self.address, conf=self.conf)
        try:
            check_version(client)
        except BaseException:
            client.close()
            raise
        return client

    # ---- state

    def outcome(self) -> Outcome | None:
        """Returns how the application has ended; None while it has not, or if it is gone."""

        async def read(cluster: DeployedCluster, client: KubernetesClient) -> Outcome | None:
            return await cluster.outcome()

        return self.run(read)

    def state(self) -> tuple[Object, list[Object]]:
        """Returns the Deployment and all pods. Raises NoKubernetesCluster."""

        async def read(
            cluster: DeployedCluster, client: KubernetesClient
        ) -> tuple[Object, list[Object]]:
            return await cluster.get(), await cluster.pods()

        return self.run(read)

    # ---- end

    def delete(self, say: Say) -> None:
        """Deletes the cluster; returns when its pods have ended. Raises NoKubernetesCluster."""

        async def delete(cluster: DeployedCluster, client: KubernetesClient) -> None:
            await cluster.get()
            await cluster.delete()
            waiting: list[str] = []

            def note(pods: Sequence[Object]) -> None:
                waiting[:] = [name_of(pod) for pod in pods]

            try:
                async with asyncio.timeout(GONE_WITHIN_S):
                    await cluster.gone(note)
            except TimeoutError:
                say(f"Pods that have not ended yet: {', '.join(waiting) or 'none'}")

        self.run(delete)

    def discard(self) -> None:
        """Deletes the cluster, if there is one, without waiting."""

        async def delete(cluster: DeployedCluster, client: KubernetesClient) -> None:
            await cluster.delete()

        with contextlib.suppress(KubernetesError):
            self.run(delete)

    def run(self, work: Callable[[DeployedCluster, KubernetesClient], Awaitable[T]]) -> T:
        async def run() -> T:
            patience_s = self._patience_s
            async with KubernetesClient(self._access, total_timeout_s=patience_s) as client:
                return await work(DeployedCluster(client, self.cluster_id), client)

        return asyncio.run(run())


def kubernetes_address(conf: Configuration) -> str:
    """Returns kubernetes://NAMESPACE/CLUSTER-ID of the configured cluster."""
    return elected_address(conf.with_overrides({options.HA_TYPE.key: "kubernetes"}))


def check_version(client: Client) -> None:
    """Raises ClusterUnreachable unless the cluster has the version of this client. Jobs contain
    pickled functions, which other versions may misread.
    """
    of_cluster = client.cluster_overview().version
    if of_cluster != firesteel.__version__:
        raise ClusterUnreachable(
            f"the image of the cluster {client.address} has Firesteel {of_cluster}, and this client"
            f" is {firesteel.__version__}: install firesteel=={of_cluster}, or start a cluster with"
            f" an image of {firesteel.__version__} ({options.KUBERNETES_IMAGE.key})"
        )


async def last_log(client: KubernetesClient, pods: Sequence[Object]) -> str:
    """Returns the end of the log of the last crash."""
    for pod in pods:
        with contextlib.suppress(KubernetesError):
            return await client.pod_log(name_of(pod), previous=True, tail_lines=LOG_LINES)
    return ""
