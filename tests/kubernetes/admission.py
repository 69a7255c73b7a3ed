"""Defaults, validation and immutability of objects, as far as Firesteel's objects need them."""

from __future__ import annotations

import base64
import copy
import re
from collections.abc import Callable
from typing import Any

from tests.kubernetes.failure import invalid
from tests.kubernetes.kinds import Kind, Object
from tests.kubernetes.quantities import quantity
from tests.kubernetes.selection import selects

Causes = list[tuple[str, str]]

_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")
_SERVICE = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")
_SUBDOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_LABEL_NAME = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")
_ENV_NAME = re.compile(r"[-._a-zA-Z][-._a-zA-Z0-9]*")
_KEY = re.compile(r"[-._a-zA-Z0-9]{1,253}")
_MAX_DATA_BYTES = 1024 * 1024
_FREE_NAMES = frozenset({"Role", "RoleBinding", "ClusterRole", "ClusterRoleBinding"})
_IMMUTABLE_METADATA = ("uid", "creationTimestamp", "name", "namespace")


def default(kind: Kind, value: Object) -> None:
    """Sets what the object omits."""
    spec = value.setdefault("spec", {}) if kind.kind in _DEFAULTS else {}
    if kind.kind in _DEFAULTS:
        _DEFAULTS[kind.kind](spec, value)


def validate(kind: Kind, value: Object, before: Object | None) -> None:
    """Raises Failure. `before` is the object that an update replaces."""
    causes: Causes = []
    _validate_metadata(kind, value, causes)
    if kind.kind in _VALIDATE:
        _VALIDATE[kind.kind](value, causes)
    if before is not None:
        _check_immutable(kind, value, before, causes)
    if causes:
        raise invalid(kind.kind, value["metadata"].get("name", ""), causes)


# ---- defaults


def _default_pod_spec(spec: Object) -> None:
    spec.setdefault("restartPolicy", "Always")
    spec.setdefault("terminationGracePeriodSeconds", 30)
    spec.setdefault("dnsPolicy", "ClusterFirst")
    spec.setdefault("schedulerName", "default-scheduler")
    spec.setdefault("securityContext", {})
    for container in (*(spec.get("containers") or ()), *(spec.get("initContainers") or ())):
        if isinstance(container, dict):
            _default_container(container)


def _default_container(container: Object) -> None:
    container.setdefault("imagePullPolicy", "IfNotPresent")
    container.setdefault("terminationMessagePath", "/dev/termination-log")
    container.setdefault("terminationMessagePolicy", "File")
    resources = container.setdefault("resources", {})
    if resources.get("limits"):
        resources["requests"] = resources["limits"] | (resources.get("requests") or {})
    for port in container.get("ports") or ():
        port.setdefault("protocol", "TCP")
    for name in ("readinessProbe", "livenessProbe", "startupProbe"):
        if probe := container.get(name):
            for field, value in (
                *(("timeoutSeconds", 1), ("periodSeconds", 10)),
                *(("successThreshold", 1), ("failureThreshold", 3)),
            ):
                probe.setdefault(field, value)


def _default_pod(spec: Object, value: Object) -> None:
    _default_pod_spec(spec)
    spec.setdefault("serviceAccountName", "default")
    spec.setdefault("enableServiceLinks", True)
    value.setdefault("status", {}).setdefault("phase", "Pending")
    value["status"].setdefault("qosClass", "Burstable")


def _default_deployment(spec: Object, value: Object) -> None:
    spec.setdefault("replicas", 1)
    strategy = spec.setdefault("strategy", {"type": "RollingUpdate"})
    if strategy.get("type") == "RollingUpdate":
        strategy.setdefault("rollingUpdate", {"maxSurge": "25%", "maxUnavailable": "25%"})
    spec.setdefault("revisionHistoryLimit", 10)
    spec.setdefault("progressDeadlineSeconds", 600)
    _default_pod_spec((spec.get("template") or {}).get("spec") or {})


def _default_replica_set(spec: Object, value: Object) -> None:
    spec.setdefault("replicas", 1)
    _default_pod_spec((spec.get("template") or {}).get("spec") or {})


