"""Kustomize and Helm make the objects that Firesteel's command line creates, and Kubernetes' own
schemas accept them.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from firesteel.common.config import Configuration
from firesteel.kubernetes.cluster import Application, cluster_objects
from firesteel.kubernetes.cluster.objects import CONFIGURATION_HASH, JOB
from scripts.kubernetes_manifests import CLUSTERS, FOLDER, objects_of
from tests.clients import packages

pytestmark = pytest.mark.clients

ROOT = Path(__file__).parents[2]
CHART = FOLDER / "helm" / "firesteel"
OLDEST = "1.27"  # of the chart's kubeVersion
Object = dict[str, Any]

KEYS = {"kubernetes.cluster-id": "orders", "kubernetes.namespace": "shop"}
IMAGE = {
    "kubernetes.container.image.ref": "firesteel:0.1.0",
    "kubernetes.container.image.pull-policy": "IfNotPresent",
}
INSECURE = {"security.enabled": "false", "security.insecure-listen": "true"}
# Values of the chart, and the configuration and the program of an equal cluster.
CHARTS: Mapping[str, tuple[Object, dict[str, str], Application | None]] = {
    "default": ({}, {}, None),
    "insecure": (
        {"security": {"enabled": False}, "networkPolicy": {"enabled": False}},
        INSECURE | {"kubernetes.network-policy.enabled": "false"},
        None,
    ),
    "application": (
        {
            "application": {"enabled": True, "program": "/opt/job.py", "arguments": ["--n", 1]},
            "config": {"taskmanager.numberOfTaskSlots": 4},
            "image": {"pullSecrets": ["registry"], "pullPolicy": "Always"},
        },
        {
            "taskmanager.numberOfTaskSlots": "4",
            "kubernetes.container.image.pull-policy": "Always",
            "kubernetes.container.image.pull-secrets": "registry",
        },
        Application(program="/opt/job.py", arguments=("--n", "1")),
    ),
    "several masters": (
        {
            "masters": {"replicas": 2, "sharedStore": True, "labels": {"team": "shop"}},
            "config": {"high-availability.storageDir": "s3://shop/firesteel"},
        },
        {
            "kubernetes.jobmanager.replicas": "2",
            "kubernetes.jobmanager.labels": "team:shop",
            "high-availability.storageDir": "s3://shop/firesteel",
            "database.url": "postgresql+psycopg2://in-a-secret",
        },
        None,
    ),
}


def rendered(*command: str | Path) -> list[Object]:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return [each for each in yaml.safe_load_all(done.stdout) if each]


def template(path: Path, values: Object, *options: str) -> list[Object]:
    """Returns the objects of the chart for the cluster `orders` in the namespace `shop`."""
    path.write_text(json.dumps(values))
    command = [packages.helm(), "template", "orders", CHART, "--namespace", "shop"]
    return rendered(*command, "--values", path, *options)


def comparable(objects: Sequence[Object]) -> dict[tuple[str, str], Object]:
    """Returns the objects by kind and name, without that in which tools differ."""
    found = {}
    for each in objects:
        metadata = each["metadata"]
        metadata.pop("namespace", None)
        for name in ("app.kubernetes.io/managed-by", "helm.sh/chart"):
            metadata["labels"].pop(name, None)
        metadata.get("annotations", {}).pop(JOB, None)
        spec = each.get("spec") or {}
        pod = spec.get("template", {})
        if pod:
            pod["metadata"].get("annotations", {}).pop(CONFIGURATION_HASH, None)
            pod["metadata"].setdefault("annotations", {})
            (container,) = pod["spec"]["containers"]
            for listed in (container["env"], container["volumeMounts"], pod["spec"]["volumes"]):
                listed.sort(key=lambda item: item["name"])
        for key, text in each.get("data", {}).items():
            values = yaml.safe_load(text)
            each["data"][key] = {name: str(value) for name, value in values.items()}
        found[each["kind"], metadata["name"]] = each
    return found


def validate(path: Path, objects: Sequence[Object]) -> None:
    """Validates the objects with the schemas of the oldest and the newest Kubernetes."""
    path.write_text(yaml.safe_dump_all(objects))
    for version in ((), ("-k", OLDEST)):
        command = [packages.VENV / "bin" / "kubernetes-validate", "--strict", *version, path]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("name", CLUSTERS)
def test_kustomize_makes_the_objects_of_the_command_line(
    name: str, clients: None, tmp_path: Path
) -> None:
    objects = rendered(packages.kubectl(), "kustomize", FOLDER / name)
    validate(tmp_path / "objects.yaml", objects)
    for each in objects:  # the hash that kustomize adds
        if each["kind"] == "ConfigMap":
            config, plain = each["metadata"]["name"], each["metadata"]["name"].rpartition("-")[0]
            each["metadata"]["name"] = plain
    text = yaml.safe_dump_all(objects).replace(config, plain)
    made = comparable(list(yaml.safe_load_all(text)))
    assert made == comparable(list(objects_of(name).values()))


@pytest.mark.parametrize("name", CHARTS)
def test_the_chart_makes_the_objects_of_the_command_line(
    name: str, clients: None, tmp_path: Path
) -> None:
    values, configuration, application = CHARTS[name]
    objects = template(tmp_path / "values.json", values | {"metrics": {"service": False}})
    validate(tmp_path / "objects.yaml", objects)
    conf = Configuration(KEYS | IMAGE | configuration)
    expected = comparable(cluster_objects(conf, application))
    config = expected["ConfigMap", "orders-config"]["data"]["config.yaml"]
    for key in ("kubernetes.jobmanager.replicas", "kubernetes.jobmanager.labels"):
        config.pop(key, None)  # the chart has other values for them
    config.pop("kubernetes.network-policy.enabled", None)
    config.setdefault("security.enabled", "true")
    config["security.enabled"] = config["security.enabled"].lower()
    assert comparable(objects) == expected


def test_a_changed_configuration_replaces_the_pods(clients: None, tmp_path: Path) -> None:
    def annotation(values: Object) -> str:
        (deployment,) = (
            each
            for each in template(tmp_path / "values.json", values)
            if each["kind"] == "Deployment"
        )
        metadata = deployment["spec"]["template"]["metadata"]
        return str(metadata["annotations"][CONFIGURATION_HASH])

    assert annotation({}) == annotation({"rest": {"type": "NodePort"}})
    assert annotation({}) != annotation({"config": {"parallelism.default": 2}})


def test_the_chart_has_objects_for_prometheus_and_grafana(clients: None, tmp_path: Path) -> None:
    enabled = {"enabled": True, "labels": {"release": "prometheus"}}
    names = ("serviceMonitor", "dashboards", "rules")
    values = {"metrics": dict.fromkeys(names, enabled)}
    made = {
        (each["kind"], each["metadata"]["name"]): each
        for each in template(tmp_path / "values.json", values)
    }
    boards = made["ConfigMap", "orders-dashboards"]
    assert len(boards["data"]) == len(list((ROOT / "deploy/grafana/dashboards").iterdir()))
    assert boards["metadata"]["labels"]["grafana_dashboard"] == "1"
    service = made["Service", "orders-metrics"]
    validate(tmp_path / "objects.yaml", [boards, service])
    monitor, rule = made["ServiceMonitor", "orders"], made["PrometheusRule", "orders"]
    for each, name in ((monitor, "servicemonitors"), (rule, "prometheusrules")):
        assert each["metadata"]["labels"]["release"] == "prometheus"
        path = packages.monitoring_definitions() / f"monitoring.coreos.com_{name}.yaml"
        check_custom(tmp_path, path, each)
    selected = monitor["spec"]["selector"]["matchLabels"].items()
    assert selected <= service["metadata"]["labels"].items()
    ports = [port["name"] for port in service["spec"]["ports"]]
    assert ports == [endpoint["port"] for endpoint in monitor["spec"]["endpoints"]]
    assert rule["spec"] == yaml.safe_load((ROOT / "deploy/prometheus/alerts.yml").read_text())


def check_custom(folder: Path, definition: Path, instance: Object) -> None:
    """Validates a custom resource with the schema of its definition."""
    schema = yaml.safe_load(definition.read_text())["spec"]["versions"][0]["schema"]
    (folder / "schema.json").write_text(json.dumps(strict(schema["openAPIV3Schema"])))
    (folder / "instance.json").write_text(json.dumps(instance))
    program = (
        "import json, sys, jsonschema; i, s = (json.load(open(p)) for p in sys.argv[1:]);"
        "jsonschema.validate(i, s)"
    )
    command = [packages.PYTHON, "-c", program, folder / "instance.json", folder / "schema.json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def strict(schema: Any) -> Any:
    """Returns a schema that refuses unknown fields, which an API server drops silently."""
    if isinstance(schema, list):
        return [strict(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    closed = {name: strict(each) for name, each in schema.items()}
    if (
        closed.get("type") == "object"
        and "properties" in closed
        and "apiVersion" not in closed["properties"]
    ):
        closed.setdefault("additionalProperties", False)
    if closed.get("x-kubernetes-int-or-string"):
        closed.pop("type", None)
    if "(?i)" in str(closed.get("pattern", "")):  # Go allows it inside an expression
        closed.pop("pattern")
    return closed


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"masters": {"replicas": 2}}, "several masters need masters.sharedStore"),
        ({"application": {"enabled": True}}, "application.program is empty"),
        ({"serviceAccount": {"create": False}}, "serviceAccount.name is empty"),
        ({"config": {"rest.port": 80}}, "config: rest.port is not allowed"),
        (
            {"config": {"kubernetes.masters": "separate"}},
            "config: kubernetes.masters is not allowed",
        ),
        ({"config": {"s3.secret-key": "x"}}, "config: s3.secret-key is secret"),
        ({"config": {"database.url": "x"}}, "config: database.url is secret"),
        ({"imag": {}}, "imag"),
        ({"masters": {"replicas": "two"}}, "replicas"),
    ],
)
def test_the_chart_refuses_bad_values(
    values: Object, message: str, clients: None, tmp_path: Path
) -> None:
    path = tmp_path / "values.json"
    path.write_text(json.dumps(values))
    command = [packages.helm(), "template", "orders", CHART, "--values", path]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert message in done.stderr


def test_helm_finds_nothing_wrong_with_the_chart(clients: None) -> None:
    command = [packages.helm(), "lint", "--strict", CHART]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
