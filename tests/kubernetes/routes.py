"""Paths of the API, and documents that describe it to kubectl."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tests.kubernetes.failure import Failure
from tests.kubernetes.kinds import ALL_VERBS, BY_PLURAL, KINDS, SUBRESOURCES, Kind

VERSION = {"major": "1", "minor": "33", "gitVersion": "v1.33.0-tests", "platform": "linux/amd64"}


@dataclass(frozen=True, slots=True)
class Route:
    kind: Kind
    namespace: str
    name: str
    subresource: str

    @property
    def resource(self) -> str:
        return f"{self.kind.plural}/{self.subresource}" if self.subresource else self.kind.plural


def route_of(path: str) -> Route:
    """Raises Failure."""
    unknown = Failure(404, "NotFound", "the server could not find the requested resource")
    parts = path.strip("/").split("/")
    if parts[0] == "api" and len(parts) > 2:
        group, version, rest = "", parts[1], parts[2:]
    elif parts[0] == "apis" and len(parts) > 3:
        group, version, rest = parts[1], parts[2], parts[3:]
    else:
        raise unknown
    namespace = ""
    if rest[0] == "namespaces" and len(rest) > 2 and rest[2] not in ("status", "finalize"):
        namespace, rest = rest[1], rest[2:]
    kind = BY_PLURAL.get((group, version, rest[0]))
    if kind is None or len(rest) > 3 or (namespace and not kind.namespaced):
        raise unknown
    name, subresource = [*rest[1:], "", ""][:2]
    known = (*SUBRESOURCES.get(kind.plural, ()), *(("status",) if kind.status else ()))
    if (subresource and subresource not in known) or (name and kind.namespaced and not namespace):
        raise unknown
    return Route(kind, namespace, name, subresource)


def discovery(path: str) -> dict[str, Any] | None:
    """Returns the document at a path, if it is one of those that list groups and resources."""
    if path == "/version":
        return dict(VERSION)
    if path == "/api":
        return {"kind": "APIVersions", "versions": ["v1"]}
    if path == "/apis":
        groups = sorted({(k.group, k.version) for k in KINDS if k.group})
        return {
            "kind": "APIGroupList",
            "apiVersion": "v1",
            "groups": [_group(group, version) for group, version in groups],
        }
    for kind in KINDS:
        if path == kind.root:
            return {
                "kind": "APIResourceList",
                "apiVersion": "v1",
                "groupVersion": kind.api_version,
                "resources": [
                    r
                    for each in KINDS
                    if each.api_version == kind.api_version
                    for r in _resources(each)
                ],
            }
        if kind.group and path == f"/apis/{kind.group}":
            return {"kind": "APIGroup", "apiVersion": "v1"} | _group(kind.group, kind.version)
    return None


def openapi(path: str) -> dict[str, Any] | None:
    """Returns documents without schemas: enough for kubectl to let the API server validate."""
    if path == "/openapi/v3":
        roots = sorted({kind.root for kind in KINDS})
        return {"paths": {r[1:]: {"serverRelativeURL": f"/openapi/v3{r}?hash=1"} for r in roots}}
    root = path.removeprefix("/openapi/v3")
    kinds = [kind for kind in KINDS if kind.root == root]
    if root == path or not kinds:
        return None
    return {
        "openapi": "3.0.0",
        "info": {"title": "Kubernetes", "version": VERSION["gitVersion"]},
        "paths": dict(map(_patch_path, kinds)),
        "components": {"schemas": {}},
    }


def _group(group: str, version: str) -> dict[str, Any]:
    entry = {"groupVersion": f"{group}/{version}", "version": version}
    return {"name": group, "versions": [entry], "preferredVersion": entry}


def _resources(kind: Kind) -> list[dict[str, Any]]:
    own = {
        "name": kind.plural,
        "singularName": kind.kind.lower(),
        "namespaced": kind.namespaced,
        "kind": kind.kind,
        "verbs": ["create"] if kind.create_only else list(ALL_VERBS),
        "shortNames": list(kind.short),
        "categories": ["all"] if kind.all_category else [],
    }
    subresources = [*(("status",) if kind.status else ()), *SUBRESOURCES.get(kind.plural, ())]
    return [own] + [
        _SUBRESOURCE_KINDS.get(sub, {"kind": kind.kind})
        | {
            "name": f"{kind.plural}/{sub}",
            "singularName": "",
            "namespaced": kind.namespaced,
            "verbs": ["get", "patch", "update"] if sub in ("status", "scale") else ["create"],
        }
        for sub in subresources
    ]


_SUBRESOURCE_KINDS = {
    "scale": {"group": "autoscaling", "version": "v1", "kind": "Scale"},
    "eviction": {"group": "policy", "version": "v1", "kind": "Eviction"},
    "token": {"group": "authentication.k8s.io", "version": "v1", "kind": "TokenRequest"},
}


def _patch_path(kind: Kind) -> tuple[str, dict[str, Any]]:
    where = "/namespaces/{namespace}" if kind.namespaced else ""
    return f"{kind.root}{where}/{kind.plural}/{{name}}", {
        "patch": {
            "parameters": [
                {"name": name, "in": "query", "schema": {"type": "string", "uniqueItems": True}}
                for name in ("dryRun", "fieldManager", "fieldValidation")
            ],
            "x-kubernetes-action": "patch",
            "x-kubernetes-group-version-kind": {
                "group": kind.group,
                "kind": kind.kind,
                "version": kind.version,
            },
        }
    }