def _default_service(spec: Object, value: Object) -> None:
    spec.setdefault("type", "ClusterIP")
    spec.setdefault("sessionAffinity", "None")
    for port in spec.get("ports") or ():
        port.setdefault("protocol", "TCP")
        port.setdefault("targetPort", port.get("port"))


_DEFAULTS: dict[str, Callable[[Object, Object], None]] = {
    "Deployment": _default_deployment,
    "Pod": _default_pod,
    "ReplicaSet": _default_replica_set,
    "Service": _default_service,
}

# ---- validation


def _validate_metadata(kind: Kind, value: Object, causes: Causes) -> None:
    metadata = value["metadata"]
    name = metadata.get("name", "")
    if not name:
        causes.append(("metadata.name", "Required value: name or generateName is required"))
    elif kind.kind in _FREE_NAMES:
        if "/" in name or "%" in name:
            causes.append(("metadata.name", f"Invalid value: {name!r}: may not contain '/' or '%'"))
    else:
        pattern, limit, rule = _name_rule(kind)
        if len(name) > limit:
            causes.append(
                (
                    "metadata.name",
                    f'Invalid value: "{name}": must be no more than {limit} characters',
                )
            )
        if not pattern.fullmatch(name):
            causes.append(("metadata.name", f'Invalid value: "{name}": {rule}'))
    for field in ("labels", "annotations"):
        for key, text in (metadata.get(field) or {}).items():
            if not isinstance(text, str):
                causes.append((f"metadata.{field}", f"Invalid value: {key}: must be a string"))
            elif field == "labels":
                _validate_label(f"metadata.{field}", key, text, causes)
    for i, owner in enumerate(metadata.get("ownerReferences") or ()):
        for field in ("apiVersion", "kind", "name", "uid"):
            if not owner.get(field):
                causes.append((f"metadata.ownerReferences[{i}].{field}", "Required value"))


def _name_rule(kind: Kind) -> tuple[re.Pattern[str], int, str]:
    if kind.kind == "Service":
        return _SERVICE, 63, "a DNS-1035 label must start with an alphabetic character"
    if kind.kind == "Namespace":
        return (
            _LABEL,
            63,
            "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-'",
        )
    rule = "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.'"
    return _SUBDOMAIN, 253, rule


def _validate_label(field: str, key: str, text: str, causes: Causes) -> None:
    prefix, slash, name = key.rpartition("/")
    if slash and not (_SUBDOMAIN.fullmatch(prefix) and len(prefix) <= 253):
        causes.append((field, f'Invalid value: "{key}": prefix part must be a DNS subdomain'))
    if not _LABEL_NAME.fullmatch(name):
        causes.append((field, f'Invalid value: "{key}": name part must be at most 63 characters'))
    if text and not _LABEL_NAME.fullmatch(text):
        causes.append(
            (
                field,
                f'Invalid value: "{text}": a valid label must be an empty string or consist of'
                " alphanumeric characters, '-', '_' or '.', and at most 63 of them",
            )
        )


def _validate_pod(value: Object, causes: Causes) -> None:
    _validate_pod_spec(value["spec"], "spec", causes)


def _validate_pod_spec(spec: Object, field: str, causes: Causes) -> None:
    containers = spec.get("containers") or []
    if not containers:
        causes.append((f"{field}.containers", "Required value"))
    if spec.get("restartPolicy") not in ("Always", "OnFailure", "Never"):
        causes.append(
            (
                f"{field}.restartPolicy",
                f'Unsupported value: "{spec.get("restartPolicy")}": supported values: "Always",'
                ' "OnFailure", "Never"',
            )
        )
    volumes = {volume.get("name") for volume in spec.get("volumes") or ()}
    names: set[str] = set()
    for i, container in enumerate(containers):
        its = f"{field}.containers[{i}]"
        name = container.get("name", "")
        if not name:
            causes.append((f"{its}.name", "Required value"))
        elif not _LABEL.fullmatch(name) or len(name) > 63:
            causes.append((f"{its}.name", f'Invalid value: "{name}": a lowercase RFC 1123 label'))
        if name in names:
            causes.append((f"{its}.name", f'Duplicate value: "{name}"'))
        names.add(name)
        if not container.get("image"):
            causes.append((f"{its}.image", "Required value"))
        for j, mount in enumerate(container.get("volumeMounts") or ()):
            if mount.get("name") not in volumes:
                causes.append(
                    (f"{its}.volumeMounts[{j}].name", f'Not found: "{mount.get("name")}"')
                )
        _validate_environment(container, its, causes)
        _validate_resources(container, its, causes)


