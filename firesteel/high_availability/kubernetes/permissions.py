"""The permissions that masters need for their Leases."""

from __future__ import annotations

from firesteel.errors import FiresteelError
from firesteel.kubernetes.client import KubernetesClient
from firesteel.kubernetes.errors import Forbidden
from firesteel.kubernetes.resources import LEASES

VERBS = ("get", "list", "watch", "create", "update")


async def check_permissions(client: KubernetesClient, *, within_s: float) -> None:
    """Raises FiresteelError, with the Role that is missing."""
    try:
        reviews = [await client.may(verb, LEASES, within_s=within_s) for verb in VERBS]
    except Forbidden:
        return  # this cluster reveals no permissions
    if denied := [review.target.verb for review in reviews if not review.allowed]:
        raise FiresteelError(missing(client.namespace, ", ".join(denied)))


def missing(namespace: str, denied: str) -> str:
    return (
        f"the ServiceAccount or user may not {denied} leases ({LEASES.group}) in namespace"
        f" {namespace}, which leader election needs. This grants it, together with a RoleBinding:\n"
        f"{role(namespace)}"
    )


def role(namespace: str) -> str:
    """Returns the manifest of the Role of a master."""
    verbs = ", ".join(f'"{verb}"' for verb in VERBS)
    return (
        "apiVersion: rbac.authorization.k8s.io/v1\n"
        "kind: Role\n"
        f"metadata:\n  name: firesteel-leader-election\n  namespace: {namespace}\n"
        "rules:\n"
        f'- apiGroups: ["{LEASES.group}"]\n'
        f'  resources: ["{LEASES.plural}"]\n'
        f"  verbs: [{verbs}]"
    )
