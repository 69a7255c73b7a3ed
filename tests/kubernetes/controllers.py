"""Garbage collection, namespaces, Deployments, ReplicaSets, PodDisruptionBudgets and quotas.

Each controller is a function that looks at all objects and makes the next step. They run after
every change until nothing changes.
"""

from __future__ import annotations

import copy
import hashlib
import json
from typing import Any

from tests.kubernetes.failure import Failure
from tests.kubernetes.kinds import BY_NAME, Object
from tests.kubernetes.registry import FOREGROUND, ORPHAN, Registry, key_of, now, quota_usage
from tests.kubernetes.selection import selects

DEPLOYMENT, REPLICA_SET, POD = (BY_NAME[n] for n in ("Deployment", "ReplicaSet", "Pod"))
HASH = "pod-template-hash"


def collect_garbage(registry: Registry) -> None:
    """Deletes objects whose owners are gone, and completes deletions that wait."""
    items = registry.store.items()
    uids = {found["metadata"]["uid"] for _, found in items}
    for key, found in items:
        metadata = found["metadata"]
        owners = metadata.get("ownerReferences") or []
        orphaned = owners and not any(owner["uid"] in uids for owner in owners)
        if orphaned and "deletionTimestamp" not in metadata:
            _delete(registry, found)
        finalizers = metadata.get("finalizers") or []
        if "deletionTimestamp" not in metadata:
            continue
        owned = [
            each
            for _, each in items
            for owner in each["metadata"].get("ownerReferences") or ()
            if owner["uid"] == metadata["uid"]
        ]
        if FOREGROUND in finalizers:
            blocking = [each for each in owned if _blocks(each, metadata["uid"])]
            for each in owned:
                if "deletionTimestamp" not in each["metadata"]:
                    _delete(registry, each, policy="Foreground")
            if not blocking:
                _finalize(registry, key.kind, found, FOREGROUND)
        elif ORPHAN in finalizers:
            for each in owned:
                _disown(registry, each, metadata["uid"])
            _finalize(registry, key.kind, found, ORPHAN)


def empty_namespaces(registry: Registry) -> None:
    for namespace in registry.store.all("Namespace"):
        if "deletionTimestamp" not in namespace["metadata"]:
            continue
        name = namespace["metadata"]["name"]
        inside = [found for key, found in registry.store.items() if key.namespace == name]
        for each in inside:
            if "deletionTimestamp" not in each["metadata"]:
                _delete(registry, each)
        if not inside:
            registry.store.remove(key_of(BY_NAME["Namespace"], namespace))


def complete_namespaces(registry: Registry) -> None:
    """Creates what every namespace has."""
    for namespace in registry.store.all("Namespace"):
        if "deletionTimestamp" in namespace["metadata"]:
            continue
        name = namespace["metadata"]["name"]
        accounts = registry.store.all("ServiceAccount", name)
        if not any(a["metadata"]["name"] == "default" for a in accounts):
            manifest: Object = {"metadata": {"name": "default"}}
            registry.create(BY_NAME["ServiceAccount"], name, manifest)


def run_deployments(registry: Registry) -> None:
    for deployment in registry.store.all(DEPLOYMENT):
        if "deletionTimestamp" not in deployment["metadata"]:
            _run_deployment(registry, deployment)


def run_replica_sets(registry: Registry) -> None:
    for replica_set in registry.store.all(REPLICA_SET):
        if "deletionTimestamp" not in replica_set["metadata"]:
            _run_replica_set(registry, replica_set)


def update_budgets(registry: Registry) -> None:
    for budget in registry.store.all("PodDisruptionBudget"):
        pods, healthy = budget_pods(registry, budget)
        wanted = _wanted_healthy(budget.get("spec") or {}, len(pods))
        status = {
            "currentHealthy": len(healthy),
            "desiredHealthy": wanted,
            "disruptionsAllowed": max(len(healthy) - wanted, 0),
            "expectedPods": len(pods),
            "observedGeneration": budget["metadata"]["generation"],
        }
        registry.set_status(BY_NAME["PodDisruptionBudget"], budget, status)


def update_quotas(registry: Registry) -> None:
    for quota in registry.store.all("ResourceQuota"):
        hard = (quota.get("spec") or {}).get("hard") or {}
        used = quota_usage(registry.store, quota["metadata"]["namespace"])
        status = {"hard": hard, "used": {name: f"{used.get(name, 0):f}" for name in hard}}
        registry.set_status(BY_NAME["ResourceQuota"], quota, status)


CONTROLLERS = (
    complete_namespaces,
    collect_garbage,
    empty_namespaces,
    run_deployments,
    run_replica_sets,
    update_budgets,
    update_quotas,
)

# ---- garbage


def _blocks(found: Object, uid: str) -> bool:
    owners = found["metadata"].get("ownerReferences") or ()
    return any(o["uid"] == uid and o.get("blockOwnerDeletion") for o in owners)


