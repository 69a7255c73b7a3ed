"""Pods: their defaults, their status, deletion and eviction; leases and permissions."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from firesteel.kubernetes.access.credentials import FixedCredentials
from firesteel.kubernetes.access.kubeconfig import from_kubeconfig
from firesteel.kubernetes.client import KubernetesClient
from firesteel.kubernetes.errors import Conflict, Forbidden, Invalid, NotFound, Unauthorized
from firesteel.kubernetes.resources import (
    LEASES,
    PODS,
    ROLE_BINDINGS,
    ROLES,
    SERVICE_ACCOUNTS,
    Object,
)
from tests.kubernetes.conftest import Server, pod
from tests.waiting import PATIENCE_S


async def test_a_pod_has_defaults_and_is_pending(client: KubernetesClient) -> None:
    created = await client.create(PODS, pod("a"))
    spec = created["spec"]
    assert (spec["restartPolicy"], spec["terminationGracePeriodSeconds"]) == ("Always", 30)
    assert created["status"]["phase"] == "Pending"


async def test_only_the_status_subresource_changes_the_status(client: KubernetesClient) -> None:
    created = await client.create(PODS, pod("a"))
    running = created | {"status": created["status"] | {"phase": "Running"}}
    assert (await client.replace(PODS, running))["status"]["phase"] == "Pending"
    running["spec"] = running["spec"] | {"restartPolicy": "Never"}
    replaced = await client.replace(PODS, running, subresource="status")
    assert replaced["status"]["phase"] == "Running"
    assert replaced["spec"]["restartPolicy"] == "Always"


async def test_a_pods_spec_is_immutable_except_its_images(client: KubernetesClient) -> None:
    created = await client.create(PODS, pod("a", restartPolicy="Never"))
    container = created["spec"]["containers"][0]
    changed = created | {
        "spec": created["spec"] | {"containers": [container | {"image": "image:2"}]}
    }
    updated = await client.replace(PODS, changed)
    changed = updated | {"spec": updated["spec"] | {"restartPolicy": "Always"}}
    with pytest.raises(Invalid, match="pod updates may not change fields other than"):
        await client.replace(PODS, changed)


async def test_an_unscheduled_pod_is_deleted_immediately(client: KubernetesClient) -> None:
    await client.create(PODS, pod("a"))
    await client.delete(PODS, "a")
    with pytest.raises(NotFound):
        await client.get(PODS, "a")


async def test_a_scheduled_pod_is_deleted_by_its_kubelet(client: KubernetesClient) -> None:
    await client.create(PODS, pod("a", nodeName="node", terminationGracePeriodSeconds=20))
    await client.delete(PODS, "a")
    metadata = (await client.get(PODS, "a"))["metadata"]
    assert metadata["deletionGracePeriodSeconds"] == 20 and metadata["deletionTimestamp"]
    await client.delete(PODS, "a", grace_s=5)
    assert (await client.get(PODS, "a"))["metadata"]["deletionGracePeriodSeconds"] == 5
    await client.delete(PODS, "a", grace_s=0)
    with pytest.raises(NotFound):
        await client.get(PODS, "a")


async def test_an_eviction_deletes_the_pod(client: KubernetesClient) -> None:
    await client.create(PODS, pod("a"))
    eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "a"}}
    await client.create(PODS, eviction, name="a", subresource="eviction")
    with pytest.raises(NotFound):
        await client.get(PODS, "a")


async def test_of_two_holders_of_a_lease_one_fails(client: KubernetesClient) -> None:
    lease = await client.create(
        LEASES,
        {
            "metadata": {"name": "leader"},
            "spec": {
                "holderIdentity": "one",
                "leaseDurationSeconds": 15,
                "renewTime": "2026-01-01T00:00:00.000000Z",
                "leaseTransitions": 0,
            },
        },
    )

    def held_by(holder: str) -> Object:
        return lease | {"spec": lease["spec"] | {"holderIdentity": holder}}

    await client.replace(LEASES, held_by("two"))
    with pytest.raises(Conflict):
        await client.replace(LEASES, held_by("three"))


# ---- permissions


async def service_account(client: KubernetesClient, server: Server, name: str) -> KubernetesClient:
    """Returns a client that acts as a new ServiceAccount."""
    await client.create(SERVICE_ACCOUNTS, {"metadata": {"name": name}})
    request = {
        "apiVersion": "authentication.k8s.io/v1",
        "kind": "TokenRequest",
        "metadata": {"name": name},
        "spec": {"expirationSeconds": 3600},
    }
    answer = await client.create(SERVICE_ACCOUNTS, request, name=name, subresource="token")
    access = from_kubeconfig([server.kubeconfig], namespace=client.namespace)
    token = FixedCredentials(token=answer["status"]["token"])
    return KubernetesClient(replace(access, credentials=token))


async def test_the_printed_role_permits_the_request(
    client: KubernetesClient, server: Server
) -> None:
    async with await service_account(client, server, "worker") as worker:
        with pytest.raises(Forbidden) as caught:
            await worker.list(PODS)
        assert f"system:serviceaccount:{client.namespace}:worker" in str(caught.value)
        assert not (await worker.may("list", PODS)).allowed
        role = yaml.safe_load(str(caught.value).partition("RoleBinding:\n")[2])
        await client.create(ROLES, role)
        await client.create(
            ROLE_BINDINGS,
            {
                "metadata": {"name": "firesteel"},
                "roleRef": {
                    "apiGroup": "rbac.authorization.k8s.io",
                    "kind": "Role",
                    "name": "firesteel",
                },
                "subjects": [
                    {"kind": "ServiceAccount", "name": "worker", "namespace": client.namespace}
                ],
            },
        )
        await until_allowed(worker)
        assert (await worker.list(PODS)).items == []
        assert not (await worker.may("delete", PODS)).allowed
        with pytest.raises(Forbidden):
            await worker.list(PODS, namespace="default")


async def until_allowed(worker: KubernetesClient) -> None:
    """Waits until the API server has noticed the RoleBinding."""
    async with asyncio.timeout(PATIENCE_S):
        while not (await worker.may("list", PODS)).allowed:
            await asyncio.sleep(0.05)


async def test_an_unknown_token_is_unauthorized(server: Server, tmp_path: Path) -> None:
    access = from_kubeconfig([server.kubeconfig])
    unknown = replace(access, credentials=FixedCredentials(token="unknown"))
    async with KubernetesClient(unknown) as client:
        with pytest.raises(Unauthorized):
            await client.list(PODS)
