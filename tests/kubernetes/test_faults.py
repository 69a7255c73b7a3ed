"""Clients and reflectors of an API server that is slow, away, busy, silent or forgetful."""

from __future__ import annotations

import asyncio
import gc
import os
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from firesteel.kubernetes.access.credentials import Credential
from firesteel.kubernetes.access.kubeconfig import from_kubeconfig
from firesteel.kubernetes.access.tls import Tls
from firesteel.kubernetes.client import KubernetesClient
from firesteel.kubernetes.errors import (
    Forbidden,
    KubernetesConfigurationError,
    KubernetesError,
    TooManyRequests,
    Unavailable,
)
from firesteel.kubernetes.reflector.core import ReflectorSettings
from firesteel.kubernetes.reflector.reflector import Reflector, ReflectorStale
from firesteel.kubernetes.resources import CONFIG_MAPS, PODS, Object
from tests.kubernetes.access import Certificates
from tests.kubernetes.api_server import ApiServer
from tests.kubernetes.connect_proxy import ConnectProxy
from tests.kubernetes.faults import Fault
from tests.kubernetes.kinds import BY_NAME
from tests.waiting import PATIENCE_S, until

# asyncio leaves a transport open if a timeout ends its TLS handshake.
pytestmark = pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")


@pytest.fixture(autouse=True)
def collected() -> Iterator[None]:
    """Collects such a transport before the next test."""
    yield
    gc.collect()


@pytest.fixture
async def client(api_server: ApiServer) -> AsyncIterator[KubernetesClient]:
    access = from_kubeconfig([api_server.kubeconfig])
    async with KubernetesClient(access, attempt_timeout_s=30, total_timeout_s=60) as client:
        yield client


def config_map(name: str, **data: str) -> Object:
    return {"metadata": {"name": name}, "data": data}


# ---- requests


async def test_a_request_to_a_busy_server_waits_as_it_says(
    api_server: ApiServer, client: KubernetesClient
) -> None:
    api_server.fail(Fault(verb="create", code=429, retry_after_s=1))
    started = time.monotonic()
    await client.create(CONFIG_MAPS, config_map("a"))
    assert time.monotonic() - started >= 1.0
    assert api_server.requests == ["create configmaps"] * 2


async def test_a_busy_server_is_an_error_in_the_end(
    api_server: ApiServer, client: KubernetesClient
) -> None:
    api_server.fail(Fault(code=429, retry_after_s=60))
    with pytest.raises(TooManyRequests) as caught:
        await client.get(CONFIG_MAPS, "a", within_s=59)
    assert caught.value.retry_after_s == 60


@pytest.mark.parametrize("code", [500, 503, 504])
async def test_reads_are_repeated_after_a_failure(
    api_server: ApiServer, client: KubernetesClient, code: int
) -> None:
    api_server.fail(Fault(verb="list", code=code, times=2))
    assert (await client.list(PODS)).items == []


async def test_a_create_of_unknown_outcome_is_not_repeated(
    api_server: ApiServer, client: KubernetesClient
) -> None:
    api_server.fail(Fault(verb="create", lose_answer=True))
    with pytest.raises(Unavailable) as caught:
        await client.create(CONFIG_MAPS, config_map("a"))
    assert caught.value.executed is None
    assert [o["metadata"]["name"] for o in api_server.objects("ConfigMap")] == ["a"]


async def test_a_lost_answer_to_a_patch_is_repeated(
    api_server: ApiServer, client: KubernetesClient
) -> None:
    await client.create(CONFIG_MAPS, config_map("a"))
    api_server.fail(Fault(verb="patch", lose_answer=True))
    assert (await client.patch(CONFIG_MAPS, "a", {"data": {"x": "1"}}))["data"] == {"x": "1"}


async def test_a_server_that_does_not_answer_is_unavailable(api_server: ApiServer) -> None:
    api_server.fail(Fault(hang=True))
    access = from_kubeconfig([api_server.kubeconfig])
    async with KubernetesClient(access, attempt_timeout_s=1) as client:
        with pytest.raises(Unavailable, match="has not answered within 1 s"):
            await client.get(CONFIG_MAPS, "a", within_s=0)


