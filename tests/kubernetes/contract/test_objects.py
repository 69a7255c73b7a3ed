"""Objects are created, read, replaced and deleted."""

from __future__ import annotations

import re
from typing import Any

import pytest

from firesteel.kubernetes.client import KubernetesClient
from firesteel.kubernetes.errors import AlreadyExists, Conflict, Invalid, KubernetesError, NotFound
from firesteel.kubernetes.resources import (
    CONFIG_MAPS,
    DEPLOYMENTS,
    EVENTS,
    LEASES,
    PODS,
    SECRETS,
    SERVICES,
    Object,
    Resource,
)
from tests.kubernetes.conftest import pod


def config_map(name: str, **data: str) -> Object:
    return {"metadata": {"name": name, "labels": {"app": "x"}}, "data": data}


async def test_a_created_object_has_the_servers_metadata(client: KubernetesClient) -> None:
    created = await client.create(CONFIG_MAPS, config_map("a", key="value"))
    assert (created["apiVersion"], created["kind"]) == ("v1", "ConfigMap")
    metadata = created["metadata"]
    assert metadata["namespace"] == client.namespace
    assert len(metadata["uid"]) == 36
    assert int(metadata["resourceVersion"]) > 0
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", metadata["creationTimestamp"])
    assert await client.get(CONFIG_MAPS, "a") == created


async def test_a_name_exists_once(client: KubernetesClient) -> None:
    await client.create(CONFIG_MAPS, config_map("a"))
    with pytest.raises(AlreadyExists, match=r'configmaps "a" already exists'):
        await client.create(CONFIG_MAPS, config_map("a"))


async def test_generated_names_differ(client: KubernetesClient) -> None:
    manifest = {"metadata": {"generateName": "a-"}}
    names = {(await client.create(CONFIG_MAPS, manifest))["metadata"]["name"] for _ in range(5)}
    assert len(names) == 5 and all(re.fullmatch("a-[a-z0-9]{5}", name) for name in names)


async def test_a_missing_object_is_not_found(client: KubernetesClient) -> None:
    with pytest.raises(NotFound, match=f"cannot get configmaps/a in namespace {client.namespace}"):
        await client.get(CONFIG_MAPS, "a")
    with pytest.raises(NotFound):
        await client.delete(CONFIG_MAPS, "a")
    with pytest.raises(NotFound):
        await client.patch(CONFIG_MAPS, "a", {"data": {}})
    with pytest.raises(NotFound, match="namespaces"):
        await client.create(CONFIG_MAPS, config_map("a"), namespace="missing")


async def test_a_replacement_needs_the_latest_version(client: KubernetesClient) -> None:
    first = await client.create(CONFIG_MAPS, config_map("a", n="1"))
    second = await client.replace(CONFIG_MAPS, first | {"data": {"n": "2"}})
    assert second["metadata"]["resourceVersion"] != first["metadata"]["resourceVersion"]
    with pytest.raises(Conflict, match="the object has been modified"):
        await client.replace(CONFIG_MAPS, first | {"data": {"n": "3"}})
    assert (await client.get(CONFIG_MAPS, "a"))["data"] == {"n": "2"}


async def test_a_replacement_without_a_change_keeps_the_version(client: KubernetesClient) -> None:
    first = await client.create(CONFIG_MAPS, config_map("a", n="1"))
    second = await client.replace(CONFIG_MAPS, first)
    assert second["metadata"]["resourceVersion"] == first["metadata"]["resourceVersion"]


async def test_a_missing_object_cannot_be_replaced(client: KubernetesClient) -> None:
    created = await client.create(CONFIG_MAPS, config_map("a"))
    await client.delete(CONFIG_MAPS, "a")
    with pytest.raises((NotFound, Conflict)):
        await client.replace(CONFIG_MAPS, created)


