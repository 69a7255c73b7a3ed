"""`firesteel cluster update` against an API server without a kubelet: pods stay pending."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from firesteel.client.cli import main
from firesteel.client.kubernetes_cluster import KubernetesCluster
from firesteel.common.config import Configuration
from firesteel.kubernetes.resources import Object
from tests.kubernetes.api_server import ApiServer
from tests.kubernetes.kinds import BY_NAME

Update = Callable[..., Result]


@pytest.fixture
def values(api_server: ApiServer, tmp_path: Path) -> dict[str, str]:
    return {
        "kubernetes.cluster-id": "orders",
        "kubernetes.container.image.ref": "firesteel:1",
        "kubernetes.config.file": str(api_server.kubeconfig),
        "kubernetes.client.start-timeout": "1 s",
        "database.url": f"sqlite:///{tmp_path}/jobs.db",
        "high-availability.storageDir": str(tmp_path),
        "security.enabled": "false",
    }


@pytest.fixture
def update(values: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Update:
    """Runs the command with a config.yaml that names the API server alone."""
    kubeconfig = values["kubernetes.config.file"]
    (tmp_path / "config.yaml").write_text(f"kubernetes.config.file: {kubeconfig}\n")
    monkeypatch.setenv("FIRESTEEL_CONF_DIR", str(tmp_path))

    def run(*definitions: str, dry_run: bool = False) -> Result:
        given = ("kubernetes.cluster-id=orders", "kubernetes.client.start-timeout=1 s")
        options = [part for text in (*given, *definitions) for part in ("-D", text)]
        command = ["cluster", "update", "-t", "kubernetes-session", *options]
        return CliRunner().invoke(main, [*command, *(["--dry-run"] if dry_run else [])])

    return run


def stored(api_server: ApiServer) -> list[Object]:
    """Returns the specifications of the objects that an update changes."""
    kinds = ("Deployment", "ConfigMap", "Service", "Role", "NetworkPolicy")
    found = [each for kind in kinds for each in api_server.objects(kind)]
    return [{k: each.get(k) for k in ("kind", "spec", "data", "rules")} for each in found]


def test_a_dry_run_shows_what_would_change(
    api_server: ApiServer, values: dict[str, str], update: Update
) -> None:
    KubernetesCluster(Configuration(values)).create()
    before = stored(api_server)
    shown = update("kubernetes.container.image.ref=firesteel:2", dry_run=True)
    assert shown.exit_code == 0, shown.output
    assert "Changes of the cluster orders in namespace default:" in shown.output
    assert "  kubernetes.container.image.ref: firesteel:1 -> firesteel:2" in shown.output
    assert stored(api_server) == before
    nothing = update()
    assert nothing.exit_code == 0 and "Nothing to update: orders" in nothing.output


def test_masters_that_are_not_ready_in_time_get_their_earlier_objects(
    api_server: ApiServer, values: dict[str, str], update: Update
) -> None:
    KubernetesCluster(Configuration(values)).create()
    before = stored(api_server)
    failed = update("kubernetes.container.image.ref=firesteel:2", "rest.port=8082")
    assert failed.exit_code == 1
    assert "orders in namespace default was not updated, because a new pod" in failed.output
    assert "The masters get their earlier configuration again." in failed.output
    assert stored(api_server) == before


def test_an_edited_config_map_is_rolled_out(
    api_server: ApiServer, values: dict[str, str], update: Update
) -> None:
    KubernetesCluster(Configuration(values)).create()

    def edit(found: Object) -> Object:
        found["data"]["config.yaml"] += "parallelism.default: '3'\n"
        return found

    kind = BY_NAME["ConfigMap"]
    api_server.act(lambda registry: registry.patch(kind, "default", "orders-config", edit))
    shown = update(dry_run=True)
    assert shown.exit_code == 0 and "Nothing to update" not in shown.output


def test_clusters_that_the_command_does_not_update(
    api_server: ApiServer, values: dict[str, str], update: Update
) -> None:
    missing = update("rest.port=8082")
    assert missing.exit_code == 1 and "there is no cluster orders" in missing.output
    del values["database.url"], values["high-availability.storageDir"]
    KubernetesCluster(Configuration(values)).create()
    before = stored(api_server)
    refused = update("rest.port=8082")
    assert refused.exit_code == 1
    assert "has its job store in the pod of its only master" in refused.output

    def helm(found: Object) -> Object:
        found["metadata"]["labels"]["app.kubernetes.io/managed-by"] = "Helm"
        return found

    kind = BY_NAME["Deployment"]
    api_server.act(lambda registry: registry.patch(kind, "default", "orders", helm))
    refused = update("rest.port=8082")
    assert refused.exit_code == 1 and "change it with `helm upgrade`" in refused.output
    assert stored(api_server) == before
