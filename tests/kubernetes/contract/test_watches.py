"""Watches: their order, their selectors, bookmarks, and versions that are gone."""

from __future__ import annotations

import asyncio

import pytest

from firesteel.kubernetes.client import KubernetesClient
from firesteel.kubernetes.errors import Gone
from firesteel.kubernetes.reflector.reflector import Reflector
from firesteel.kubernetes.resources import CONFIG_MAPS, Object, name_of
from firesteel.kubernetes.watch import WatchEvent, WatchEventType
from tests.waiting import PATIENCE_S, until


def config_map(name: str, app: str = "x", **data: str) -> Object:
    return {"metadata": {"name": name, "labels": {"app": app}}, "data": data}


async def watched(
    client: KubernetesClient, version: str, *, labels: str = "app", count: int
) -> list[tuple[str, str]]:
    """Returns the first changes after a version."""
    found: list[tuple[str, str]] = []
    async with (
        asyncio.timeout(PATIENCE_S),
        client.watch(CONFIG_MAPS, resource_version=version, timeout_s=60, labels=labels) as events,
    ):
        async for event in events:
            if event.type is not WatchEventType.BOOKMARK:
                found.append((event.type.value, name_of(event.object)))
            if len(found) == count:
                return found
    raise AssertionError(found)


async def test_a_watch_has_all_changes_after_its_version(client: KubernetesClient) -> None:
    await client.create(CONFIG_MAPS, config_map("before"))
    version = (await client.list(CONFIG_MAPS)).resource_version
    await client.create(CONFIG_MAPS, config_map("a"))
    await client.patch(CONFIG_MAPS, "a", {"data": {"x": "1"}})
    await client.delete(CONFIG_MAPS, "a")
    await client.create(CONFIG_MAPS, config_map("b"))
    assert await watched(client, version, count=4) == [
        ("ADDED", "a"),
        ("MODIFIED", "a"),
        ("DELETED", "a"),
        ("ADDED", "b"),
    ]


async def test_versions_of_changes_rise(client: KubernetesClient) -> None:
    version = (await client.list(CONFIG_MAPS)).resource_version
    await client.create(CONFIG_MAPS, config_map("a"))
    last = await client.patch(CONFIG_MAPS, "a", {"data": {"x": "1"}})
    await client.delete(CONFIG_MAPS, "a")
    found: list[WatchEvent] = []
    async with client.watch(CONFIG_MAPS, resource_version=version, timeout_s=60) as events:
        async for event in events:
            found.append(event)
            if event.type is WatchEventType.DELETED:
                break
    versions = [int(e.resource_version) for e in found]
    assert versions == sorted(set(versions))
    assert versions[-1] > int(last["metadata"]["resourceVersion"])


async def test_objects_that_leave_a_selection_are_deleted(client: KubernetesClient) -> None:
    version = (await client.list(CONFIG_MAPS)).resource_version
    await client.create(CONFIG_MAPS, config_map("a", app="y"))
    for app in ("x", "y"):
        await client.patch(CONFIG_MAPS, "a", {"metadata": {"labels": {"app": app}}})
    found = await watched(client, version, labels="app=x", count=2)
    assert found == [("ADDED", "a"), ("DELETED", "a")]


async def test_a_watch_ends_after_its_timeout(client: KubernetesClient) -> None:
    await client.create(CONFIG_MAPS, config_map("a"))
    version = (await client.list(CONFIG_MAPS)).resource_version
    async with client.watch(CONFIG_MAPS, resource_version=version, timeout_s=3) as events:
        async for event in events:  # a real server may send no bookmark in so short a time
            assert event.type is WatchEventType.BOOKMARK
            assert int(event.resource_version) >= int(version)


async def test_a_version_of_the_distant_past_is_gone(
    client: KubernetesClient, request: pytest.FixtureRequest
) -> None:
    await client.create(CONFIG_MAPS, config_map("a"))
    if request.node.callspec.params["server"] == "real":
        pytest.skip("the cache of a young server has all changes")
    request.getfixturevalue("shared_api_server").compact()
    with pytest.raises(Gone):
        await watched(client, "1", count=1)


async def test_a_reflector_follows_the_objects(client: KubernetesClient) -> None:
    await client.create(CONFIG_MAPS, config_map("a", n="1"))
    changes: list[frozenset[str]] = []
    reflector = Reflector(client, CONFIG_MAPS, labels="app", on_change=changes.append)
    running = asyncio.create_task(reflector.run())
    await asyncio.wait_for(reflector.synced(), PATIENCE_S)
    assert set(reflector.snapshot) == {"a"}
    await client.create(CONFIG_MAPS, config_map("b"))
    await client.patch(CONFIG_MAPS, "a", {"data": {"n": "2"}})
    await until(lambda: len(changes) == 3)
    assert changes == [{"a"}, {"b"}, {"a"}]
    assert reflector.snapshot["a"]["data"] == {"n": "2"}
    await client.delete(CONFIG_MAPS, "b")
    await until(lambda: set(reflector.snapshot) == {"a"})
    assert reflector.problem == "" and reflector.age_s() < PATIENCE_S
    reflector.stop()
    await running
