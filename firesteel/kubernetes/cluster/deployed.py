"""A cluster as the API server has it: creates, reads and deletes its objects."""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass

from firesteel.errors import FiresteelError
from firesteel.kubernetes.client import KubernetesClient, Propagation
from firesteel.kubernetes.cluster.objects import JOB, VERSION, owned
from firesteel.kubernetes.errors import AlreadyExists, KubernetesError, NotFound
from firesteel.kubernetes.pods.labels import CLUSTER_LABEL, selector_of
from firesteel.kubernetes.resources import (
    DEPLOYMENTS,
    EVENTS,
    PODS,
    Object,
    name_of,
    resource_of,
)

OUTCOME = "firesteel.io/outcome"  # an annotation of the Deployment: how the application has ended
LONGEST_ERROR = 16_000  # characters: annotations have up to 256 KiB in all
POLL_S = 0.2
COLLECTED_WITHIN_S = 30.0  # the objects of a cluster that was deleted before


class ClusterTaken(FiresteelError):
    """The id of the cluster is in use."""


class NoKubernetesCluster(FiresteelError):
    """There is no cluster of this id in the namespace."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How an application has ended. `status` is that of its job; empty if there is no job."""

    status: str = ""
    error: str = ""

    @property
    def text(self) -> str:
        return ": ".join(filter(None, (self.status, self.error)))


class DeployedCluster:
    def __init__(self, client: KubernetesClient, cluster_id: str) -> None:
        self._client = client
        self.cluster_id = cluster_id

    def __str__(self) -> str:
        return f"{self.cluster_id} in namespace {self._client.namespace}"

    # ---- creation

    async def create(self, objects: Sequence[Object]) -> Object:
        """Creates all objects of `cluster_objects`; returns the Deployment. After a failure, no
        object is left. Raises ClusterTaken or KubernetesError.
        """
        deployment, *dependents = objects
        try:
            owner = await self._client.create(DEPLOYMENTS, deployment)
        except AlreadyExists:
            raise ClusterTaken(await self._taken_by()) from None
        try:
            for each in owned(dependents, deployment | owner):
                await self._create(each)
        except BaseException:
            await self.delete()
            raise
        return owner

    async def _create(self, manifest: Object) -> None:
        """Waits for the deletion of an object that an earlier cluster of this name has left."""
        resource, name = resource_of(manifest), name_of(manifest)
        until = asyncio.get_running_loop().time() + COLLECTED_WITHIN_S
        while True:
            try:
                await self._client.create(resource, manifest)
                return
            except AlreadyExists:
                with contextlib.suppress(NotFound):
                    found = await self._client.get(resource, name)
                    late = asyncio.get_running_loop().time() > until
                    if late or not self._is_left(found):
                        raise ClusterTaken(
                            f"{resource.kind} {name} exists in namespace {self._client.namespace}"
                            f" and does not belong to a cluster {self.cluster_id} that was deleted;"
                            " choose another kubernetes.cluster-id, or delete it"
                        ) from None
            await asyncio.sleep(POLL_S)

    def _is_left(self, found: Object) -> bool:
        owners = found["metadata"].get("ownerReferences") or ()
        return any((o["kind"], o["name"]) == ("Deployment", self.cluster_id) for o in owners)

    async def _taken_by(self) -> str:
        found = await self.find()
        if found is None:
            return f"the cluster {self} was deleted at the same time; try again"
        metadata = found["metadata"]
        if "deletionTimestamp" in metadata:
            return f"the cluster {self} is being deleted; try again once its pods have ended"
        choose = "choose another kubernetes.cluster-id"
        if CLUSTER_LABEL not in (metadata.get("labels") or {}):
            return (
                f"a Deployment {self} exists that does not belong to Firesteel; {choose}, or delete"
                " it"
            )
        notes = metadata.get("annotations") or {}
        if (outcome := outcome_of(found)) is not None:
            return (
                f"the cluster {self} exists: its application has ended ({outcome.text}), and it is"
                f" about to delete itself; try again then, or {choose}"
            )
        runs = f"of the job {notes[JOB]}" if JOB in notes else "for sessions"
        return (
            f"the cluster {self} exists: a cluster {runs}, created at"
            f" {metadata.get('creationTimestamp')} by Firesteel {notes.get(VERSION, 'unknown')};"
            f" {choose}, or delete it with `firesteel cluster stop -t kubernetes-session -D"
            f" kubernetes.cluster-id={self.cluster_id}`"
        )

    # ---- state

    async def find(self) -> Object | None:
        """Returns its Deployment; None if there is none."""
        try:
            return await self._client.get(DEPLOYMENTS, self.cluster_id)
        except NotFound:
            return None

    async def get(self) -> Object:
        """Returns its Deployment. Raises NoKubernetesCluster."""
        found = await self.find()
        if found is None or CLUSTER_LABEL not in (found["metadata"].get("labels") or {}):
            raise NoKubernetesCluster(
                f"there is no cluster {self}; start one with `firesteel cluster start -t"
                f" kubernetes-session -D kubernetes.cluster-id={self.cluster_id}`"
            )
        return found

    async def pods(self, component: str = "") -> list[Object]:
        labels = selector_of(self.cluster_id, component)
        return list((await self._client.list(PODS, labels=labels)).items)

    async def outcome(self) -> Outcome | None:
        """Returns how its application has ended; None if it has not, or the cluster is gone."""
        return outcome_of(await self.find())

    # ---- end

    async def record(self, outcome: Outcome) -> None:
        """Stores the outcome at the Deployment, and in an Event, which outlives it."""
        stored = Outcome(status=outcome.status, error=outcome.error[-LONGEST_ERROR:])
        annotations = {OUTCOME: json.dumps(asdict(stored))}
        found = await self._client.patch(
            DEPLOYMENTS, self.cluster_id, {"metadata": {"annotations": annotations}}
        )
        with contextlib.suppress(KubernetesError):  # the annotation counts
            await self._client.create(EVENTS, _event(found, outcome))

    async def delete(self) -> None:
        """Deletes the cluster: its objects and pods follow. Does nothing if it is gone."""
        with contextlib.suppress(NotFound):
            await self._client.delete(
                DEPLOYMENTS, self.cluster_id, propagation=Propagation.BACKGROUND
            )

    async def gone(self, on_pods: Callable[[Sequence[Object]], None] = lambda pods: None) -> None:
        """Returns when the Deployment and all pods are gone. `on_pods` sees those that are left."""
        while True:
            left = await self.pods()
            if not left and await self.find() is None:
                return
            on_pods(left)
            await asyncio.sleep(POLL_S)


