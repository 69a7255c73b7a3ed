"""Merge patches, strategic merge patches and apply."""

from __future__ import annotations

from typing import Any

import pytest

from firesteel.kubernetes.client import KubernetesClient, Patch
from firesteel.kubernetes.errors import Conflict
from firesteel.kubernetes.resources import CONFIG_MAPS, DEPLOYMENTS, SERVICES, Object


def deployment(*environment: tuple[str, str], **more: Any) -> Object:
    variables = [{"name": name, "value": value} for name, value in environment]
    container = {"name": "main", "image": "image:1", "env": variables} | more
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "d"},
        "spec": {
            "selector": {"matchLabels": {"app": "x"}},
            "template": {
                "metadata": {"labels": {"app": "x"}},
                "spec": {"containers": [container]},
            },
        },
    }


def containers(found: Object) -> dict[str, Object]:
    return {c["name"]: c for c in found["spec"]["template"]["spec"]["containers"]}


def environment(found: Object) -> dict[str, str]:
    return {e["name"]: e["value"] for e in containers(found)["main"].get("env") or ()}


def pod_spec(**spec: Any) -> Object:
    return {"spec": {"template": {"spec": spec}}}


async def test_a_merge_patch_merges_objects_and_removes_nulls(client: KubernetesClient) -> None:
    await client.create(CONFIG_MAPS, {"metadata": {"name": "a"}, "data": {"x": "1", "y": "2"}})
    patched = await client.patch(CONFIG_MAPS, "a", {"data": {"x": "3", "y": None, "z": "4"}})
    assert patched["data"] == {"x": "3", "z": "4"}


async def test_a_merge_patch_replaces_lists(client: KubernetesClient) -> None:
    await client.create(DEPLOYMENTS, deployment(("A", "1"), ("B", "2")))
    changes = pod_spec(containers=[{"name": "other", "image": "image:2"}])
    assert set(containers(await client.patch(DEPLOYMENTS, "d", changes))) == {"other"}


async def test_a_patch_may_require_a_version(client: KubernetesClient) -> None:
    first = await client.create(CONFIG_MAPS, {"metadata": {"name": "a"}, "data": {"x": "1"}})
    version = {"resourceVersion": first["metadata"]["resourceVersion"]}
    await client.patch(CONFIG_MAPS, "a", {"metadata": version, "data": {"x": "2"}})
    with pytest.raises(Conflict):
        await client.patch(CONFIG_MAPS, "a", {"metadata": version, "data": {"x": "3"}})


async def test_a_strategic_patch_merges_lists_by_their_keys(client: KubernetesClient) -> None:
    await client.create(DEPLOYMENTS, deployment(("A", "1"), ("B", "2")))
    changes = pod_spec(
        containers=[
            {
                "name": "main",
                "env": [{"name": "B", "value": "3"}, {"name": "C", "value": "4"}],
                "ports": [{"containerPort": 8081}],
            },
            {"name": "side", "image": "image:2"},
        ]
    )
    patched = await client.patch(DEPLOYMENTS, "d", changes, Patch.STRATEGIC)
    assert environment(patched) == {"A": "1", "B": "3", "C": "4"}
    assert containers(patched)["main"]["image"] == "image:1"
    assert containers(patched)["main"]["ports"] == [{"containerPort": 8081, "protocol": "TCP"}]
    assert set(containers(patched)) == {"main", "side"}


async def test_a_strategic_patch_deletes_and_replaces(client: KubernetesClient) -> None:
    await client.create(DEPLOYMENTS, deployment(("A", "1"), ("B", "2")))
    gone = {"name": "main", "env": [{"name": "A", "$patch": "delete"}]}
    patched = await client.patch(DEPLOYMENTS, "d", pod_spec(containers=[gone]), Patch.STRATEGIC)
    assert environment(patched) == {"B": "2"}
    replaced = {"name": "main", "env": [{"$patch": "replace"}, {"name": "Z", "value": "9"}]}
    patched = await client.patch(DEPLOYMENTS, "d", pod_spec(containers=[replaced]), Patch.STRATEGIC)
    assert environment(patched) == {"Z": "9"}


