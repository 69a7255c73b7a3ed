"""The objects of a cluster, from its configuration."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from firesteel.common.config import Configuration, ConfigurationError
from firesteel.kubernetes.cluster import Application, cluster_objects, job_id_of, owned
from firesteel.kubernetes.pods.labels import MAIN_CONTAINER
from firesteel.kubernetes.resources import Object, name_of, resource_of

SHARED = {
    "database.url": "postgresql+psycopg2://firesteel:hidden@postgres/firesteel",
    "high-availability.storageDir": "s3://firesteel/orders",
}


def objects(
    values: dict[str, Any] | None = None, application: Application | None = None
) -> dict[str, Object]:
    """Returns the objects by kind and name."""
    given = {"kubernetes.cluster-id": "orders", "kubernetes.container.image.ref": "firesteel:1"}
    found = cluster_objects(Configuration(given | (values or {})), application)
    by_name = {f"{each['kind']}/{name_of(each)}": each for each in found}
    assert len(by_name) == len(found), "names are unique"
    return by_name


def main_container(deployment: Object) -> Any:
    containers = deployment["spec"]["template"]["spec"]["containers"]
    (main,) = [each for each in containers if each["name"] == MAIN_CONTAINER]
    return main


def configuration(found: dict[str, Object]) -> dict[str, str]:
    content: dict[str, str] = yaml.safe_load(
        found["ConfigMap/orders-config"]["data"]["config.yaml"]
    )
    return content


def test_the_names_of_a_cluster_are_stable() -> None:
    assert list(objects()) == [
        "Deployment/orders",
        "ServiceAccount/orders-masters",
        "Role/orders-masters",
        "RoleBinding/orders-masters",
        "ConfigMap/orders-config",
        "Service/orders",
        "Service/orders-rest",
        "Service/orders-resourcemanager",
        "Lease/orders-dispatcher",
        "Lease/orders-resourcemanager",
        "NetworkPolicy/orders-cluster",
        "NetworkPolicy/orders-masters",
    ]


def test_all_objects_belong_to_the_deployment() -> None:
    deployment, *others = objects().values()
    owner = deployment | {"metadata": {"name": "orders", "uid": "u"}}
    for each in owned(others, owner):
        (reference,) = each["metadata"]["ownerReferences"]
        assert (reference["kind"], reference["name"], reference["uid"]) == (
            "Deployment",
            "orders",
            "u",
        )
        assert resource_of(each).namespaced
        assert each["metadata"]["labels"]["firesteel/cluster-id"] == "orders"
    assert all("ownerReferences" not in each["metadata"] for each in others)


def test_masters_are_restricted_and_use_the_api() -> None:
    found = objects()
    spec = found["Deployment/orders"]["spec"]["template"]["spec"]
    main = main_container(found["Deployment/orders"])
    assert spec["securityContext"]["runAsNonRoot"] is True
    assert main["securityContext"]["readOnlyRootFilesystem"] is True
    assert spec["automountServiceAccountToken"] is True
    assert spec["serviceAccountName"] == "orders-masters"
    assert main["command"] == ["firesteel", "service", "masters"]
    assert {"name": "FIRESTEEL_CONF_DIR", "value": "/etc/firesteel"} in main["env"]
    rules = found["Role/orders-masters"]["rules"]
    (deployments,) = [rule for rule in rules if rule["resources"] == ["deployments"]]
    assert deployments["resourceNames"] == ["orders"], "no other Deployment"
    (secrets,) = (rule for rule in rules if rule["resources"] == ["secrets"])
    assert secrets["resourceNames"] == ["orders-metrics"], "no other Secret"


def test_a_configured_service_account_needs_no_role() -> None:
    found = objects({"kubernetes.service-account": "data"})
    spec = found["Deployment/orders"]["spec"]["template"]["spec"]
    assert spec["serviceAccountName"] == "data"
    assert not any(name.startswith(("ServiceAccount/", "Role")) for name in found)


def test_the_config_map_has_no_secrets_and_no_files_of_the_client() -> None:
    found = objects(
        SHARED
        | {
            "s3.secret-key": "hidden",
            "kubernetes.config.file": "/home/me/.kube/config",
            "security.directory": "/home/me/security",
            "parallelism.default": "3",
        }
    )
    values = configuration(found)
    assert values["parallelism.default"] == "3"
    assert values["high-availability.type"] == "kubernetes"
    assert values["kubernetes.resourcemanager.address"] == "orders-resourcemanager:6124"
    assert "hidden" not in yaml.safe_dump_all(found.values())
    assert "/home/me" not in yaml.safe_dump_all(found.values())


def test_a_program_of_the_image_is_an_argument() -> None:
    application = Application(program="/opt/job.py", arguments=["--input", "a b"])
    deployment = objects(application=application)["Deployment/orders"]
    arguments = main_container(deployment)["args"]
    assert arguments[-5:] == ["--program", "/opt/job.py", "--", "--input", "a b"]
    annotations = deployment["metadata"]["annotations"]
    assert annotations["firesteel.io/mode"] == "application"
    assert annotations["firesteel.io/job-id"] == job_id_of("orders")


def test_the_job_of_a_cluster_is_always_the_same() -> None:
    assert job_id_of("orders") == job_id_of("orders") != job_id_of("orders2")
    assert len(job_id_of("orders")) == 32


def test_several_masters_are_replaced_one_by_one() -> None:
    found = objects(SHARED | {"kubernetes.jobmanager.replicas": "2"})
    spec = found["Deployment/orders"]["spec"]
    assert (spec["replicas"], spec["strategy"]["type"]) == (2, "RollingUpdate")
    assert found["PodDisruptionBudget/orders-masters"]["spec"]["maxUnavailable"] == 1


def test_a_job_store_in_the_pod_has_one_master_at_a_time() -> None:
    assert objects()["Deployment/orders"]["spec"]["strategy"] == {"type": "Recreate"}
    with pytest.raises(ConfigurationError, match=r"replicas: 2 masters need a job store"):
        objects({"kubernetes.jobmanager.replicas": "2"})


def test_separate_masters_have_a_deployment_each() -> None:
    found = objects({"kubernetes.masters": "separate"})
    dispatchers = found["Deployment/orders"]
    managers = found["Deployment/orders-resourcemanager"]
    assert main_container(dispatchers)["args"][-2:] == ["--only", "dispatcher"]
    assert main_container(managers)["args"][-2:] == ["--only", "resourcemanager"]
    for deployment in (dispatchers, managers):
        labels = deployment["spec"]["template"]["metadata"]["labels"]
        assert labels.items() >= deployment["spec"]["selector"]["matchLabels"].items()
    selectors = [each["spec"]["selector"]["matchLabels"] for each in (dispatchers, managers)]
    assert selectors[0] != selectors[1]


def test_a_changed_configuration_changes_the_pods() -> None:
    def pods(values: dict[str, str]) -> Any:
        return objects(values)["Deployment/orders"]["spec"]["template"]

    assert pods({}) == pods({})
    assert pods({}) != pods({"parallelism.default": "3"})


def test_the_template_of_task_executors_is_shipped(tmp_path: Path) -> None:
    path = tmp_path / "template.yaml"
    path.write_text("spec: {priorityClassName: high}")
    found = objects({"kubernetes.pod-template-file.taskexecutor": str(path)})
    data = found["ConfigMap/orders-config"]["data"]
    assert data["taskexecutor-pod-template.yaml"] == path.read_text()
    assert str(path) not in data["config.yaml"]
    shipped = "/etc/firesteel/taskexecutor-pod-template.yaml"
    argument = f"kubernetes.pod-template-file.taskexecutor={shipped}"
    assert argument in main_container(found["Deployment/orders"])["args"]


def test_the_template_of_masters_is_the_base_of_their_pods(tmp_path: Path) -> None:
    path = tmp_path / "template.yaml"
    path.write_text(
        f"""
        metadata: {{labels: {{team: data}}}}
        spec:
          containers: [{{name: {MAIN_CONTAINER}, image: theirs, env: [{{name: TZ, value: UTC}}]}}]
        """
    )
    found = objects({"kubernetes.pod-template-file.jobmanager": str(path)})
    template = found["Deployment/orders"]["spec"]["template"]
    assert template["metadata"]["labels"]["team"] == "data"
    assert {"name": "TZ", "value": "UTC"} in main_container(found["Deployment/orders"])["env"]


@pytest.mark.parametrize("component", ["jobmanager", "taskexecutor"])
@pytest.mark.parametrize("name", [MAIN_CONTAINER, "main"])
def test_a_template_with_two_containers_of_one_name_is_refused(
    name: str, component: str, tmp_path: Path
) -> None:
    path = tmp_path / "template.yaml"
    path.write_text(
        f"spec: {{containers: [{{name: {name}, image: i}}, {{name: {name}, image: j}}]}}"
    )
    option = f"kubernetes.pod-template-file.{component}"
    with pytest.raises(ConfigurationError, match=f"{option}: .* has 2 containers named {name};"):
        objects({option: str(path)})


@pytest.mark.parametrize(
    ("values", "problem"),
    [
        ({"kubernetes.cluster-id": "a" * 46}, "expected 1 to 45"),
        ({"kubernetes.cluster-id": "Orders"}, "lower-case letters"),
        ({"kubernetes.container.image.ref": ""}, "kubernetes.container.image.ref is not set"),
        ({"high-availability.type": "none"}, "elected with Leases"),
        ({"jobmanager.rpc.port": "0"}, "0 is not allowed on Kubernetes"),
        ({"kubernetes.rest-service.exposed.type": "Ingress"}, "kubernetes.rest-service"),
    ],
)
def test_bad_values_are_refused(values: dict[str, Any], problem: str) -> None:
    with pytest.raises(ConfigurationError) as raised:
        objects(values)
    assert problem in str(raised.value)