def _delete(registry: Registry, found: Object, *, policy: str = "Background") -> None:
    metadata = found["metadata"]
    options = {"preconditions": {"uid": metadata["uid"]}, "propagationPolicy": policy}
    kind = BY_NAME[found["kind"]]
    try:
        registry.delete(kind, metadata.get("namespace", ""), metadata["name"], options)
    except Failure as failure:
        if failure.code not in (404, 409):
            raise


def _finalize(registry: Registry, kind: str, found: Object, finalizer: str) -> None:
    rest = [each for each in found["metadata"]["finalizers"] if each != finalizer]
    key = key_of(BY_NAME[kind], found)
    current = registry.store.get(key)
    if current is None or current["metadata"]["uid"] != found["metadata"]["uid"]:
        return
    if rest or kind == "Pod":
        metadata = {k: v for k, v in current["metadata"].items() if k != "finalizers"}
        metadata |= {"finalizers": rest} if rest else {}
        registry.store.put(key, current | {"metadata": metadata})
    else:
        registry.store.remove(key)


def _disown(registry: Registry, found: Object, uid: str) -> None:
    key = key_of(BY_NAME[found["kind"]], found)
    current = registry.store.get(key)
    if current is None:
        return
    owners = [o for o in current["metadata"].get("ownerReferences") or () if o["uid"] != uid]
    metadata = {k: v for k, v in current["metadata"].items() if k != "ownerReferences"}
    metadata |= {"ownerReferences": owners} if owners else {}
    registry.store.put(key, current | {"metadata": metadata})


# ---- workloads


def _run_deployment(registry: Registry, deployment: Object) -> None:
    metadata, spec = deployment["metadata"], deployment["spec"]
    template = json.dumps(spec["template"], sort_keys=True).encode()
    current = hashlib.sha256(template).hexdigest()[:10]
    owned = _owned(registry, "ReplicaSet", metadata)
    new = next((rs for rs in owned if rs["metadata"]["labels"].get(HASH) == current), None)
    old = [rs for rs in owned if rs is not new]
    recreate = spec["strategy"].get("type") == "Recreate"
    old_pods = [pod for rs in old for pod in _owned(registry, "Pod", rs["metadata"])]
    # maxUnavailable is 0: an earlier pod ends when a new one is ready.
    ready = _ready(registry, new) if new is not None else 0
    surplus = 0 if recreate else max(spec["replicas"] - ready, 0)
    for replica_set in old:
        if recreate or new is not None:
            _scale(registry, replica_set, min(replica_set["spec"]["replicas"], surplus))
    if not (recreate and old_pods):
        if new is None:
            new = _create_replica_set(registry, deployment, current)
        else:
            _scale(registry, new, spec["replicas"])
    _update_deployment_status(registry, deployment, new, old)


def _create_replica_set(
    registry: Registry, deployment: Object, template_hash: str
) -> Object | None:
    metadata, spec = deployment["metadata"], deployment["spec"]
    template = copy.deepcopy(spec["template"])
    labels = {**template["metadata"]["labels"], HASH: template_hash}
    template["metadata"]["labels"] = labels
    manifest: Object = {
        "metadata": {
            "name": f"{metadata['name']}-{template_hash}",
            "labels": labels,
            "ownerReferences": [_reference(deployment)],
        },
        "spec": {
            "replicas": spec["replicas"],
            "selector": {"matchLabels": labels},
            "template": template,
        },
    }
    return registry.create(REPLICA_SET, metadata["namespace"], manifest)


def _update_deployment_status(
    registry: Registry, deployment: Object, new: Object | None, old: list[Object]
) -> None:
    spec = deployment["spec"]
    sets = [*old, *([new] if new else [])]
    ready = sum(_ready(registry, each) for each in sets)
    replicas = sum(len(_active(registry, each)) for each in sets)
    updated = len(_active(registry, new)) if new else 0
    problem = next(
        (c for rs in sets for c in (rs.get("status") or {}).get("conditions") or ()), None
    )
    available = ready >= spec["replicas"]
    complete = available and updated == spec["replicas"] == replicas
    conditions = [
        _condition(
            deployment,
            "Available",
            available,
            "MinimumReplicasAvailable" if available else "MinimumReplicasUnavailable",
        ),
        _condition(
            deployment,
            "Progressing",
            True,
            "NewReplicaSetAvailable" if complete else "ReplicaSetUpdated",
        ),
    ]
    if problem is not None:
        conditions.append(problem)
    status = {
        "observedGeneration": deployment["metadata"]["generation"],
        "replicas": replicas,
        "updatedReplicas": updated,
        "readyReplicas": ready,
        "availableReplicas": ready,
        "unavailableReplicas": max(spec["replicas"] - ready, 0),
        "conditions": conditions,
    }
    registry.set_status(DEPLOYMENT, deployment, {k: v for k, v in status.items() if v != 0})