def _validate_environment(container: Object, field: str, causes: Causes) -> None:
    for i, variable in enumerate(container.get("env") or ()):
        name = variable.get("name", "")
        if not _ENV_NAME.fullmatch(name):
            causes.append((f"{field}.env[{i}].name", f'Invalid value: "{name}"'))
        if variable.get("value") is not None and not isinstance(variable["value"], str):
            causes.append((f"{field}.env[{i}].value", "Invalid value: must be a string"))
        if variable.get("value") and variable.get("valueFrom"):
            causes.append(
                (
                    f"{field}.env[{i}].valueFrom",
                    "Invalid value: may not be specified when `value` is not empty",
                )
            )


def _validate_resources(container: Object, field: str, causes: Causes) -> None:
    resources = container.get("resources") or {}
    limits, requests = resources.get("limits") or {}, resources.get("requests") or {}
    try:
        for name, value in requests.items():
            if name in limits and quantity(value) > quantity(limits[name]):
                causes.append(
                    (
                        f"{field}.resources.requests",
                        f'Invalid value: "{value}": must be less than or equal to {name} limit of {limits[name]}',
                    )
                )
        for value in limits.values():
            quantity(value)
    except ValueError as error:
        causes.append((f"{field}.resources", f"Invalid value: {error}"))


def _validate_workload(value: Object, causes: Causes) -> None:
    spec = value["spec"]
    selector, template = spec.get("selector"), spec.get("template") or {}
    labels = (template.get("metadata") or {}).get("labels") or {}
    if not selector or not (selector.get("matchLabels") or selector.get("matchExpressions")):
        causes.append(("spec.selector", "Required value"))
    elif not selects(selector, labels):
        causes.append(
            (
                "spec.template.metadata.labels",
                f"Invalid value: {labels}: `selector` does not match template `labels`",
            )
        )
    if not isinstance(spec.get("replicas"), int) or spec["replicas"] < 0:
        causes.append(("spec.replicas", "Invalid value: must be greater than or equal to 0"))
    pod_spec = template.get("spec") or {}
    _validate_pod_spec(pod_spec, "spec.template.spec", causes)
    if pod_spec.get("restartPolicy") in ("OnFailure", "Never"):
        causes.append(
            (
                "spec.template.spec.restartPolicy",
                f'Unsupported value: "{pod_spec["restartPolicy"]}": supported values: "Always"',
            )
        )


def _validate_service(value: Object, causes: Causes) -> None:
    spec = value["spec"]
    ports = spec.get("ports") or []
    if not ports and spec.get("clusterIP") != "None" and spec["type"] != "ExternalName":
        causes.append(("spec.ports", "Required value"))
    for i, port in enumerate(ports):
        if not isinstance(port.get("port"), int) or not 0 < port["port"] < 65536:
            causes.append(
                (f"spec.ports[{i}].port", "Invalid value: must be between 1 and 65535, inclusive")
            )
        if len(ports) > 1 and not port.get("name"):
            causes.append((f"spec.ports[{i}].name", "Required value"))


def _validate_data(value: Object, causes: Causes) -> None:
    size = 0
    for field in ("data", "binaryData", "stringData"):
        for key, content in (value.get(field) or {}).items():
            if not _KEY.fullmatch(key):
                causes.append((f"{field}[{key}]", f'Invalid value: "{key}": a valid config key'))
            size += len(str(content).encode())
    if size > _MAX_DATA_BYTES:
        causes.append(("", f"Too long: may not be more than {_MAX_DATA_BYTES} bytes"))


