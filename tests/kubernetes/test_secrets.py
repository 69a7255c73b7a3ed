"""The Secrets of a cluster at the API server, and the credentials of its clients."""

from __future__ import annotations

import base64
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner

from firesteel.client.cli import main
from firesteel.common.config import Configuration, options
from firesteel.common.security.folder import SecurityFolder
from firesteel.common.security.keys import Keys
from firesteel.common.security.roles import Role
from firesteel.kubernetes.access.kubeconfig import from_kubeconfig
from firesteel.kubernetes.client import KubernetesClient
from firesteel.kubernetes.resources import SECRETS, Object
from firesteel.kubernetes.security import client_configuration, cluster_secrets
from tests.kubernetes.api_server import ApiServer
from tests.kubernetes.kinds import BY_NAME

CONF = Configuration({options.KUBERNETES_CLUSTER_ID.key: "orders"})


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "home"
    path.mkdir()
    monkeypatch.setenv("HOME", str(path))
    return path


def printed(api_server: ApiServer) -> list[Object]:
    """Returns the Secrets that the command prints."""
    given = ("kubernetes.cluster-id=orders", f"kubernetes.config.file={api_server.kubeconfig}")
    done = CliRunner().invoke(
        main, ["cluster", "secrets", "-D", given[0], "-D", given[1]], catch_exceptions=False
    )
    assert done.exit_code == 0, done.stderr
    return list(yaml.safe_load_all(done.stdout))


def create(api_server: ApiServer, manifest: Object) -> None:
    api_server.act(lambda registry: registry.create(BY_NAME["Secret"], "default", manifest))


def data_of(secret: Object) -> dict[str, bytes]:
    return {name: base64.b64decode(text) for name, text in secret["data"].items()}


def test_the_command_keeps_existing_keys(api_server: ApiServer, home: Path) -> None:
    first = printed(api_server)
    assert [secret["metadata"]["name"] for secret in first] == [
        *("orders-masters", "orders-taskexecutors", "orders-metrics")
    ]
    for secret in first:
        create(api_server, secret)
    second = printed(api_server)
    for before, after in zip(map(data_of, first), map(data_of, second), strict=True):
        same = before.keys() - {"metrics.token", "metrics.pem", "metrics.key"}
        assert {name: after[name] for name in same} == {name: before[name] for name in same}
    (folder,) = (home / ".firesteel/kubernetes").glob("*/default/orders")
    assert folder.stat().st_mode & 0o777 == 0o700
    assert {path.stat().st_mode & 0o777 for path in folder.iterdir()} == {0o600}


async def test_who_may_read_the_secret_gets_credentials(
    api_server: ApiServer, home: Path, tmp_path: Path
) -> None:
    for secret in cluster_secrets(CONF).secrets:
        create(api_server, secret)
    async with KubernetesClient(from_kubeconfig([api_server.kubeconfig])) as client:
        conf = await client_configuration(client, CONF)
        folder = SecurityFolder(Path(conf.get(options.SECURITY_DIRECTORY)))
        assert conf.get(options.SECURITY_TLS) == "always"
        keys = Keys(tmp_path)
        data = data_of(await client.get(SECRETS, "orders-masters"))
        keys.write("tokens.pem", data["tokens.pem"])
        token = folder.token("client.token")
        assert keys.verifier().verify(token).role is Role.ADMIN
        await client_configuration(client, CONF)
        assert folder.token("client.token") == token, "they are kept while they are valid"
        for name in ("orders-masters", "orders-taskexecutors", "orders-metrics"):
            await client.delete(SECRETS, name)
        for secret in cluster_secrets(CONF).secrets:  # another cluster of this name
            create(api_server, secret)
        await client_configuration(client, CONF)
        assert folder.token("client.token") != token
        api_server.deny("get", "secrets")
        kept = await client_configuration(client, CONF)
        assert kept.get(options.SECURITY_DIRECTORY) == str(folder.path)


async def test_without_access_the_configured_credentials_are_used(
    api_server: ApiServer, home: Path
) -> None:
    async with KubernetesClient(from_kubeconfig([api_server.kubeconfig])) as client:
        assert await client_configuration(client, CONF) == CONF