def _run_replica_set(registry: Registry, replica_set: Object) -> None:
    spec = replica_set["spec"]
    active = _active(registry, replica_set)
    failing = [
        c
        for c in (replica_set.get("status") or {}).get("conditions") or ()
        if c["type"] == "ReplicaFailure"
    ]
    failure: Failure | None = None
    for _ in range(spec["replicas"] - len(active)):
        try:
            _create_pod(registry, replica_set)
        except Failure as refused:
            failure = refused
            if failing:  # the message differs in the name of the pod
                break
            registry.event(replica_set, "FailedCreate", refused.message, warning=True)
            break
    surplus = sorted(active, key=lambda pod: (_ready_pod(pod), _deletion_cost(pod)))[
        : max(len(active) - spec["replicas"], 0)
    ]
    for pod in surplus:
        _delete(registry, pod)
    active = _active(registry, replica_set)
    status: Object = {
        "observedGeneration": replica_set["metadata"]["generation"],
        "replicas": len(active),
    }
    if ready := sum(map(_ready_pod, active)):
        status |= {"readyReplicas": ready, "availableReplicas": ready}
    if failure is not None:
        condition = _condition(replica_set, "ReplicaFailure", True, "FailedCreate")
        status["conditions"] = failing or [condition | {"message": failure.message}]
    registry.set_status(REPLICA_SET, replica_set, status)


def _create_pod(registry: Registry, replica_set: Object) -> None:
    template = copy.deepcopy(replica_set["spec"]["template"])
    metadata = template.get("metadata") or {}
    metadata["generateName"] = f"{replica_set['metadata']['name']}-"
    metadata["ownerReferences"] = [_reference(replica_set)]
    pod = {"metadata": metadata, "spec": template["spec"]}
    registry.create(POD, replica_set["metadata"]["namespace"], pod)


def _scale(registry: Registry, replica_set: Object, replicas: int) -> None:
    if replica_set["spec"]["replicas"] == replicas:
        return
    metadata = replica_set["metadata"]

    def change(found: Object) -> Object:
        found["spec"]["replicas"] = replicas
        return found

    registry.patch(REPLICA_SET, metadata["namespace"], metadata["name"], change)


def _reference(owner: Object) -> Object:
    return {
        "apiVersion": owner["apiVersion"],
        "kind": owner["kind"],
        "name": owner["metadata"]["name"],
        "uid": owner["metadata"]["uid"],
        "controller": True,
        "blockOwnerDeletion": True,
    }


def _owned(registry: Registry, kind: str, owner: Any) -> list[Object]:
    return [
        found
        for found in registry.store.all(kind, owner["namespace"])
        if any(
            each["uid"] == owner["uid"] and each.get("controller")
            for each in found["metadata"].get("ownerReferences") or ()
        )
    ]


def _active(registry: Registry, replica_set: Object) -> list[Object]:
    return [
        pod
        for pod in _owned(registry, "Pod", replica_set["metadata"])
        if "deletionTimestamp" not in pod["metadata"]
        and pod["status"]["phase"] not in ("Succeeded", "Failed")
    ]


def _ready(registry: Registry, replica_set: Object) -> int:
    return sum(map(_ready_pod, _active(registry, replica_set)))


def _ready_pod(pod: Object) -> bool:
    conditions = (pod.get("status") or {}).get("conditions") or ()
    return any(c["type"] == "Ready" and c["status"] == "True" for c in conditions)


def _deletion_cost(pod: Object) -> int:
    annotations = pod["metadata"].get("annotations") or {}
    return int(annotations.get("controller.kubernetes.io/pod-deletion-cost", 0))


def _condition(found: Object, kind: str, holds: bool, reason: str) -> Object:
    """Returns the condition, with the time of its last transition."""
    status = "True" if holds else "False"
    for each in (found.get("status") or {}).get("conditions") or ():
        if (each["type"], each["status"], each.get("reason")) == (kind, status, reason):
            return dict(each)
    return {
        "type": kind,
        "status": status,
        "reason": reason,
        "lastTransitionTime": now(),
        "lastUpdateTime": now(),
    }


# ---- disruption budgets


def budget_pods(registry: Registry, budget: Object) -> tuple[list[Object], list[Object]]:
    """Returns the pods that a budget selects, and the healthy ones among them."""
    selector = (budget.get("spec") or {}).get("selector")
    pods = [
        pod
        for pod in registry.store.all("Pod", budget["metadata"]["namespace"])
        if selects(selector, pod["metadata"].get("labels") or {})
        and pod["status"]["phase"] not in ("Succeeded", "Failed")
    ]
    healthy = [p for p in pods if _ready_pod(p) and "deletionTimestamp" not in p["metadata"]]
    return pods, healthy


def _wanted_healthy(spec: Object, expected: int) -> int:
    if "maxUnavailable" in spec:
        return max(expected - _share(spec["maxUnavailable"], expected), 0)
    return _share(spec.get("minAvailable", 1), expected)


def _share(value: Any, total: int) -> int:
    if isinstance(value, str) and value.endswith("%"):
        return -(-total * int(value[:-1]) // 100)
    return int(value)
