"""Applies a changed configuration or image to a cluster on Kubernetes that runs.

    ConfigMap and other objects ─▶ masters ─▶ masters of a second Deployment ─▶ TaskExecutors

A new pod of masters has to be ready before an earlier one ends, and the leader's ends last. If one
does not become ready, the cluster gets its earlier objects back. The ResourceManager replaces the
TaskExecutors: it drains one after the other.
"""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
import time
from collections.abc import Callable, Collection, Sequence
from pathlib import Path

from firesteel.client.client import Client
from firesteel.client.job_details import ClusterOverview
from firesteel.client.kubernetes_cluster import CRASHES, POLL_S, KubernetesCluster, last_log
from firesteel.common.config import ConfigurationError, options
from firesteel.errors import ClusterUnreachable, FiresteelError
from firesteel.kubernetes.client import KubernetesClient
from firesteel.kubernetes.cluster import cluster_objects, owned
from firesteel.kubernetes.cluster.deployed import DeployedCluster
from firesteel.kubernetes.cluster.progress import masters_progress
from firesteel.kubernetes.cluster.update import (
    Change,
    changes,
    configuration_of,
    loses_its_store,
    replacing,
    running_cluster,
)
from firesteel.kubernetes.errors import NotFound
from firesteel.kubernetes.pods.labels import COMPONENT_LABEL, TASK_EXECUTOR
from firesteel.kubernetes.pods.status import condition, problem_of
from firesteel.kubernetes.resources import (
    CONFIG_MAPS,
    DEPLOYMENTS,
    LEASES,
    Object,
    name_of,
    resource_of,
)
from firesteel.kubernetes.security import read_keys

Say = Callable[[str], None]
_MANAGED = "app.kubernetes.io/managed-by"
_SETTLED = 2  # answers in a row that no TaskExecutor is outdated