async def test_ports_of_services_merge_by_number(client: KubernetesClient) -> None:
    ports = [{"name": "rest", "port": 8081}, {"name": "rpc", "port": 6123}]
    await client.create(
        SERVICES, {"metadata": {"name": "s"}, "spec": {"clusterIP": "None", "ports": ports}}
    )
    changes = {"spec": {"ports": [{"port": 6123, "name": "rpc2"}]}}
    patched = await client.patch(SERVICES, "s", changes, Patch.STRATEGIC)
    named = {p["port"]: p["name"] for p in patched["spec"]["ports"]}
    assert named == {8081: "rest", 6123: "rpc2"}


async def test_apply_creates_and_removes_what_it_no_longer_has(client: KubernetesClient) -> None:
    created = await client.apply(DEPLOYMENTS, deployment(("A", "1"), ("B", "2")))
    assert environment(created) == {"A": "1", "B": "2"}
    applied = await client.apply(DEPLOYMENTS, deployment(("A", "5")))
    assert environment(applied) == {"A": "5"}
    again = await client.apply(DEPLOYMENTS, deployment(("A", "5")))
    assert again["metadata"]["resourceVersion"] == applied["metadata"]["resourceVersion"]


async def test_apply_keeps_the_fields_of_others(client: KubernetesClient) -> None:
    await client.apply(DEPLOYMENTS, deployment(("A", "1")))
    await client.patch(DEPLOYMENTS, "d", {"spec": {"replicas": 4}})
    side = pod_spec(containers=[{"name": "side", "image": "image:2"}])
    await client.patch(DEPLOYMENTS, "d", side, Patch.STRATEGIC)
    applied = await client.apply(DEPLOYMENTS, deployment(("A", "2")))
    assert applied["spec"]["replicas"] == 4
    assert set(containers(applied)) == {"main", "side"}
    assert environment(applied) == {"A": "2"}


async def test_apply_conflicts_with_another_manager_unless_forced(
    client: KubernetesClient,
) -> None:
    manifest = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}}
    await client.apply(CONFIG_MAPS, manifest | {"data": {"x": "1", "y": "1"}}, manager="one")
    await client.apply(CONFIG_MAPS, manifest | {"data": {"x": "1"}}, manager="two")  # equal: shared
    with pytest.raises(Conflict, match=r'conflict with "one".*\.data\.y'):
        await client.apply(CONFIG_MAPS, manifest | {"data": {"y": "2"}}, manager="two")
    forced = await client.apply(
        CONFIG_MAPS, manifest | {"data": {"y": "2"}}, manager="two", force=True
    )
    assert forced["data"] == {"x": "1", "y": "2"}
    with pytest.raises(Conflict, match='1 conflict: conflict with "two"'):
        await client.apply(CONFIG_MAPS, manifest | {"data": {"y": "3"}}, manager="one")
    both = r'2 conflicts: conflicts with "one":\n- \.data\.x\nconflicts with "two":\n- \.data\.y'
    with pytest.raises(Conflict, match=both):
        await client.apply(CONFIG_MAPS, manifest | {"data": {"x": "3", "y": "3"}}, manager="three")


async def test_apply_releases_shared_fields_without_removing_them(
    client: KubernetesClient,
) -> None:
    manifest = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}}
    await client.apply(CONFIG_MAPS, manifest | {"data": {"x": "1"}}, manager="one")
    await client.apply(CONFIG_MAPS, manifest | {"data": {"x": "1"}}, manager="two")
    applied = await client.apply(CONFIG_MAPS, manifest, manager="one")
    assert applied["data"] == {"x": "1"}
    applied = await client.apply(CONFIG_MAPS, manifest, manager="two")
    assert not applied.get("data")