def _validate_secret(value: Object, causes: Causes) -> None:
    _validate_data(value, causes)
    for key, text in (value.get("data") or {}).items():
        try:
            base64.b64decode(text, validate=True)
        except (ValueError, TypeError):
            causes.append((f"data[{key}]", "Invalid value: illegal base64 data"))


def _validate_lease(value: Object, causes: Causes) -> None:
    spec = value.get("spec") or {}
    for field, least in (("leaseDurationSeconds", 1), ("leaseTransitions", 0)):
        number = spec.get(field)
        if number is not None and (not isinstance(number, int) or number < least):
            causes.append((f"spec.{field}", f"Invalid value: {number}: must be at least {least}"))
    for field in ("acquireTime", "renewTime"):
        if spec.get(field) and not _MICRO_TIME.fullmatch(spec[field]):
            causes.append(
                (
                    f"spec.{field}",
                    f"Invalid value: {spec[field]}: must be RFC 3339 with microseconds",
                )
            )


_MICRO_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}(Z|[+-]\d\d:\d\d)")


def _validate_budget(value: Object, causes: Causes) -> None:
    spec = value.get("spec") or {}
    if ("minAvailable" in spec) and ("maxUnavailable" in spec):
        causes.append(("spec", "Invalid value: minAvailable and maxUnavailable cannot be both set"))


def _validate_binding(value: Object, causes: Causes) -> None:
    for field in ("apiGroup", "kind", "name"):
        if not (value.get("roleRef") or {}).get(field):
            causes.append((f"roleRef.{field}", "Required value"))


_VALIDATE: dict[str, Callable[[Object, Causes], None]] = {
    "ClusterRoleBinding": _validate_binding,
    "ConfigMap": _validate_data,
    "Deployment": _validate_workload,
    "Lease": _validate_lease,
    "Pod": _validate_pod,
    "PodDisruptionBudget": _validate_budget,
    "ReplicaSet": _validate_workload,
    "RoleBinding": _validate_binding,
    "Secret": _validate_secret,
    "Service": _validate_service,
}

# ---- immutability


def _check_immutable(kind: Kind, value: Object, before: Object, causes: Causes) -> None:
    for field in _IMMUTABLE_METADATA:
        if value["metadata"].get(field) != before["metadata"].get(field):
            causes.append((f"metadata.{field}", "Invalid value: field is immutable"))
    match kind.kind:
        case "Pod":
            if _fixed_part(value["spec"]) != _fixed_part(before["spec"]):
                causes.append(
                    (
                        "spec",
                        "Forbidden: pod updates may not change fields other than"
                        " `spec.containers[*].image`, `spec.activeDeadlineSeconds`,"
                        " `spec.tolerations`, `spec.terminationGracePeriodSeconds`",
                    )
                )
        case "Deployment" | "ReplicaSet":
            _same(value, before, "spec.selector", causes)
        case "ConfigMap" | "Secret" if before.get("immutable"):
            for field in ("data", "binaryData", "immutable"):
                if value.get(field) != before.get(field):
                    causes.append((field, "Forbidden: field is immutable when `immutable` is set"))
        case "Service":
            if before["spec"].get("clusterIP"):
                _same(value, before, "spec.clusterIP", causes)
        case "RoleBinding" | "ClusterRoleBinding":
            _same(value, before, "roleRef", causes)
    if kind.kind == "Secret":
        _same(value, before, "type", causes)


def _same(value: Object, before: Object, path: str, causes: Causes) -> None:
    was: Any = before
    its: Any = value
    for part in path.split("."):
        was, its = (was or {}).get(part), (its or {}).get(part)
    if was != its:
        causes.append((path, f"Invalid value: {its}: field is immutable"))


def _fixed_part(spec: Object) -> Object:
    fixed = copy.deepcopy(spec)
    for field in ("activeDeadlineSeconds", "tolerations", "terminationGracePeriodSeconds"):
        fixed.pop(field, None)
    # Only the scheduler sets it, once.
    fixed.pop("nodeName", None)
    for container in fixed.get("containers") or ():
        container.pop("image", None)
    return fixed