class ClusterUpdate:
    """An update that is checked, and not applied yet."""

    def __init__(self, cluster: KubernetesCluster, say: Say, unset: Collection[str] = ()) -> None:
        """`cluster` has the options to change, `unset` the keys of those to remove. Reads the
        objects of the cluster, and builds those that replace them. Raises NoKubernetesCluster,
        ConfigurationError or KubernetesError.
        """
        self._cluster = cluster
        self._say = say
        self._unset = unset
        self._patience_s = cluster.conf.get(options.KUBERNETES_START_TIMEOUT)
        self._before: dict[tuple[str, str], Object] = {}  # by kind and name
        cluster.run(self._read)

    async def _read(self, deployed: DeployedCluster, client: KubernetesClient) -> None:
        owner = await deployed.get()
        if (owner["metadata"].get("labels") or {}).get(_MANAGED) == "Helm":
            raise FiresteelError(
                f"the cluster {self._cluster} is managed by Helm: change it with `helm upgrade`"
            )
        deployments = [owner]
        with contextlib.suppress(NotFound):
            second = f"{self._cluster.cluster_id}-resourcemanager"
            deployments.append(await client.get(DEPLOYMENTS, second))
        config_map = await client.get(CONFIG_MAPS, f"{self._cluster.cluster_id}-config")
        try:
            secret = await read_keys(client, self._cluster.conf)
        except NotFound:
            secret = {}
        running = running_cluster(deployments, config_map, secret)
        with tempfile.TemporaryDirectory() as folder:
            given = self._cluster.conf.to_dict()
            conf = running.changed(given, Path(folder), self._unset)
            objects = cluster_objects(
                conf, running.application, task_executors=running.task_executors
            )
        self._after = [objects[0], *owned(objects[1:], owner)]
        for each in self._after:
            with contextlib.suppress(NotFound):
                found = await client.get(resource_of(each), name_of(each))
                self._before[_key(each)] = found
        new = next(each for each in self._after if each["kind"] == CONFIG_MAPS.kind)
        self.changes: Sequence[Change] = changes(config_map, new)
        self.needed = bool(self.changes) or any(
            configuration_of(each) != configuration_of(self._before[_key(each)])
            for each in self._deployments()
        )
        if self.needed and loses_its_store(owner):
            raise ConfigurationError(
                f"the cluster {self._cluster} has its job store in the pod of its only master,"
                " which an update replaces: its jobs would be lost. Stop it and start it again"
                f" with {options.DATABASE_URL.key} and {options.HA_STORAGE_DIR.key}, or with a"
                " volume for the job store"
            )

    def _deployments(self) -> list[Object]:
        return [each for each in self._after if each["kind"] == DEPLOYMENTS.kind]

    def apply(self) -> None:
        """Returns when all pods have the new configuration. Raises FiresteelError for the first one
        that does not become ready, or KubernetesError.
        """
        self._cluster.run(self._apply)
        self._await_task_executors()

    async def _apply(self, deployed: DeployedCluster, client: KubernetesClient) -> None:
        replaced: list[Object] = []
        try:
            for each in self._after:
                if each["kind"] not in (DEPLOYMENTS.kind, LEASES.kind):
                    replaced.append(each)
                    await self._replace(client, each)
            for each in self._deployments():
                replaced.append(each)
                await self._replace(client, each)
                await self._await_masters(deployed, client, each)
        except FiresteelError:
            await self._undo(client, replaced)
            raise

    async def _replace(self, client: KubernetesClient, new: Object) -> None:
        old = self._before.get(_key(new))
        if old is None:
            await client.create(resource_of(new), new)
        else:
            current = await client.get(resource_of(new), name_of(new))
            await client.replace(resource_of(new), replacing(current, new))

    async def _undo(self, client: KubernetesClient, replaced: Sequence[Object]) -> None:
        self._say("The masters get their earlier configuration again.")
        for each in replaced:
            old = self._before.get(_key(each))
            with contextlib.suppress(NotFound):
                if old is None:
                    await client.delete(resource_of(each), name_of(each))
                else:
                    current = await client.get(resource_of(each), name_of(each))
                    await client.replace(resource_of(each), replacing(current, old))

    async def _await_masters(
        self, deployed: DeployedCluster, client: KubernetesClient, deployment: Object
    ) -> None:
        component = deployment["spec"]["template"]["metadata"]["labels"][COMPONENT_LABEL]
        wanted, replicas = configuration_of(deployment), deployment["spec"]["replicas"]
        said: set[str] = set()
        ready, deadline = 0, time.monotonic() + self._patience_s
        while True:
            pods = await deployed.pods(component)
            new = [pod for pod in pods if configuration_of(pod) == wanted]
            now_ready = sum(map(_is_ready, new))
            if now_ready == replicas == len(pods):
                return
            if now_ready > ready:
                ready, deadline = now_ready, time.monotonic() + self._patience_s
            state = await client.get(DEPLOYMENTS, name_of(deployment))
            progress = masters_progress(state, new)
            for line in progress.lines:
                if line not in said:
                    said.add(line)
                    self._say(line)
            if progress.restarts >= CRASHES or time.monotonic() > deadline:
                log = await last_log(client, new) if progress.restarts else ""
                raise self._not_ready(progress.lines, log)
            await asyncio.sleep(POLL_S)

    def _not_ready(self, lines: Sequence[str], log: str) -> FiresteelError:
        reasons = "; ".join(lines) or "no pod was created"
        error = FiresteelError(
            f"the cluster {self._cluster} was not updated, because a new pod of its masters is not"
            f" ready: {reasons}"
        )
        if log:
            error.add_note(f"The last lines of the log of the pod:\n{log}")
        return error

    # ---- TaskExecutors

    def _await_task_executors(self) -> None:
        left, settled = -1, 0
        deadline = time.monotonic() + self._patience_s
        with Client(self._cluster.address, conf=self._cluster.conf) as client:
            while settled < _SETTLED:
                overview = self._overview(client)
                outdated = -1 if overview is None else overview.task_executors_outdated
                settled = settled + 1 if outdated == 0 else 0
                if outdated != left:
                    left, deadline = outdated, time.monotonic() + self._patience_s
                    if left > 0:
                        self._say(f"{left} TaskExecutors have the earlier configuration")
                if time.monotonic() > deadline:
                    raise self._not_replaced(left, overview)
                time.sleep(POLL_S)

    def _overview(self, client: Client) -> ClusterOverview | None:
        """Returns None while no ResourceManager answers."""
        try:
            overview = client.cluster_overview()
        except ClusterUnreachable:
            return None
        return None if overview.resource_manager_problem else overview

    def _not_replaced(self, left: int, overview: ClusterOverview | None) -> FiresteelError:
        """The jobs still run in the earlier pods."""
        if overview is None:
            return FiresteelError(
                f"the masters of the cluster {self._cluster} are updated, but no ResourceManager"
                f" has answered for {self._patience_s:g} s; see `firesteel cluster status`"
            )
        _, pods = self._cluster.state()
        problems = [
            f"pod {name_of(pod)}: {problem}"
            for pod in pods
            if pod["metadata"]["labels"].get(COMPONENT_LABEL) == TASK_EXECUTOR
            and (problem := problem_of(pod.get("status") or {}))
        ]
        problems += [e.slot_problem for e in overview.task_executors if e.slot_problem]
        why = "; ".join(problems) or "their jobs have not left them"
        return FiresteelError(
            f"the masters of the cluster {self._cluster} are updated, but {left} TaskExecutors"
            f" still have the earlier configuration, and none was replaced for"
            f" {self._patience_s:g} s: {why}"
        )


def _key(manifest: Object) -> tuple[str, str]:
    return manifest["kind"], name_of(manifest)


def _is_ready(pod: Object) -> bool:
    return condition(pod.get("status") or {}, "Ready").get("status") == "True"