async def test_deletion_honours_preconditions(client: KubernetesClient) -> None:
    first = (await client.create(CONFIG_MAPS, config_map("a")))["metadata"]
    with pytest.raises(Conflict, match="[Pp]recondition"):
        await client.delete(CONFIG_MAPS, "a", uid="6ba7b810-9dad-11d1-80b4-00c04fd430c8")
    with pytest.raises(Conflict, match="[Pp]recondition"):
        await client.delete(CONFIG_MAPS, "a", resource_version="1")
    await client.delete(
        CONFIG_MAPS, "a", uid=first["uid"], resource_version=first["resourceVersion"]
    )
    with pytest.raises(NotFound):
        await client.get(CONFIG_MAPS, "a")


async def test_a_dry_run_changes_nothing(client: KubernetesClient) -> None:
    created = await client.create(CONFIG_MAPS, config_map("a"), dry_run=True)
    assert created["metadata"]["name"] == "a"
    with pytest.raises(NotFound):
        await client.get(CONFIG_MAPS, "a")


async def test_finalizers_delay_a_deletion(client: KubernetesClient) -> None:
    manifest = config_map("a")
    manifest["metadata"]["finalizers"] = ["example.com/wait"]
    await client.create(CONFIG_MAPS, manifest)
    await client.delete(CONFIG_MAPS, "a")
    assert "deletionTimestamp" in (await client.get(CONFIG_MAPS, "a"))["metadata"]
    await client.patch(CONFIG_MAPS, "a", {"metadata": {"finalizers": None}})
    with pytest.raises(NotFound):
        await client.get(CONFIG_MAPS, "a")


async def test_lists_have_pages_and_a_version(client: KubernetesClient) -> None:
    for i in range(7):
        await client.create(CONFIG_MAPS, config_map(f"a{i}"))
    listed = await client.list(CONFIG_MAPS, labels="app=x", page=3)
    assert [o["metadata"]["name"] for o in listed.items] == [f"a{i}" for i in range(7)]
    assert all(o["kind"] == "ConfigMap" for o in listed.items)
    assert int(listed.resource_version) > 0


@pytest.mark.parametrize(
    ("selector", "expected"),
    [
        ("", "abc"),
        ("tier=one", "a"),
        ("tier!=one", "bc"),
        ("tier in (one,two)", "ab"),
        ("tier notin (one), app=x", "bc"),
        ("tier", "ab"),
        ("!tier", "c"),
        ("app=y", ""),
    ],
)
async def test_labels_select_objects(
    client: KubernetesClient, selector: str, expected: str
) -> None:
    for name, labels in {"a": {"tier": "one"}, "b": {"tier": "two"}, "c": {}}.items():
        manifest = {"metadata": {"name": name, "labels": {"app": "x"} | labels}}
        await client.create(SECRETS, manifest)
    listed = await client.list(SECRETS, labels=selector)
    assert [o["metadata"]["name"] for o in listed.items] == list(expected)


async def test_fields_select_objects(client: KubernetesClient) -> None:
    for name in "ab":
        await client.create(PODS, pod(name))
    listed = await client.list(PODS, fields="metadata.name=b,status.phase=Pending")
    assert [o["metadata"]["name"] for o in listed.items] == ["b"]
    assert (await client.list(PODS, fields="spec.nodeName!=")).items == []
    with pytest.raises(Invalid, match="field label not supported"):
        await client.list(PODS, fields="spec.unknown=b")


async def test_events_are_found_by_the_object_that_they_are_about(
    client: KubernetesClient,
) -> None:
    about = await client.create(CONFIG_MAPS, config_map("a"))
    for i, uid in enumerate([about["metadata"]["uid"], "other", about["metadata"]["uid"]]):
        event = {
            "metadata": {"name": f"a.{9 - i}"},
            "involvedObject": {
                "kind": "ConfigMap",
                "name": "a",
                "namespace": client.namespace,
                "uid": uid,
            },
            "reason": f"Reason{i}",
            "message": "text",
            "type": "Normal",
            "lastTimestamp": f"2026-01-01T00:00:0{i}Z",
        }
        await client.create(EVENTS, event)
    assert [e["reason"] for e in await client.events_of(about)] == ["Reason0", "Reason2"]


def workload(**spec: Any) -> Object:
    template = {"metadata": {"labels": {"app": "x"}}, "spec": pod("p")["spec"]}
    selector = {"matchLabels": {"app": "x"}}
    return {"metadata": {"name": "d"}, "spec": {"selector": selector, "template": template} | spec}