async def test_a_request_waits_for_a_server_that_is_away(
    api_server: ApiServer, client: KubernetesClient
) -> None:
    await client.create(CONFIG_MAPS, config_map("a"))
    api_server.go_away()
    with pytest.raises(Unavailable, match="no connection to https://127"):
        await client.get(CONFIG_MAPS, "a", within_s=0)
    creating = asyncio.create_task(client.create(CONFIG_MAPS, config_map("c")))
    await asyncio.sleep(0)
    api_server.come_back()
    assert (await creating)["metadata"]["name"] == "c"


async def test_a_list_whose_pages_expire_is_read_as_a_whole(
    api_server: ApiServer, client: KubernetesClient
) -> None:
    for i in range(5):
        await client.create(CONFIG_MAPS, config_map(f"a{i}"))
    api_server.fail(Fault(verb="list", after=1, code=410))
    listed = await client.list(CONFIG_MAPS, page=2)
    assert [o["metadata"]["name"] for o in listed.items] == [f"a{i}" for i in range(5)]
    assert api_server.requests.count("list configmaps") == 3


# ---- identities


class RenewedToken:
    """The first token is refused."""

    def __init__(self, token: str) -> None:
        self.tokens = ["expired", token]

    async def current(self, refused: Credential | None = None) -> Credential:
        if refused is not None:
            self.tokens.pop(0)
        return Credential(headers={"Authorization": f"Bearer {self.tokens[0]}"})


async def test_a_refused_token_is_renewed_once(api_server: ApiServer) -> None:
    credentials = RenewedToken(api_server.admin_token)
    access = replace(from_kubeconfig([api_server.kubeconfig]), credentials=credentials)
    async with KubernetesClient(access) as client:
        assert (await client.list(PODS)).items == []


async def test_a_certificate_proves_an_identity(api_server: ApiServer, tmp_path: Path) -> None:
    certificate, key = api_server.certificates.issue("alice")
    content = yaml.safe_load(api_server.kubeconfig.read_text())
    user = {"client-certificate": str(certificate), "client-key": str(key)}
    content["users"][0]["user"] = user
    path = tmp_path / "config"
    path.write_text(yaml.safe_dump(content))
    api_server.deny("list", "pods", user="alice")
    async with KubernetesClient(from_kubeconfig([path])) as client:
        assert (await client.list(CONFIG_MAPS)).items == []
        with pytest.raises(Forbidden, match='User "alice" cannot list resource "pods"'):
            await client.list(PODS)


async def test_a_server_of_another_authority_is_not_trusted(
    api_server: ApiServer, tmp_path: Path
) -> None:
    access = from_kubeconfig([api_server.kubeconfig])
    authority = access.tls.authority
    assert authority is not None and authority.path is not None
    authority.path.write_bytes(Certificates(tmp_path).authority.read_bytes())
    async with KubernetesClient(access) as client:
        with pytest.raises(KubernetesError, match="cannot be verified.*context tests in"):
            await client.list(PODS)
    async with KubernetesClient(replace(access, tls=Tls(insecure=True))) as client:
        await client.list(PODS)
    authority.path.write_text("nothing")
    async with KubernetesClient(access) as client:
        with pytest.raises(KubernetesConfigurationError, match="no certificates in PEM format"):
            await client.list(PODS)


async def test_a_proxy_opens_a_tunnel(api_server: ApiServer) -> None:
    access = from_kubeconfig([api_server.kubeconfig])
    proxy = ConnectProxy("me", "secret")
    async with proxy.serve() as port:
        through = replace(access, proxy=f"http://me:secret@127.0.0.1:{port}")
        async with KubernetesClient(through) as client:
            assert (await client.list(PODS)).items == []
        assert proxy.targets == [api_server.url.removeprefix("https://")]
        unknown = replace(access, proxy=f"http://me:wrong@127.0.0.1:{port}")
        async with KubernetesClient(unknown, attempt_timeout_s=30) as client:
            with pytest.raises(Unavailable, match="407") as caught:
                await client.get(PODS, "a", within_s=0)
            assert "wrong" not in str(caught.value)


