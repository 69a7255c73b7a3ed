"""Assigns pods to nodes, by room for pods, CPU and memory."""

from __future__ import annotations

from decimal import Decimal

from tests.kubernetes.kinds import BY_NAME, Object
from tests.kubernetes.quantities import pod_resources, quantity
from tests.kubernetes.registry import Registry, key_of, now

_RESOURCES = ("cpu", "memory")


def schedule(registry: Registry) -> None:
    for pod in registry.store.all("Pod"):
        waiting = not pod["spec"].get("nodeName") and "deletionTimestamp" not in pod["metadata"]
        if waiting and pod["status"]["phase"] == "Pending":
            _schedule(registry, pod)


def _schedule(registry: Registry, pod: Object) -> None:
    nodes = registry.store.all("Node")
    reasons: dict[str, int] = {}
    fitting: list[tuple[int, str]] = []
    for node in nodes:
        name = node["metadata"]["name"]
        reason = _unfit(registry, node, pod)
        if reason:
            reasons[reason] = reasons.get(reason, 0) + 1
        else:
            fitting.append((len(_pods_on(registry, name)), name))
    if fitting:
        _bind(registry, pod, min(fitting)[1])
        return
    shown = ", ".join(f"{count} {reason}" for reason, count in sorted(reasons.items()))
    message = f"0/{len(nodes)} nodes are available: {shown or 'no nodes'}."
    known = pod["status"].get("conditions") or []
    if not any(c.get("message") == message for c in known):
        condition = _condition("False") | {"reason": "Unschedulable", "message": message}
        status = pod["status"] | {"conditions": [condition]}
        registry.set_status(BY_NAME["Pod"], pod, status)
        registry.event(pod, "FailedScheduling", message, warning=True)


def _unfit(registry: Registry, node: Object, pod: Object) -> str:
    if not _is_ready(node):
        return "node(s) had untolerated taint {node.kubernetes.io/not-ready: }"
    if (node.get("spec") or {}).get("unschedulable"):
        return "node(s) were unschedulable"
    wanted_labels = pod["spec"].get("nodeSelector") or {}
    labels = node["metadata"].get("labels") or {}
    if any(labels.get(key) != value for key, value in wanted_labels.items()):
        return "node(s) didn't match Pod's node affinity/selector"
    room = (node.get("status") or {}).get("allocatable") or {}
    pods = _pods_on(registry, node["metadata"]["name"])
    if "pods" in room and len(pods) >= quantity(room["pods"]):
        return "Too many pods"
    wanted = pod_resources(pod, "requests")
    for resource in _RESOURCES:
        used = sum(
            (pod_resources(p, "requests").get(resource, Decimal(0)) for p in pods), Decimal(0)
        )
        if resource in room and used + wanted.get(resource, Decimal(0)) > quantity(room[resource]):
            return f"Insufficient {resource}"
    return ""


def _pods_on(registry: Registry, node: str) -> list[Object]:
    return [
        pod
        for pod in registry.store.all("Pod")
        if pod["spec"].get("nodeName") == node
        and pod["status"]["phase"] not in ("Succeeded", "Failed")
    ]


def _is_ready(node: Object) -> bool:
    conditions = (node.get("status") or {}).get("conditions") or ()
    return all(c["status"] == "True" for c in conditions if c["type"] == "Ready")


def _bind(registry: Registry, pod: Object, node: str) -> None:
    status = pod["status"] | {"conditions": [_condition("True")]}
    bound = pod | {"spec": pod["spec"] | {"nodeName": node}, "status": status}
    key = key_of(BY_NAME["Pod"], pod)
    current = registry.store.get(key)
    if current is pod:
        registry.store.put(key, bound)
        message = f"Successfully assigned {key.namespace}/{key.name} to {node}"
        registry.event(bound | {"metadata": current["metadata"]}, "Scheduled", message)


def _condition(status: str) -> Object:
    return {"type": "PodScheduled", "status": status, "lastTransitionTime": now()}
