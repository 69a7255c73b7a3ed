"""Garbage collection, Deployments, scheduling, quotas, budgets and namespaces."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from firesteel.kubernetes.access.kubeconfig import from_kubeconfig
from firesteel.kubernetes.client import KubernetesClient, Propagation
from firesteel.kubernetes.errors import Forbidden, NotFound, QuotaExceeded, TooManyRequests
from firesteel.kubernetes.resources import (
    CONFIG_MAPS,
    DEPLOYMENTS,
    NAMESPACES,
    NODES,
    POD_DISRUPTION_BUDGETS,
    PODS,
    REPLICA_SETS,
    RESOURCE_QUOTAS,
    Object,
    Resource,
)
from tests.kubernetes.api_server import ApiServer
from tests.kubernetes.conftest import pod
from tests.kubernetes.kinds import BY_NAME
from tests.kubernetes.registry import Registry
from tests.waiting import until


@pytest.fixture
async def client(api_server: ApiServer) -> AsyncIterator[KubernetesClient]:
    async with KubernetesClient(from_kubeconfig([api_server.kubeconfig])) as client:
        yield client


def deployment(name: str = "d", **spec: Any) -> Object:
    template = {"metadata": {"labels": {"app": name}}, "spec": pod("p")["spec"]}
    selector = {"matchLabels": {"app": name}}
    return {"metadata": {"name": name}, "spec": {"selector": selector, "template": template} | spec}


def owned_by(owner: Object, name: str) -> Object:
    reference = {
        "apiVersion": owner["apiVersion"],
        "kind": owner["kind"],
        "name": owner["metadata"]["name"],
        "uid": owner["metadata"]["uid"],
        "blockOwnerDeletion": True,
    }
    return {"metadata": {"name": name, "ownerReferences": [reference]}}


def ready(server: ApiServer, *names: str) -> None:
    """Reports pods as running and ready, as a kubelet does; without names, all pods."""

    def act(registry: Registry) -> None:
        for each in registry.store.all("Pod"):
            if not names or each["metadata"]["name"] in names:
                condition = {"type": "Ready", "status": "True"}
                status = each["status"] | {"phase": "Running", "conditions": [condition]}
                registry.set_status(BY_NAME["Pod"], each, status)

    server.act(act)


async def names(client: KubernetesClient, resource: Resource) -> list[str]:
    return [o["metadata"]["name"] for o in (await client.list(resource)).items]


async def gone(client: KubernetesClient, resource: Resource, name: str) -> None:
    async def is_gone() -> bool:
        try:
            await client.get(resource, name)
        except NotFound:
            return True
        return False

    for _ in range(500):
        if await is_gone():
            return
    raise AssertionError(f"{name} is still there")


async def test_owned_objects_are_collected_after_their_owner(client: KubernetesClient) -> None:
    owner = await client.create(CONFIG_MAPS, {"metadata": {"name": "owner"}})
    await client.create(CONFIG_MAPS, owned_by(owner, "owned"))
    await client.create(CONFIG_MAPS, {"metadata": {"name": "free"}})
    await client.delete(CONFIG_MAPS, "owner")
    await gone(client, CONFIG_MAPS, "owned")
    assert await names(client, CONFIG_MAPS) == ["free"]


async def test_an_object_of_an_unknown_owner_is_collected(client: KubernetesClient) -> None:
    owner = await client.create(CONFIG_MAPS, {"metadata": {"name": "owner"}})
    await client.delete(CONFIG_MAPS, "owner")
    await client.create(CONFIG_MAPS, owned_by(owner, "late"))
    await gone(client, CONFIG_MAPS, "late")


async def test_a_foreground_deletion_waits_for_owned_pods(
    api_server: ApiServer, client: KubernetesClient
) -> None:
    api_server.add_node("n")
    owner = await client.create(CONFIG_MAPS, {"metadata": {"name": "owner"}})
    await client.create(PODS, pod("p") | owned_by(owner, "p"))
    await until(lambda: api_server.objects("Pod")[0]["spec"].get("nodeName"), "scheduled")
    await client.delete(CONFIG_MAPS, "owner", propagation=Propagation.FOREGROUND)
    await until(lambda: "deletionTimestamp" in api_server.objects("Pod")[0]["metadata"], "deleted")
    finalizers = (await client.get(CONFIG_MAPS, "owner"))["metadata"]["finalizers"]
    assert finalizers == ["foregroundDeletion"]
    await client.delete(PODS, "p", grace_s=0)
    await gone(client, CONFIG_MAPS, "owner")


async def test_orphans_stay(client: KubernetesClient) -> None:
    owner = await client.create(CONFIG_MAPS, {"metadata": {"name": "owner"}})
    await client.create(CONFIG_MAPS, owned_by(owner, "owned"))
    await client.delete(CONFIG_MAPS, "owner", propagation=Propagation.ORPHAN)
    await gone(client, CONFIG_MAPS, "owner")
    assert "ownerReferences" not in (await client.get(CONFIG_MAPS, "owned"))["metadata"]


async def test_a_deployment_replaces_lost_pods(
    api_server: ApiServer, client: KubernetesClient
) -> None:
    api_server.add_node("n")
    await client.create(DEPLOYMENTS, deployment(replicas=2))
    await until(lambda: len(api_server.objects("Pod")) == 2, "two pods")
    ready(api_server)
    await until(
        lambda: api_server.objects("Deployment")[0]["status"].get("readyReplicas") == 2, "ready"
    )
    first = api_server.objects("Pod")[0]["metadata"]["name"]
    await client.delete(PODS, first, grace_s=0)
    await until(lambda: len(api_server.objects("Pod")) == 2, "two pods again")
    assert first not in await names(client, PODS)
    (replica_set,) = await names(client, REPLICA_SETS)
    await client.delete(DEPLOYMENTS, "d")
    await gone(client, REPLICA_SETS, replica_set)


async def test_recreate_ends_all_pods_before_it_starts_new_ones(
    api_server: ApiServer, client: KubernetesClient
) -> None:
    api_server.add_node("n")
    await client.create(DEPLOYMENTS, deployment(strategy={"type": "Recreate"}))
    await until(lambda: api_server.objects("Pod") and _scheduled(api_server), "scheduled")
    old = api_server.objects("Pod")[0]["metadata"]["name"]
    change = {"spec": {"template": {"metadata": {"annotations": {"new": "1"}}}}}
    await client.patch(DEPLOYMENTS, "d", change)
    await until(lambda: "deletionTimestamp" in api_server.objects("Pod")[0]["metadata"], "deleted")
    assert await names(client, PODS) == [old]
    await client.delete(PODS, old, grace_s=0)
    await until(lambda: api_server.objects("Pod"), "a new pod")
    assert api_server.objects("Pod")[0]["metadata"]["annotations"] == {"new": "1"}


async def test_a_rolling_update_keeps_the_old_pod_until_the_new_one_is_ready(
    api_server: ApiServer, client: KubernetesClient
) -> None:
    await client.create(DEPLOYMENTS, deployment())
    await until(lambda: api_server.objects("Pod"), "a pod")
    old = api_server.objects("Pod")[0]["metadata"]["name"]
    ready(api_server)
    change = {"spec": {"template": {"metadata": {"annotations": {"new": "1"}}}}}
    await client.patch(DEPLOYMENTS, "d", change)
    await until(lambda: len(api_server.objects("Pod")) == 2, "old and new")
    ready(api_server)
    await until(lambda: old not in _names(api_server, "Pod"), "only the new one")


def _names(server: ApiServer, kind: str) -> list[str]:
    return [o["metadata"]["name"] for o in server.objects(kind)]


def _scheduled(server: ApiServer) -> bool:
    return all(p["spec"].get("nodeName") for p in server.objects("Pod"))


def limited(name: str, memory: str) -> Object:
    manifest = pod(name)
    manifest["spec"]["containers"][0]["resources"] = {"limits": {"memory": memory}}
    return manifest


async def test_a_pod_without_room_is_unschedulable_until_there_is_a_node(
    api_server: ApiServer, client: KubernetesClient
) -> None:
    api_server.add_node("small", memory="1Gi")
    created = await client.create(PODS, limited("p", "2Gi"))
    await until(lambda: api_server.objects("Event"), "an Event")
    (event,) = await client.events_of(created)
    assert event["reason"] == "FailedScheduling"
    assert event["message"] == "0/1 nodes are available: 1 Insufficient memory."
    (condition,) = (await client.get(PODS, "p"))["status"]["conditions"]
    assert (condition["type"], condition["reason"]) == ("PodScheduled", "Unschedulable")
    api_server.add_node("large", memory="4Gi")
    await until(lambda: _scheduled(api_server), "scheduled")


async def test_a_cordoned_node_gets_no_pods(
    api_server: ApiServer, client: KubernetesClient
) -> None:
    for node in ("a", "b"):
        api_server.add_node(node)
    await client.patch(NODES, "a", {"spec": {"unschedulable": True}})
    for name in ("p", "q"):
        await client.create(PODS, pod(name))
    await until(lambda: _scheduled(api_server), "scheduled")
    assert {p["spec"]["nodeName"] for p in api_server.objects("Pod")} == {"b"}


async def test_a_quota_limits_pods_and_memory(client: KubernetesClient) -> None:
    hard = {"pods": "2", "limits.memory": "3Gi"}
    await client.create(RESOURCE_QUOTAS, {"metadata": {"name": "q"}, "spec": {"hard": hard}})
    await client.create(PODS, limited("a", "2Gi"))
    with pytest.raises(QuotaExceeded, match=r"exceeded quota: q, requested: limits.memory"):
        await client.create(PODS, limited("b", "2Gi"))
    await client.create(PODS, limited("b", "1Gi"))
    with pytest.raises(QuotaExceeded, match="limited: pods=2"):
        await client.create(PODS, pod("c"))
    await client.delete(PODS, "a")
    await client.create(PODS, pod("c"))


async def test_a_budget_refuses_evictions(api_server: ApiServer, client: KubernetesClient) -> None:
    spec = {"minAvailable": 1, "selector": {"matchLabels": {"app": "x"}}}
    await client.create(POD_DISRUPTION_BUDGETS, {"metadata": {"name": "b"}, "spec": spec})
    for name in ("p", "q"):
        manifest = pod(name)
        manifest["metadata"]["labels"] = {"app": "x"}
        await client.create(PODS, manifest)
    ready(api_server)
    await until(lambda: _allowed(api_server) == 1, "one disruption is allowed")
    await client.create(PODS, {"metadata": {"name": "p"}}, name="p", subresource="eviction")
    await until(lambda: _allowed(api_server) == 0, "no disruption is allowed")
    with pytest.raises(TooManyRequests, match="disruption budget"):
        await client.create(
            PODS, {"metadata": {"name": "q"}}, name="q", subresource="eviction", within_s=0
        )


def _allowed(server: ApiServer) -> int:
    (budget,) = server.objects("PodDisruptionBudget")
    allowed: int = (budget.get("status") or {}).get("disruptionsAllowed", -1)
    return allowed


async def test_a_namespace_ends_with_its_objects(
    api_server: ApiServer, client: KubernetesClient
) -> None:
    await client.create(NAMESPACES, {"metadata": {"name": "n"}})
    manifest = {"metadata": {"name": "a", "finalizers": ["example.com/wait"]}}
    await client.create(CONFIG_MAPS, manifest, namespace="n")
    await client.delete(NAMESPACES, "n")
    with pytest.raises(Forbidden, match="because it is being terminated"):
        await client.create(CONFIG_MAPS, {"metadata": {"name": "b"}}, namespace="n")
    await client.patch(CONFIG_MAPS, "a", {"metadata": {"finalizers": None}}, namespace="n")
    await gone(client, NAMESPACES, "n")
    assert api_server.objects("ConfigMap", "n") == []
