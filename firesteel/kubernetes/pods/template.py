"""Builds the manifests of pods from the configuration and the user's pod template.

The template comes first. Firesteel sets the name, the labels that identify the pod, the command,
the resources and the restart policy; adds variables, volumes, ports, tolerations and secrets; and
sets defaults for the security context, the probes and the grace period where the template has none.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from firesteel.common.config import ConfigurationError, options
from firesteel.kubernetes.pods.labels import MAIN_CONTAINER, labels_of
from firesteel.kubernetes.pods.settings import HEALTH_PORT, PodSettings
from firesteel.kubernetes.resources import Object

HOME = "/var/lib/firesteel"
TEMPORARY = "/tmp"
_WRITABLE = {"firesteel-home": HOME, "firesteel-tmp": TEMPORARY}
_USER = 10001  # of deploy/Dockerfile; any other than root will do

PodTemplate = dict[str, Any]


def pod_of(settings: PodSettings) -> Object:
    """Returns the manifest of a pod without a name. Raises ConfigurationError if the template
    cannot be used.
    """
    path = settings.template
    template = read_template(TemplateFile(settings.template_key, path)) if path is not None else {}
    metadata = template.get("metadata") or {}
    labels = (metadata.get("labels") or {}) | dict(settings.labels)
    found: Object = {"labels": labels | labels_of(settings.cluster_id, settings.component)}
    if annotations := (metadata.get("annotations") or {}) | dict(settings.annotations):
        found["annotations"] = annotations
    spec = _spec(dict(template.get("spec") or {}), settings)
    return {"apiVersion": "v1", "kind": "Pod", "metadata": found, "spec": spec}


def main_container(pod: Object) -> Object:
    main: Object = next(c for c in pod["spec"]["containers"] if c["name"] == MAIN_CONTAINER)
    return main


def owner_reference(owner: Object) -> Object:
    """Returns the reference for dependents of this object."""
    return {
        "apiVersion": owner["apiVersion"],
        "kind": owner["kind"],
        "name": owner["metadata"]["name"],
        "uid": owner["metadata"]["uid"],
        "controller": True,
        "blockOwnerDeletion": False,
    }


class TemplateFile(NamedTuple):
    """A template, and the option that names it."""

    key: str
    path: Path

    def wrong(self, problem: str) -> ConfigurationError:
        return ConfigurationError(f"{self.key}: {self.path} {problem}")


# ------------------------------------------------------------ the template


def read_template(where: TemplateFile) -> PodTemplate:
    """Returns the template, with a `spec` that has `containers`."""
    try:
        content = yaml.safe_load(where.path.read_text(encoding="utf-8"))
    except OSError as error:
        raise where.wrong(f"cannot be read: {error.strerror}") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise where.wrong(f"is not YAML: {error}") from None
    if not isinstance(content, dict):
        raise where.wrong("must be the manifest of a Pod")
    if (kind := content.get("kind", "Pod")) != "Pod":
        raise where.wrong(f"must be the manifest of a Pod, not of a {kind}")
    if (version := content.get("apiVersion", "v1")) != "v1":
        raise where.wrong(f"has the apiVersion {version}, but Pods have v1")
    for name, kinds in (("metadata", dict), ("spec", dict)):
        content[name] = content.get(name) or {}
        if not isinstance(content[name], kinds):
            raise where.wrong(f"has a {name} that is not a mapping")
    for name in ("containers", "initContainers", "volumes", "tolerations", "imagePullSecrets"):
        items = content["spec"].setdefault(name, []) or []
        content["spec"][name] = items
        if not isinstance(items, list) or not all(isinstance(item, dict) for item in items):
            raise where.wrong(f"has spec.{name} that is not a list of mappings")
    containers = content["spec"]["containers"]
    names = Counter(
        str(c["name"]) for c in (*content["spec"]["initContainers"], *containers) if c.get("name")
    )
    for name, count in names.items():
        if count > 1:
            raise where.wrong(f"has {count} containers named {name}; one is allowed")
    for container in containers:
        if not container.get("name"):
            raise where.wrong("has a container without a name")
        if container["name"] != MAIN_CONTAINER and not container.get("image"):
            raise where.wrong(f"has the container {container['name']} without an image")
    return content


# ------------------------------------------------------------ the pod


def _spec(spec: Object, settings: PodSettings) -> Object:
    """Completes the `spec` of the template."""
    containers = list(spec.get("containers") or ())
    if not any(c.get("name") == MAIN_CONTAINER for c in containers):
        containers.insert(0, {"name": MAIN_CONTAINER})
    spec["containers"] = [
        _main_container(c, settings) if c["name"] == MAIN_CONTAINER else c for c in containers
    ]
    spec["restartPolicy"] = settings.restart_policy
    spec.setdefault("terminationGracePeriodSeconds", settings.grace_s)
    spec.setdefault("automountServiceAccountToken", settings.uses_api)
    spec.setdefault("enableServiceLinks", False)
    if settings.service_account:
        spec["serviceAccountName"] = settings.service_account
    if selector := (spec.get("nodeSelector") or {}) | dict(settings.node_selector):
        spec["nodeSelector"] = selector
    _extend(spec, "tolerations", [dict(each) for each in settings.tolerations])
    _extend(spec, "imagePullSecrets", [{"name": name} for name in settings.pull_secrets])
    volumes: list[Object] = [{"name": name, "emptyDir": {}} for name in _WRITABLE]
    volumes += [
        {"name": f"secret-{number}", "secret": {"secretName": name}}
        for number, name in enumerate(settings.secrets)
    ]
    volumes += [*settings.security.volumes, *settings.volumes]
    taken = {volume.get("name") for volume in spec.get("volumes") or ()}
    for volume in volumes:
        if volume["name"] in taken:
            raise ConfigurationError(
                f"{settings.template_key}: the template has a volume named"
                f" {volume['name']}; Firesteel uses this name"
            )
    _extend(spec, "volumes", volumes)
    spec["securityContext"] = {
        "runAsNonRoot": True,
        "runAsUser": _USER,
        "runAsGroup": _USER,
        "fsGroup": _USER,
        "fsGroupChangePolicy": "OnRootMismatch",
        "seccompProfile": {"type": "RuntimeDefault"},
    } | (spec.get("securityContext") or {})
    return {name: value for name, value in spec.items() if value != []}


def _main_container(template: Object, settings: PodSettings) -> Object:
    container = dict(template)
    if settings.image:
        container["image"] = settings.image
    if not container.get("image"):
        raise ConfigurationError(
            f"{options.KUBERNETES_IMAGE.key} is not set, and the pod template has no image for"
            f" {MAIN_CONTAINER}"
        )
    container.setdefault("imagePullPolicy", settings.pull_policy)
    container.setdefault("command", list(settings.command))
    variables: list[Object] = [
        _field("POD_IP", "status.podIP"),
        _field("POD_NAME", "metadata.name"),
        _field("POD_NODE", "spec.nodeName"),
    ]
    variables += [{"name": name, "value": value} for name, value in settings.environment.items()]
    variables += settings.security.variables
    given = {variable["name"] for variable in variables}
    kept = [v for v in container.get("env") or () if v.get("name") not in given]
    if not any(v.get("name") == "HOME" for v in (*kept, *variables)):
        variables.append({"name": "HOME", "value": HOME})  # the root file system is read-only
    container["env"] = [*variables, *kept]
    _extend(
        container,
        "envFrom",
        [{"secretRef": {"name": name}} for name in settings.environment_secrets],
    )
    resources = container.get("resources") or {}
    container["resources"] = resources | {
        "requests": (resources.get("requests") or {}) | dict(settings.requests),
        "limits": (resources.get("limits") or {}) | dict(settings.limits),
    }
    ports = [{"name": name, "containerPort": port} for name, port in settings.ports.items()]
    _extend(container, "ports", ports)
    mounts: list[Object] = [
        {"name": name, "mountPath": path}
        for name, path in _WRITABLE.items()
        if all(mount.get("mountPath") != path for mount in container.get("volumeMounts") or ())
    ]
    mounts += [
        {"name": f"secret-{number}", "mountPath": directory, "readOnly": True}
        for number, directory in enumerate(settings.secrets.values())
    ]
    mounts += [*settings.security.mounts, *settings.mounts]
    _extend(container, "volumeMounts", mounts)
    container["securityContext"] = {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    } | (container.get("securityContext") or {})
    container.setdefault("terminationMessagePolicy", "FallbackToLogsOnError")
    probe: Object = {"grpc": {"port": HEALTH_PORT}}
    container.setdefault("startupProbe", probe | {"periodSeconds": 2, "failureThreshold": 60})
    container.setdefault("readinessProbe", probe | {"periodSeconds": 5, "timeoutSeconds": 5})
    container.setdefault(
        "livenessProbe",
        probe | {"periodSeconds": 10, "timeoutSeconds": 10, "failureThreshold": 6},
    )
    return container


def _field(name: str, path: str) -> Object:
    return {"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}}


def _extend(parent: Object, name: str, items: Sequence[Object]) -> None:
    if items:
        parent[name] = [*(parent.get(name) or ()), *items]
