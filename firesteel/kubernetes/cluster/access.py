"""The permissions of the masters, and the connections that the pods of a cluster accept."""

from __future__ import annotations

from collections.abc import Sequence

from firesteel.kubernetes.cluster.settings import ClusterSettings
from firesteel.kubernetes.pods.labels import JOB_MANAGER, selecting
from firesteel.kubernetes.resources import (
    DEPLOYMENTS,
    EVENTS,
    LEASES,
    NETWORK_POLICIES,
    PODS,
    ROLE_BINDINGS,
    ROLES,
    SECRETS,
    SERVICE_ACCOUNTS,
    Object,
    Resource,
)
from firesteel.kubernetes.security import METRICS, secret_name

# The rules of the Role of masters: the resource, its subresource, the verbs.
RULES: Sequence[tuple[Resource, str, Sequence[str]]] = (
    (PODS, "", ("get", "list", "watch", "create", "patch", "delete")),
    (PODS, "log", ("get",)),
    (EVENTS, "", ("get", "list", "create")),
    (LEASES, "", ("get", "list", "watch", "create", "update")),
    (DEPLOYMENTS, "", ("get", "patch", "delete")),
    (SECRETS, "", ("get", "patch")),
)


def service_account_of(settings: ClusterSettings) -> str:
    return settings.pod.service_account or f"{settings.cluster_id}-masters"


def permissions(settings: ClusterSettings) -> list[Object]:
    """Returns the ServiceAccount, the Role and the RoleBinding of the masters; none if a
    ServiceAccount is configured.
    """
    if settings.pod.service_account:
        return []
    name = service_account_of(settings)
    single = {  # the only objects of their kinds that the masters may access
        DEPLOYMENTS: settings.cluster_id,
        SECRETS: secret_name(settings.cluster_id, METRICS),
    }
    rules = [
        {
            "apiGroups": [resource.group],
            "resources": ["/".join(filter(None, (resource.plural, subresource)))],
            "verbs": list(verbs),
        }
        | ({"resourceNames": [single[resource]]} if resource in single else {})
        for resource, subresource, verbs in RULES
    ]
    subject = {"kind": SERVICE_ACCOUNTS.kind, "name": name}
    if settings.namespace:
        subject["namespace"] = settings.namespace
    reference = {"apiGroup": ROLES.group, "kind": ROLES.kind, "name": name}
    return [
        named(SERVICE_ACCOUNTS, name) | {"automountServiceAccountToken": False},
        named(ROLES, name) | {"rules": rules},
        named(ROLE_BINDINGS, name) | {"subjects": [subject], "roleRef": reference},
    ]


def network_policies(settings: ClusterSettings) -> list[Object]:
    """Pods of the cluster connect to each other without restriction. Others reach the masters' RPC
    and REST ports, which authenticate their callers, and the metrics.
    """
    if not settings.network_policy:
        return []
    first, last = settings.metrics_ports
    metrics = {"protocol": "TCP", "port": first} | ({"endPort": last} if last > first else {})
    peers = [{"podSelector": {"matchLabels": selecting(settings.cluster_id)}}]
    served = [port for port in (settings.rpc_port, settings.rest_port) if port]
    return [
        _policy(
            f"{settings.cluster_id}-cluster",
            selecting(settings.cluster_id),
            [{"from": peers}, *([{"ports": [metrics]}] if first else [])],
        ),
        _policy(
            f"{settings.cluster_id}-masters",
            selecting(settings.cluster_id, JOB_MANAGER),
            [{"ports": [{"protocol": "TCP", "port": port} for port in served]}],
        ),
    ]


def _policy(name: str, labels: dict[str, str], ingress: list[Object]) -> Object:
    return named(NETWORK_POLICIES, name) | {
        "spec": {
            "podSelector": {"matchLabels": labels},
            "policyTypes": ["Ingress"],
            "ingress": ingress,
        }
    }


def named(resource: Resource, name: str) -> Object:
    return {
        "apiVersion": resource.api_version,
        "kind": resource.kind,
        "metadata": {"name": name},
    }
