"""The masters renew the credentials of Prometheus in their Secret."""

from __future__ import annotations

import asyncio
import base64
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from cryptography import x509

from firesteel.client.masters.metrics_secret import MetricsSecret
from firesteel.common.config import Configuration, options
from firesteel.common.security.keys import Keys
from firesteel.common.security.roles import Role
from firesteel.kubernetes.access.kubeconfig import from_kubeconfig
from firesteel.kubernetes.client import KubernetesClient
from firesteel.kubernetes.resources import SECRETS, Object
from firesteel.kubernetes.security import cluster_secrets, data_of
from tests.kubernetes.api_server import ApiServer
from tests.kubernetes.kinds import BY_NAME
from tests.waiting import until

SECRET, DAY_S = "orders-metrics", 86_400.0


@pytest.fixture
def conf(api_server: ApiServer, tmp_path: Path) -> Configuration:
    """That of a pod, whose folder has the keys of the masters."""
    folder = tmp_path / "keys"
    folder.mkdir(mode=0o700)
    values = {
        options.KUBERNETES_CLUSTER_ID.key: "orders",
        options.KUBERNETES_CONFIG_FILE.key: str(api_server.kubeconfig),
    }
    for secret in cluster_secrets(Configuration(values)).secrets:
        create(api_server, secret)
        if secret["metadata"]["name"] == "orders-masters":
            for name, content in data_of(secret).items():
                Keys(folder).write(name, content)
    return Configuration(values | {options.SECURITY_DIRECTORY.key: str(folder)})


@pytest.fixture
async def client(api_server: ApiServer) -> AsyncIterator[KubernetesClient]:
    async with KubernetesClient(from_kubeconfig([api_server.kubeconfig])) as client:
        yield client


def create(api_server: ApiServer, manifest: Object) -> None:
    api_server.act(lambda registry: registry.create(BY_NAME["Secret"], "default", manifest))


def keys_of(conf: Configuration, after_s: float = 0.0) -> Keys:
    path = Path(conf.get(options.SECURITY_DIRECTORY))
    return Keys(path, now_s=lambda: time.time() + after_s)


async def stored(client: KubernetesClient) -> dict[str, bytes]:
    return data_of(await client.get(SECRETS, SECRET))


async def age(client: KubernetesClient, conf: Configuration, days: float) -> None:
    """Replaces the credentials by some that were issued earlier."""
    files = keys_of(conf, -days * DAY_S).metrics_files(valid_s=365 * DAY_S)
    data = {name: base64.b64encode(content).decode() for name, content in files.items()}
    await client.patch(SECRETS, SECRET, {"data": data})


async def test_credentials_are_renewed_after_half_of_their_time(
    conf: Configuration, client: KubernetesClient
) -> None:
    secret = MetricsSecret(conf)
    assert not await secret.renew(client)
    await age(client, conf, days=180)
    assert not await secret.renew(client)
    await age(client, conf, days=190)
    before = await stored(client)
    assert await secret.renew(client)
    after = await stored(client)
    changed = {name for name in after if after[name] != before[name]}
    assert changed == {"metrics.token", "metrics.pem", "metrics.key"}
    token = after["metrics.token"].decode().strip()
    assert keys_of(conf, 364 * DAY_S).verifier().verify(token).role is Role.VIEWER
    certificate = x509.load_pem_x509_certificate(after["metrics.pem"])
    assert certificate.not_valid_after_utc.timestamp() > time.time() + 364 * DAY_S
    assert not await secret.renew(client)


async def test_credentials_of_other_keys_are_replaced(
    api_server: ApiServer, conf: Configuration, client: KubernetesClient
) -> None:
    await client.delete(SECRETS, SECRET)
    secret = MetricsSecret(conf)
    assert not await secret.renew(client), "a Secret that does not exist is not created"
    (other,) = (
        each for each in cluster_secrets(conf).secrets if each["metadata"]["name"] == SECRET
    )
    create(api_server, other)
    assert await secret.renew(client)
    token = (await stored(client))["metrics.token"].decode().strip()
    assert keys_of(conf).verifier().verify(token).role is Role.VIEWER


async def test_of_two_masters_one_renews(conf: Configuration, client: KubernetesClient) -> None:
    await age(client, conf, days=300)
    renewed = await asyncio.gather(*(MetricsSecret(conf).renew(client) for _ in range(2)))
    assert sorted(renewed) == [False, True]


async def test_masters_without_permission_continue(
    api_server: ApiServer,
    conf: Configuration,
    client: KubernetesClient,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """They renew once they are permitted to, and report the reason once."""
    monkeypatch.setattr("firesteel.client.masters.metrics_secret.PAUSE_S", 0.01)
    await age(client, conf, days=300)
    before = await stored(client)
    api_server.deny("patch", "secrets")
    running = asyncio.create_task(MetricsSecret(conf).run())
    reported = ""

    def failed() -> bool:
        nonlocal reported
        reported += "".join(capsys.readouterr())
        return "cannot renew the credentials of Prometheus" in reported

    await until(failed)
    assert await stored(client) == before
    api_server.access.denials.clear()
    while await stored(client) == before:
        await asyncio.sleep(0.01)
    running.cancel()
    assert (reported + "".join(capsys.readouterr())).count("cannot renew") == 1