@pytest.mark.parametrize(
    ("resource", "manifest", "field"),
    [
        (CONFIG_MAPS, {"metadata": {"name": "Upper"}}, "metadata.name"),
        (CONFIG_MAPS, {"metadata": {"name": "a_b"}}, "metadata.name"),
        (
            SERVICES,
            {"metadata": {"name": "a.b"}, "spec": {"ports": [{"port": 1}]}},
            "metadata.name",
        ),
        (
            CONFIG_MAPS,
            {"metadata": {"name": "a", "labels": {"x": "y z"}}},
            "metadata.labels",
        ),
        (PODS, {"metadata": {"name": "a"}, "spec": {"containers": []}}, "spec.containers"),
        (PODS, pod("a", restartPolicy="Sometimes"), "spec.restartPolicy"),
        (
            PODS,
            {"metadata": {"name": "a"}, "spec": {"containers": [{"name": "c"}]}},
            "spec.containers[0].image",
        ),
        (
            DEPLOYMENTS,
            workload(selector={"matchLabels": {"a": "b"}}),
            "spec.template.metadata.labels",
        ),
        (DEPLOYMENTS, workload(replicas=-1), "spec.replicas"),
        (
            LEASES,
            {"metadata": {"name": "a"}, "spec": {"leaseDurationSeconds": 0}},
            "spec.leaseDurationSeconds",
        ),
        (SERVICES, {"metadata": {"name": "a"}, "spec": {}}, "spec.ports"),
    ],
)
async def test_invalid_objects_are_refused_by_field(
    client: KubernetesClient, resource: Resource, manifest: Object, field: str
) -> None:
    with pytest.raises(Invalid) as caught:
        await client.create(resource, manifest)
    assert field in caught.value.fields


async def test_selectors_and_immutable_data_do_not_change(client: KubernetesClient) -> None:
    await client.create(DEPLOYMENTS, workload())
    changes: Object = {"spec": {"selector": {"matchLabels": {"app": "x", "more": "y"}}}}
    changes["spec"]["template"] = {"metadata": {"labels": {"more": "y"}}}
    with pytest.raises(Invalid) as caught:
        await client.patch(DEPLOYMENTS, "d", changes)
    assert "spec.selector" in caught.value.fields
    await client.create(CONFIG_MAPS, config_map("a", n="1") | {"immutable": True})
    with pytest.raises(Invalid, match="immutable"):
        await client.patch(CONFIG_MAPS, "a", {"data": {"n": "2"}})


async def test_only_a_changed_spec_raises_the_generation(client: KubernetesClient) -> None:
    first = await client.create(DEPLOYMENTS, workload())
    assert first["metadata"]["generation"] == 1
    labelled = await client.patch(DEPLOYMENTS, "d", {"metadata": {"labels": {"a": "b"}}})
    assert labelled["metadata"]["generation"] == 1
    scaled = await client.patch(DEPLOYMENTS, "d", {"spec": {"replicas": 3}})
    assert scaled["metadata"]["generation"] == 2


async def test_text_in_secrets_is_encoded(client: KubernetesClient) -> None:
    manifest = {"metadata": {"name": "a"}, "stringData": {"key": "value"}}
    created = await client.create(SECRETS, manifest)
    assert (created["data"], created["type"]) == ({"key": "dmFsdWU="}, "Opaque")
    assert "stringData" not in created


async def test_unknown_paths_are_not_found(client: KubernetesClient) -> None:
    unknown = Resource(kind="Unknown", plural="unknowns")
    with pytest.raises(NotFound, match="cannot list unknowns"):
        await client.list(unknown)


async def test_the_server_has_a_version(client: KubernetesClient) -> None:
    version = await client.version()
    assert version.git_version.startswith("v")
    assert (version.major, version.minor) >= (1, 33)


async def test_an_object_of_another_type_is_refused(client: KubernetesClient) -> None:
    with pytest.raises(KubernetesError):
        await client.create(CONFIG_MAPS, {"kind": "Pod", "apiVersion": "v1"} | config_map("a"))
