"""The keys of the configuration that concern Kubernetes."""

from __future__ import annotations

from pathlib import Path

import pytest

from firesteel.common.config import Configuration, ConfigurationError
from firesteel.kubernetes.configuration import access_of, cluster_id_of

KUBECONFIG = """
apiVersion: v1
kind: Config
current-context: one
clusters: [{name: here, cluster: {server: "https://here:6443"}}]
users: [{name: me, user: {token: secret}}]
contexts:
- {name: one, context: {cluster: here, user: me, namespace: of-one}}
- {name: two, context: {cluster: here, user: me}}
"""


@pytest.mark.parametrize("cluster_id", ["a", "orders-2", "a" * 45])
def test_an_id_that_may_start_a_name(cluster_id: str) -> None:
    assert cluster_id_of(Configuration({"kubernetes.cluster-id": cluster_id})) == cluster_id


@pytest.mark.parametrize("cluster_id", ["2nd", "Orders", "orders-", "a.b", "a_b", "a" * 46])
def test_an_id_that_may_not_start_a_name(cluster_id: str) -> None:
    with pytest.raises(ConfigurationError, match=r"kubernetes\.cluster-id: .* is not allowed"):
        cluster_id_of(Configuration({"kubernetes.cluster-id": cluster_id}))


def test_a_missing_id_is_named() -> None:
    with pytest.raises(ConfigurationError, match=r"kubernetes\.cluster-id is not set"):
        cluster_id_of(Configuration({}))


def test_the_configuration_selects_context_and_namespace(tmp_path: Path) -> None:
    file = tmp_path / "config"
    file.write_text(KUBECONFIG)
    keys = {"kubernetes.config.file": str(file)}
    assert access_of(Configuration(keys)).namespace == "of-one"
    keys["kubernetes.context"] = "two"
    assert access_of(Configuration(keys)).namespace == "default"
    keys["kubernetes.namespace"] = "mine"
    assert access_of(Configuration(keys)).namespace == "mine"