def earlier_job(cluster_id: str, deployment: Object, *, status: str, end_ms: int) -> str:
    """Returns why an application does not run its job, which the job store has; empty if the job
    has run in this Deployment. Jobs of earlier clusters of this id ended before it was created.
    """
    created = datetime.datetime.fromisoformat(deployment["metadata"]["creationTimestamp"])
    if not end_ms or end_ms >= created.timestamp() * 1000:
        return ""
    return (
        f"the job store has the job of an earlier cluster {cluster_id}, which is {status}, and it"
        " is not run again: choose another kubernetes.cluster-id, or another job store"
    )


def outcome_of(deployment: Object | None) -> Outcome | None:
    annotations = (deployment or {"metadata": {}})["metadata"].get("annotations") or {}
    if OUTCOME not in annotations:
        return None
    try:
        return Outcome(**json.loads(annotations[OUTCOME]))
    except (ValueError, TypeError):  # edited
        return Outcome(error=annotations[OUTCOME])


def _event(deployment: Object, outcome: Outcome) -> Object:
    metadata = deployment["metadata"]
    finished = outcome.status == "FINISHED"
    now = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return {
        "apiVersion": EVENTS.api_version,
        "kind": EVENTS.kind,
        "metadata": {"generateName": f"{metadata['name']}-"},
        "involvedObject": {
            "apiVersion": DEPLOYMENTS.api_version,
            "kind": DEPLOYMENTS.kind,
            "name": metadata["name"],
            "namespace": metadata.get("namespace", ""),
            "uid": metadata["uid"],
        },
        "reason": "JobEnded" if outcome.status else "ApplicationFailed",
        "type": "Normal" if finished else "Warning",
        "message": outcome.text[:1000],
        "source": {"component": "firesteel"},
        "firstTimestamp": now,
        "lastTimestamp": now,
        "count": 1,
    }
