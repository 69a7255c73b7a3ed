"""The resources that Firesteel uses, and requests to them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias
from urllib.parse import quote

Object: TypeAlias = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Resource:
    kind: str
    plural: str
    group: str = ""
    version: str = "v1"
    namespaced: bool = True

    @property
    def api_version(self) -> str:
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def root(self) -> str:
        return f"/apis/{self.group}/{self.version}" if self.group else f"/api/{self.version}"


CONFIG_MAPS = Resource(kind="ConfigMap", plural="configmaps")
EVENTS = Resource(kind="Event", plural="events")
NAMESPACES = Resource(kind="Namespace", plural="namespaces", namespaced=False)
NODES = Resource(kind="Node", plural="nodes", namespaced=False)
PERSISTENT_VOLUME_CLAIMS = Resource(kind="PersistentVolumeClaim", plural="persistentvolumeclaims")
PODS = Resource(kind="Pod", plural="pods")
RESOURCE_QUOTAS = Resource(kind="ResourceQuota", plural="resourcequotas")
SECRETS = Resource(kind="Secret", plural="secrets")
SERVICES = Resource(kind="Service", plural="services")
SERVICE_ACCOUNTS = Resource(kind="ServiceAccount", plural="serviceaccounts")
DEPLOYMENTS = Resource(kind="Deployment", plural="deployments", group="apps")
REPLICA_SETS = Resource(kind="ReplicaSet", plural="replicasets", group="apps")
STATEFUL_SETS = Resource(kind="StatefulSet", plural="statefulsets", group="apps")
LEASES = Resource(kind="Lease", plural="leases", group="coordination.k8s.io")
NETWORK_POLICIES = Resource(
    kind="NetworkPolicy", plural="networkpolicies", group="networking.k8s.io"
)
POD_DISRUPTION_BUDGETS = Resource(
    kind="PodDisruptionBudget", plural="poddisruptionbudgets", group="policy"
)
ROLES = Resource(kind="Role", plural="roles", group="rbac.authorization.k8s.io")
ROLE_BINDINGS = Resource(
    kind="RoleBinding", plural="rolebindings", group="rbac.authorization.k8s.io"
)
ACCESS_REVIEWS = Resource(
    kind="SelfSubjectAccessReview",
    plural="selfsubjectaccessreviews",
    group="authorization.k8s.io",
    namespaced=False,
)

RESOURCES = (
    CONFIG_MAPS,
    EVENTS,
    NAMESPACES,
    NODES,
    PERSISTENT_VOLUME_CLAIMS,
    PODS,
    RESOURCE_QUOTAS,
    SECRETS,
    SERVICES,
    SERVICE_ACCOUNTS,
    DEPLOYMENTS,
    REPLICA_SETS,
    STATEFUL_SETS,
    LEASES,
    NETWORK_POLICIES,
    POD_DISRUPTION_BUDGETS,
    ROLES,
    ROLE_BINDINGS,
)
_BY_TYPE = {(resource.api_version, resource.kind): resource for resource in RESOURCES}


def resource_of(manifest: Object) -> Resource:
    """Returns the resource that an object belongs to. Raises KeyError if Firesteel does not use
    it.
    """
    return _BY_TYPE[manifest.get("apiVersion", ""), manifest.get("kind", "")]


def name_of(manifest: Object) -> str:
    name: str = manifest["metadata"]["name"]
    return name


def version_of(manifest: Object) -> str:
    version: str = manifest["metadata"].get("resourceVersion", "")
    return version


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """The object or collection of a request, and the verb, as a Role names them."""

    verb: str
    resource: Resource
    namespace: str = ""
    name: str = ""
    subresource: str = ""

    @property
    def path(self) -> str:
        parts = [self.resource.root]
        if self.resource.namespaced and self.namespace:
            parts += ["namespaces", quote(self.namespace, safe="")]
        parts.append(self.resource.plural)
        if self.name:
            parts.append(quote(self.name, safe=""))
        if self.subresource:
            parts.append(self.subresource)
        return "/".join(parts)

    def __str__(self) -> str:
        what = "/".join(filter(None, (self.resource.plural, self.name, self.subresource)))
        where = f" in namespace {self.namespace}" if self.namespace else ""
        return f"{self.verb} {what}{where}"

    @property
    def permission(self) -> str:
        """The manifest of the Role that permits the request."""
        resource = "/".join(filter(None, (self.resource.plural, self.subresource)))
        namespace = f"\n  namespace: {self.namespace}" if self.namespace else ""
        return (
            "apiVersion: rbac.authorization.k8s.io/v1\n"
            f"kind: {'Role' if self.namespace else 'ClusterRole'}\n"
            f"metadata:\n  name: firesteel{namespace}\n"
            "rules:\n"
            f'- apiGroups: ["{self.resource.group}"]\n'
            f'  resources: ["{resource}"]\n'
            f'  verbs: ["{self.verb}"]'
        )
