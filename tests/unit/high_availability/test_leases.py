"""Leases as manifests, and the configuration of elections with them."""

from __future__ import annotations

import datetime
from pathlib import Path

import pytest

from firesteel.common.config import Configuration, ConfigurationError
from firesteel.common.ids import Epoch
from firesteel.common.leader import Leader, Office
from firesteel.high_availability import elected_address
from firesteel.high_availability.kubernetes.lease import (
    EPOCH,
    JOB_STORE,
    LEADER,
    Lease,
    acquired_ms,
    lease_of,
    manifest_of,
)
from firesteel.high_availability.kubernetes.offices import LeaseOffices
from firesteel.high_availability.kubernetes.permissions import role
from tests.kubernetes.access import kubeconfig

NOW = datetime.datetime(2026, 2, 1, 12, 30, tzinfo=datetime.UTC)
HELD = Lease(
    version="5",
    holder="me",
    transitions=4,
    epoch=4,
    duration_s=15.0,
    leader=Leader("me:1", Epoch(4)),
    renewal=7,
    job_store="store",
)
ELECTION = "high-availability.kubernetes.leader-election."


@pytest.fixture
def keys(tmp_path: Path) -> dict[str, str]:
    file = tmp_path / "kubeconfig"
    file.write_text(kubeconfig("https://here:6443", tmp_path / "ca.crt", "token", "data"))
    (tmp_path / "ca.crt").write_text("")
    return {
        "high-availability.type": "kubernetes",
        "kubernetes.config.file": str(file),
        "kubernetes.cluster-id": "orders",
    }


def test_a_lease_is_read_as_it_was_written() -> None:
    manifest = manifest_of(HELD, "orders-dispatcher", NOW, taken=True)
    assert manifest["spec"] == {
        "holderIdentity": "me",
        "leaseTransitions": 4,
        "leaseDurationSeconds": 15,
        "renewTime": "2026-02-01T12:30:00.000000Z",
        "acquireTime": "2026-02-01T12:30:00.000000Z",
    }
    assert lease_of(manifest) == HELD
    assert acquired_ms(manifest) == int(NOW.timestamp() * 1000)


def test_a_write_keeps_what_others_have_added() -> None:
    manifest = manifest_of(HELD, "orders-dispatcher", NOW, taken=True)
    manifest["metadata"]["labels"] = {"team": "data"}
    manifest["metadata"]["annotations"]["note"] = "ours"
    later = manifest_of(lease_of(manifest), "orders-dispatcher", NOW.replace(hour=13), taken=False)
    assert later["metadata"]["labels"] == {"team": "data"}
    assert later["metadata"]["annotations"].keys() == {"note", LEADER, EPOCH, JOB_STORE}
    assert later["spec"]["acquireTime"] < later["spec"]["renewTime"]


@pytest.mark.parametrize("annotation", ["", "no JSON", "{}", '{"address": "a:1", "epoch": "x"}'])
def test_an_edited_lease_is_not_released(annotation: str) -> None:
    manifest = {
        "metadata": {"name": "a", "annotations": {LEADER: annotation}},
        "spec": {"leaseTransitions": -1, "leaseDurationSeconds": "soon"},
    }
    lease = lease_of(manifest)
    assert lease.released == (annotation == "")
    assert (lease.transitions, lease.duration_s) == (0, 0.0)


def test_the_configuration_names_leases_and_the_cluster(keys: dict[str, str]) -> None:
    conf = Configuration(keys)
    offices = LeaseOffices.of(conf)
    assert offices.name(Office.DISPATCHER) == "orders-dispatcher"
    assert offices.name(Office.RESOURCE_MANAGER) == "orders-resourcemanager"
    assert offices.durations.lease_s == 15.0
    assert elected_address(conf) == "kubernetes://data/orders"
    found = LeaseOffices.at("kubernetes://other/mine", conf)
    assert (found.access.namespace, found.cluster_id) == ("other", "mine")


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("renew-deadline", "13 s", "13 s is too long for .*lease-duration: 15 s; .* at most 12.5"),
        ("retry-period", "6 s", "6 s is too long for .*renew-deadline: 10 s; .* at most 5 s"),
        ("lease-duration", "6 s", "renew-deadline: 10 s is too long"),
    ],
)
def test_durations_must_fit_each_other(
    keys: dict[str, str], key: str, value: str, message: str
) -> None:
    with pytest.raises(ConfigurationError, match=message):
        LeaseOffices.of(Configuration(keys | {ELECTION + key: value}))


def test_a_cluster_needs_an_id(keys: dict[str, str]) -> None:
    with pytest.raises(ConfigurationError, match=r"kubernetes\.cluster-id is not set"):
        LeaseOffices.of(Configuration(keys | {"kubernetes.cluster-id": ""}))


def test_the_role_has_all_verbs() -> None:
    assert 'verbs: ["get", "list", "watch", "create", "update"]' in role("data")
