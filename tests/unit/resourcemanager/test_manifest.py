"""The manifests of TaskExecutors' pods, from the configuration and from pod templates."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from firesteel.common.config import Configuration, ConfigurationError, options
from firesteel.kubernetes.pods.labels import MAIN_CONTAINER
from firesteel.kubernetes.resources import Object
from resourcemanager.core.events import WorkerId
from resourcemanager.kubernetes.manifest import Manifests
from resourcemanager.kubernetes.pod import read_pod
from resourcemanager.kubernetes.settings import KubernetesSettings, kubernetes_settings

TEMPLATE = options.KUBERNETES_TM_TEMPLATE.key
IMAGE = options.KUBERNETES_IMAGE.key


def settings(values: dict[str, Any] | None = None) -> KubernetesSettings:
    given = {"kubernetes.cluster-id": "orders", IMAGE: "firesteel:1"} | (values or {})
    return kubernetes_settings(Configuration(given), initial_workers=0)


def pod(values: dict[str, Any] | None = None, *, owner: Object | None = None) -> Object:
    return Manifests(settings(values)).pod(
        name="orders-taskexecutor-3-7",
        attempt=3,
        number=7,
        worker_id=WorkerId("worker-1"),
        resource_manager_address="rm:6124",
        owner=owner,
    )


def main_container(manifest: Object) -> Any:
    (main,) = [c for c in manifest["spec"]["containers"] if c["name"] == MAIN_CONTAINER]
    return main


def with_template(tmp_path: Path, text: str, **values: Any) -> Object:
    path = tmp_path / "template.yaml"
    path.write_text(text)
    return pod({TEMPLATE: str(path)} | values)


def test_the_driver_recognises_its_pods() -> None:
    owner = {"kind": "Deployment", "name": "orders", "uid": "u"}
    manifest = pod(owner=owner)
    found = read_pod(manifest)
    assert found is not None
    assert (found.worker_id, found.attempt, found.number) == ("worker-1", 3, 7)
    assert manifest["metadata"]["ownerReferences"] == [owner]
    labels = manifest["metadata"]["labels"]
    assert labels.items() >= {"app": "orders", "component": "taskexecutor"}.items()
    arguments = main_container(manifest)["args"]
    assert arguments[:4] == ["--resource-manager", "rm:6124", "--worker-id", "worker-1"]


def test_pods_are_restricted_by_default() -> None:
    manifest = pod()
    spec, main = manifest["spec"], main_container(manifest)
    assert spec["restartPolicy"] == "Never"
    assert spec["automountServiceAccountToken"] is False
    assert spec["terminationGracePeriodSeconds"] == 120
    assert spec["securityContext"]["runAsNonRoot"] is True
    assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert main["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    mounted = {mount["mountPath"] for mount in main["volumeMounts"]}
    assert mounted == {"/tmp", "/var/lib/firesteel", "/etc/firesteel-security"}
    assert all("emptyDir" in volume or "secret" in volume for volume in spec["volumes"])


@pytest.mark.parametrize("secured", ["false", "true"])
def test_probes_call_a_port_without_tls(secured: str) -> None:
    values = {options.SECURITY_ENABLED.key: secured}
    main = main_container(pod(values))
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        assert main[probe]["grpc"] == {"port": 6125}
    assert f"{options.HEALTH_PORT.key}=6125" in settings(values).arguments


def test_resources_follow_from_the_slots() -> None:
    values = {
        "taskmanager.numberOfTaskSlots": "2",
        "taskmanager.cpu.cores": "3",
        "taskmanager.memory.process.size": "4 gb",
        "kubernetes.taskmanager.memory.overhead": "256 mb",
        "kubernetes.taskmanager.memory.limit-factor": "1.5",
        "kubernetes.taskmanager.cpu.limit-factor": "2",
        "kubernetes.taskmanager.extended-resources": "nvidia.com/gpu=1",
    }
    assert main_container(pod(values))["resources"] == {
        "requests": {"cpu": "3000m", "memory": "4352Mi", "nvidia.com/gpu": "1"},
        "limits": {"cpu": "6000m", "memory": "6528Mi", "nvidia.com/gpu": "1"},
    }


def test_the_limit_on_pods_follows_from_the_slots() -> None:
    values = {"taskmanager.numberOfTaskSlots": "4", "slotmanager.number-of-slots.max": "11"}
    assert settings(values).pods_max == 2


def test_options_reach_the_pod() -> None:
    manifest = pod(
        {
            "kubernetes.container.image.pull-secrets": "registry",
            "kubernetes.container.image.pull-policy": "Always",
            "kubernetes.taskmanager.service-account": "worker",
            "kubernetes.taskmanager.node-selector": "zone:a",
            "kubernetes.taskmanager.tolerations": "key:gpu,operator:Exists;key:x,value:y",
            "kubernetes.taskmanager.labels": "team:data",
            "kubernetes.taskmanager.annotations": "note:it: works",
            "kubernetes.taskmanager.environment": "TZ=UTC",
            "kubernetes.taskmanager.environment.secrets": "s3",
            "kubernetes.secrets": "certificates:/etc/certificates",
        }
    )
    spec, main = manifest["spec"], main_container(manifest)
    assert spec["imagePullSecrets"] == [{"name": "registry"}]
    assert spec["serviceAccountName"] == "worker"
    assert spec["nodeSelector"] == {"zone": "a"}
    assert spec["tolerations"] == [
        {"key": "gpu", "operator": "Exists"},
        {"key": "x", "value": "y"},
    ]
    assert manifest["metadata"]["labels"]["team"] == "data"
    assert manifest["metadata"]["annotations"] == {"note": "it: works"}
    assert main["imagePullPolicy"] == "Always"
    assert {"name": "TZ", "value": "UTC"} in main["env"]
    assert main["envFrom"] == [{"secretRef": {"name": "s3"}}]
    assert {"name": "secret-0", "secret": {"secretName": "certificates"}} in spec["volumes"]


def test_secrets_are_not_arguments() -> None:
    arguments = main_container(pod({"s3.secret-key": "hidden", "parallelism.default": "3"}))["args"]
    assert "parallelism.default=3" in arguments
    assert not any("hidden" in argument or "s3." in argument for argument in arguments)


def test_task_executors_find_an_elected_leader() -> None:
    leases = {"high-availability.type": "kubernetes", "kubernetes.namespace": "data"}
    arguments = main_container(pod(leases))["args"]
    assert {"kubernetes.cluster-id=orders", "kubernetes.namespace=data"} <= set(arguments)
    service = {"kubernetes.resourcemanager.address": "orders-resourcemanager:6124"}
    arguments = main_container(pod(leases | service))["args"]
    assert arguments[:2] == ["--resource-manager", "orders-resourcemanager:6124"]
    assert "high-availability.type=none" in arguments, "they need no token"


def test_a_template_is_the_base_of_the_pod(tmp_path: Path) -> None:
    manifest = with_template(
        tmp_path,
        f"""
        metadata: {{labels: {{team: data, app: theirs}}}}
        spec:
          restartPolicy: Always
          priorityClassName: high
          securityContext: {{runAsUser: 5}}
          tolerations: [{{key: spot, operator: Exists}}]
          containers:
          - {{name: sidecar, image: proxy}}
          - name: {MAIN_CONTAINER}
            image: theirs
            env: [{{name: TZ, value: UTC}}, {{name: POD_IP, value: x}}]
            resources: {{requests: {{ephemeral-storage: 1Gi}}, limits: {{memory: 1Gi}}}}
            volumeMounts: [{{name: scratch, mountPath: /tmp}}]
          volumes: [{{name: scratch, emptyDir: {{}}}}]
        """,
    )
    spec, main = manifest["spec"], main_container(manifest)
    assert (spec["restartPolicy"], spec["priorityClassName"]) == ("Never", "high")
    assert (spec["securityContext"]["runAsUser"], spec["securityContext"]["runAsNonRoot"]) == (
        5,
        True,
    )
    assert manifest["metadata"]["labels"].items() >= {"team": "data", "app": "orders"}.items()
    assert [c["name"] for c in spec["containers"]] == ["sidecar", MAIN_CONTAINER]
    assert main["image"] == "firesteel:1", "the option is more specific"
    assert {"name": "TZ", "value": "UTC"} in main["env"]
    assert next(v for v in main["env"] if v["name"] == "POD_IP").keys() == {"name", "valueFrom"}
    assert main["resources"]["requests"]["ephemeral-storage"] == "1Gi"
    assert main["resources"]["limits"]["memory"] != "1Gi"
    assert [m["name"] for m in main["volumeMounts"] if m["mountPath"] == "/tmp"] == ["scratch"]


def test_the_image_of_the_template_is_used_without_the_option(tmp_path: Path) -> None:
    text = f"spec: {{containers: [{{name: {MAIN_CONTAINER}, image: theirs}}]}}"
    assert main_container(with_template(tmp_path, text, **{IMAGE: ""}))["image"] == "theirs"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (
            f"spec: {{containers: [{{name: {MAIN_CONTAINER}}}, {{name: {MAIN_CONTAINER}}}]}}",
            f"has 2 containers named {MAIN_CONTAINER}",
        ),
        ("kind: Deployment", "must be the manifest of a Pod, not of a Deployment"),
        ("[1]", "must be the manifest of a Pod"),
        ("a: [", "is not YAML"),
        ("spec: x", "has a spec that is not a mapping"),
        ("spec: {containers: {}}", None),
        ("spec: {containers: [x]}", "has spec.containers that is not a list of mappings"),
        ("spec: {containers: [{image: i}]}", "has a container without a name"),
        ("spec: {containers: [{name: sidecar}]}", "has the container sidecar without an image"),
        ("spec: {volumes: [{name: firesteel-tmp}]}", "has a volume named firesteel-tmp"),
    ],
)
def test_invalid_templates_are_clear_errors(tmp_path: Path, text: str, problem: str | None) -> None:
    if problem is None:
        with_template(tmp_path, text)
        return
    with pytest.raises(ConfigurationError, match=TEMPLATE) as raised:
        with_template(tmp_path, text)
    assert problem in str(raised.value)


def test_a_template_that_does_not_exist_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="cannot be read"):
        pod({TEMPLATE: str(tmp_path / "none.yaml")})


@pytest.mark.parametrize(
    ("key", "value", "problem"),
    [
        ("kubernetes.cluster-id", "", "is not set"),
        ("kubernetes.cluster-id", "a" * 46, "expected 1 to 45"),
        ("kubernetes.cluster-id", "Orders", "lower-case letters"),
        ("kubernetes.cluster-id", "7orders", "with a letter first"),
        ("kubernetes.cluster-id", "orders-", "no '-' at the end"),
        ("kubernetes.owner", "Secret/x", "expected KIND/NAME"),
        ("kubernetes.taskmanager.node-selector", "zone", "expected NAME:VALUE"),
        ("kubernetes.taskmanager.environment", "1X=2", "is not the name of a variable"),
        ("kubernetes.taskmanager.tolerations", "kee:x", "expected FIELD:VALUE"),
        ("kubernetes.taskmanager.extended-resources", "cpu=1", "follows from the slots"),
        ("kubernetes.taskmanager.extended-resources", "a/b=no", "a positive amount"),
        ("kubernetes.secrets", "s:etc", "an absolute path"),
        (IMAGE, "", "the pod template has no image"),
    ],
)
def test_bad_values_are_refused(key: str, value: str, problem: str) -> None:
    with pytest.raises(ConfigurationError, match=key) as raised:
        pod({key: value})
    assert problem in str(raised.value)