# ---- reflectors

PATIENT = ReflectorSettings(first_pause_s=0.05, longest_pause_s=0.2)


@asynccontextmanager
async def following(
    client: KubernetesClient, settings: ReflectorSettings = PATIENT
) -> AsyncIterator[Reflector]:
    reflector = Reflector(client, CONFIG_MAPS, settings=settings)
    running = asyncio.create_task(reflector.run())
    try:
        await asyncio.wait_for(reflector.synced(), PATIENCE_S)
        yield reflector
    finally:
        reflector.stop()
        await running


async def created(client: KubernetesClient, reflector: Reflector, name: str) -> None:
    """Creates an object, and waits until the reflector has it."""
    await client.create(CONFIG_MAPS, config_map(name))
    await until(lambda: name in reflector.snapshot, name)


async def test_a_dropped_watch_resumes(api_server: ApiServer, client: KubernetesClient) -> None:
    async with following(client) as reflector:
        await created(client, reflector, "a")
        api_server.drop_watches()
        await created(client, reflector, "b")
        assert reflector.core.lists == 1


async def test_a_watch_that_ends_by_its_timeout_resumes(
    api_server: ApiServer, client: KubernetesClient
) -> None:
    async with following(client, replace(PATIENT, watch_timeout_s=1)) as reflector:
        await until(lambda: api_server.requests.count("watch configmaps") >= 3, "third watch")
        await created(client, reflector, "a")
        assert reflector.core.lists == 1


async def test_a_compacted_version_is_listed_again(
    api_server: ApiServer, client: KubernetesClient
) -> None:
    async with following(client) as reflector:
        await created(client, reflector, "a")
        api_server.go_away()
        await until(lambda: reflector.problem, "the reflector has noticed")
        api_server.act(lambda registry: registry.delete(BY_NAME["ConfigMap"], "default", "a"))
        api_server.compact()
        api_server.come_back()
        await until(lambda: "a" not in reflector.snapshot, "the deletion is known")
        assert reflector.core.lists == 2


async def test_a_silent_watch_is_noticed(api_server: ApiServer, client: KubernetesClient) -> None:
    settings = replace(PATIENT, watch_timeout_s=1, silence_s=0.5)
    async with following(client, settings) as reflector:
        api_server.faults.silent = True
        await created(client, reflector, "a")
        assert reflector.core.lists >= 2


async def test_a_server_that_stays_away_makes_the_reflector_fail(
    api_server: ApiServer, client: KubernetesClient
) -> None:
    api_server.go_away()
    reflector = Reflector(client, CONFIG_MAPS, settings=replace(PATIENT, stale_after_s=1))
    reason = "the configmaps of namespace default are not known to be current .*: no connection to"
    with pytest.raises(ReflectorStale, match=reason):
        await asyncio.wait_for(reflector.run(), PATIENCE_S)


async def test_a_missing_permission_makes_the_reflector_fail_with_its_role(
    api_server: ApiServer, client: KubernetesClient
) -> None:
    api_server.deny("watch", "configmaps")
    reflector = Reflector(client, CONFIG_MAPS, settings=replace(PATIENT, stale_after_s=5))
    with pytest.raises(ReflectorStale, match=r'(?s)User .* cannot watch.*verbs: \["watch"\]'):
        await asyncio.wait_for(reflector.run(), PATIENCE_S)


def test_a_command_reports_repeated_requests_on_stderr(
    api_server: ApiServer, tmp_path: Path
) -> None:
    api_server.fail(Fault(verb="get", resource="deployments", code=503))
    command = [sys.executable, "-m", "firesteel", "cluster", "stop", "-t", "kubernetes-session"]
    ran = subprocess.run(
        [*command, "-D", "kubernetes.cluster-id=orders"],
        env={
            **os.environ,
            "KUBECONFIG": str(api_server.kubeconfig),
            "HOME": str(tmp_path),
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 1 and ran.stdout == ""
    assert 'event="repeating a request to Kubernetes"' in ran.stderr
    assert "there is no cluster orders" in ran.stderr
