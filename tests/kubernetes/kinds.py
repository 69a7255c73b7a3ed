"""The kinds of objects that the API server has."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

Object: TypeAlias = dict[str, Any]

ALL_VERBS = ("create", "delete", "deletecollection", "get", "list", "patch", "update", "watch")


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    kind: str
    plural: str
    group: str = ""
    version: str = "v1"
    namespaced: bool = True
    status: bool = False  # it has a status, which only its subresource changes
    generation: bool = False  # counts changes of its spec
    short: tuple[str, ...] = ()
    all_category: bool = False
    fields: tuple[str, ...] = ()  # field selectors besides name and namespace
    create_only: bool = False  # a review: it is answered, not stored

    @property
    def api_version(self) -> str:
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def root(self) -> str:
        return f"/apis/{self.group}/{self.version}" if self.group else f"/api/{self.version}"


_EVENT_FIELDS = (
    *(f"involvedObject.{name}" for name in ("apiVersion", "fieldPath", "kind", "name")),
    *(f"involvedObject.{name}" for name in ("namespace", "resourceVersion", "uid")),
    *("reason", "reportingComponent", "source", "type"),
)
_POD_FIELDS = (
    *("spec.nodeName", "spec.restartPolicy", "spec.schedulerName", "spec.serviceAccountName"),
    *("status.phase", "status.podIP"),
)
_RBAC = "rbac.authorization.k8s.io"

KINDS = (
    Kind(kind="ConfigMap", plural="configmaps", short=("cm",)),
    Kind(kind="Event", plural="events", short=("ev",), fields=_EVENT_FIELDS),
    Kind(
        kind="Namespace",
        plural="namespaces",
        namespaced=False,
        status=True,
        short=("ns",),
        fields=("status.phase",),
    ),
    Kind(
        kind="Node",
        plural="nodes",
        namespaced=False,
        status=True,
        short=("no",),
        fields=("spec.unschedulable",),
    ),
    Kind(
        kind="PersistentVolumeClaim",
        plural="persistentvolumeclaims",
        status=True,
        short=("pvc",),
    ),
    Kind(
        kind="Pod",
        plural="pods",
        status=True,
        short=("po",),
        all_category=True,
        fields=_POD_FIELDS,
    ),
    Kind(kind="ResourceQuota", plural="resourcequotas", status=True, short=("quota",)),
    Kind(kind="Secret", plural="secrets", fields=("type",)),
    Kind(kind="Service", plural="services", status=True, short=("svc",), all_category=True),
    Kind(kind="ServiceAccount", plural="serviceaccounts", short=("sa",)),
    Kind(
        kind="Deployment",
        plural="deployments",
        group="apps",
        status=True,
        generation=True,
        short=("deploy",),
        all_category=True,
    ),
    Kind(
        kind="ReplicaSet",
        plural="replicasets",
        group="apps",
        status=True,
        generation=True,
        short=("rs",),
        all_category=True,
        fields=("status.replicas",),
    ),
    Kind(kind="Lease", plural="leases", group="coordination.k8s.io"),
    Kind(
        kind="Ingress",
        plural="ingresses",
        group="networking.k8s.io",
        status=True,
        generation=True,
        short=("ing",),
    ),
    Kind(
        kind="NetworkPolicy",
        plural="networkpolicies",
        group="networking.k8s.io",
        generation=True,
        short=("netpol",),
    ),
    Kind(
        kind="PodDisruptionBudget",
        plural="poddisruptionbudgets",
        group="policy",
        status=True,
        generation=True,
        short=("pdb",),
    ),
    Kind(kind="Role", plural="roles", group=_RBAC),
    Kind(kind="RoleBinding", plural="rolebindings", group=_RBAC),
    Kind(kind="ClusterRole", plural="clusterroles", group=_RBAC, namespaced=False),
    Kind(kind="ClusterRoleBinding", plural="clusterrolebindings", group=_RBAC, namespaced=False),
    Kind(
        kind="SelfSubjectAccessReview",
        plural="selfsubjectaccessreviews",
        group="authorization.k8s.io",
        namespaced=False,
        create_only=True,
    ),
)

BY_PLURAL = {(kind.group, kind.version, kind.plural): kind for kind in KINDS}
BY_NAME = {kind.kind: kind for kind in KINDS}
SUBRESOURCES = {
    "deployments": ("scale",),
    "pods": ("eviction", "log", "portforward"),
    "replicasets": ("scale",),
    "serviceaccounts": ("token",),
}
