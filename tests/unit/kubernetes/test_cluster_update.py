"""The objects of a cluster whose configuration changes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from firesteel.common.config import Configuration, ConfigurationError
from firesteel.common.config.configuration import SECRETS
from firesteel.kubernetes.cluster import Application, cluster_objects
from firesteel.kubernetes.cluster.update import (
    RunningCluster,
    changes,
    configuration_of,
    loses_its_store,
    replacing,
    running_cluster,
)
from firesteel.kubernetes.pods.template import main_container
from firesteel.kubernetes.resources import Object

VALUES = {
    "kubernetes.cluster-id": "orders",
    "kubernetes.container.image.ref": "firesteel:1",
    "taskmanager.numberOfTaskSlots": "3",
    "s3.secret-key": "hidden",
}


def objects(
    values: dict[str, str], application: Application | None = None, task_executors: int = 0
) -> dict[str, Object]:
    made = cluster_objects(Configuration(values), application, task_executors=task_executors)
    return {f"{each['kind']}/{each['metadata']['name']}": each for each in made}


def running(found: dict[str, Object]) -> RunningCluster:
    deployments = [each for name, each in found.items() if name.startswith("Deployment/")]
    secret = {SECRETS: json.dumps({"s3.secret-key": "hidden"}).encode()}
    return running_cluster(deployments, found["ConfigMap/orders-config"], secret)


@pytest.mark.parametrize("masters", ["together", "separate"])
def test_an_unchanged_cluster_is_built_from_its_objects(masters: str, tmp_path: Path) -> None:
    template = tmp_path / "masters.yaml"
    template.write_text("spec: {tolerations: [{key: spot, operator: Exists}]}")
    values = VALUES | {
        "kubernetes.masters": masters,
        "kubernetes.pod-template-file.jobmanager": str(template),
    }
    before = objects(values, task_executors=2)
    template.unlink()
    found = running(before)
    assert found.task_executors == 2 and found.application is None
    conf = found.changed({"kubernetes.cluster-id": "orders"}, tmp_path)
    made = cluster_objects(conf, task_executors=2)
    assert {f"{each['kind']}/{each['metadata']['name']}": each for each in made} == before


def test_the_program_of_an_application_is_kept() -> None:
    given = Application(program="local:///job.py", arguments=("--task-executors", "7", "--", "x"))
    found = running(objects(VALUES, given))
    assert found.application == given
    assert found.task_executors == 0, "that is an argument of the program"
    submitted = running(objects(VALUES, Application()))
    assert submitted.application == Application()


def test_changes_are_listed(tmp_path: Path) -> None:
    before = objects(VALUES)
    image = {"kubernetes.container.image.ref": "firesteel:2", "rest.port": "8082"}
    conf = running(before).changed(image, tmp_path)
    after = {f"{o['kind']}/{o['metadata']['name']}": o for o in cluster_objects(conf)}
    config = "ConfigMap/orders-config"
    assert [str(each) for each in changes(before[config], after[config])] == [
        "kubernetes.container.image.ref: firesteel:1 -> firesteel:2",
        "rest.port: 8081 -> 8082",
    ]
    assert changes(after[config], after[config]) == []
    deployments = [each["Deployment/orders"] for each in (before, after)]
    assert configuration_of(deployments[0]) != configuration_of(deployments[1])
    pod = deployments[1]["spec"]["template"]
    assert configuration_of(pod) == configuration_of(deployments[1])
    assert main_container(pod)["image"] == "firesteel:2"


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"kubernetes.masters": "separate"}, "a running cluster keeps 'together', not 'separate'"),
        ({"high-availability.storageDir": "s3://x"}, "a running cluster keeps '', not 's3://x'"),
        ({"s3.secret-key": "another"}, "s3.secret-key: secret values are not changed"),
        ({"database.url": "sqlite:////x"}, "database.url: secret values are not changed"),
    ],
)
def test_what_a_cluster_keeps(given: dict[str, str], reason: str, tmp_path: Path) -> None:
    found = running(objects(VALUES))
    with pytest.raises(ConfigurationError, match=reason):
        found.changed(given, tmp_path)
    found.changed({"kubernetes.masters": "together", "s3.secret-key": "hidden"}, tmp_path)


def test_options_return_to_their_defaults(tmp_path: Path) -> None:
    key = "taskmanager.numberOfTaskSlots"
    found = running(objects(VALUES))
    assert key in found.values
    assert key not in found.changed({}, tmp_path, [key]).to_dict()


@pytest.mark.parametrize(
    ("key", "reason"),
    [
        ("rest.port", "rest.port: cannot be unset, because this command's configuration sets it"),
        ("kubernetes.masters", "kubernetes.masters: cannot be unset while the cluster runs"),
        ("s3.secret-key", "s3.secret-key: cannot be unset while the cluster runs"),
        ("job.autoscaler.enabled", "cannot be unset: the cluster does not set it"),
    ],
)
def test_what_cannot_be_unset(key: str, reason: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=reason):
        running(objects(VALUES)).changed({"rest.port": "8082"}, tmp_path, [key])


def test_a_job_store_in_the_pod_of_its_master_would_be_lost(tmp_path: Path) -> None:
    assert loses_its_store(objects(VALUES)["Deployment/orders"])
    shared = {"database.url": "postgresql://db/jobs", "high-availability.storageDir": "s3://x"}
    assert not loses_its_store(objects(VALUES | shared)["Deployment/orders"])
    template = tmp_path / "masters.yaml"
    template.write_text(
        "spec:\n"
        "  containers:\n"
        "  - name: firesteel-main-container\n"
        "    volumeMounts: [{name: store, mountPath: /var/lib/firesteel}]\n"
        "  volumes: [{name: store, persistentVolumeClaim: {claimName: orders}}]\n"
    )
    kept = VALUES | {"kubernetes.pod-template-file.jobmanager": str(template)}
    assert not loses_its_store(objects(kept)["Deployment/orders"])


def test_a_replaced_object_keeps_what_others_have_set() -> None:
    old: dict[str, Any] = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {
            "name": "orders-rest",
            "uid": "1",
            "resourceVersion": "7",
            "labels": {"team": "data"},
        },
        "spec": {"clusterIP": "10.0.0.1", "ports": [{"port": 8081}], "selector": {"a": "b"}},
        "status": {"loadBalancer": {}},
    }
    new = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": "orders-rest", "labels": {"app": "orders"}},
        "spec": {"ports": [{"port": 8082}]},
    }
    assert replacing(old, new) == {
        **old,
        "metadata": {**old["metadata"], "labels": {"team": "data", "app": "orders"}},
        "spec": {"clusterIP": "10.0.0.1", "ports": [{"port": 8082}], "selector": {"a": "b"}},
    }
