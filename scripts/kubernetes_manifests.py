"""Writes the manifests of deploy/kubernetes from the builder of a cluster's objects, and the schema
of the chart's values: `make reference`.

    python -m scripts.kubernetes_manifests

The session cluster is the base; the others are patches of it. Kustomize adds a hash of the
configuration to the name of its ConfigMap, so that pods with an earlier one are replaced.
`tests/unit/kubernetes/test_manifests.py` fails when a file is out of date.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

import firesteel
from firesteel.common.config import Configuration, options
from firesteel.kubernetes.cluster import Application, cluster_objects
from firesteel.kubernetes.cluster.objects import CONFIGURATION_HASH
from firesteel.kubernetes.cluster.settings import CONFIG_FILE
from firesteel.kubernetes.resources import (
    CONFIG_MAPS,
    ROLE_BINDINGS,
    ROLES,
    SECRETS,
    SERVICE_ACCOUNTS,
    Object,
)

FOLDER = Path(__file__).parents[1] / "deploy" / "kubernetes"
SESSION = "session"
CHART = "helm/firesteel"
FLINK = "flink"  # the ServiceAccount of clusters that Flink's client deploys
NAMESPACE = "firesteel"
COMMON = {
    options.KUBERNETES_CLUSTER_ID.key: "firesteel",
    options.KUBERNETES_IMAGE.key: f"firesteel:{firesteel.__version__}",
    options.TASK_SLOTS.key: "2",
    options.MAX_SLOTS.key: "16",
}
ELECTED = {
    options.KUBERNETES_JM_REPLICAS.key: "2",
    options.HA_STORAGE_DIR.key: "s3://bucket/firesteel",
    options.CHECKPOINT_DIR.key: "s3://bucket/firesteel/checkpoints",
    options.DATABASE_URL.key: "postgresql+psycopg2://in-a-secret",
}
PROGRAM = Application(program="/opt/job.py")
CLUSTERS: Mapping[str, tuple[Mapping[str, str], Application | None]] = {
    SESSION: ({}, None),
    "application": ({}, PROGRAM),
    "high-availability": (ELECTED, None),
}
HEADER = "# Written by `make reference`.\n"


def objects_of(name: str) -> dict[tuple[str, str], Object]:
    """Returns the objects of a cluster by kind and name. Kustomize adds their namespace."""
    values, application = CLUSTERS[name]
    objects = cluster_objects(Configuration({**COMMON, **values}), application)
    for each in objects:  # kustomize gives the ConfigMap another name when its content changes
        for subject in each.get("subjects", ()):
            subject["namespace"] = NAMESPACE
        annotations = each.get("spec", {}).get("template", {}).get("metadata", {})
        annotations.get("annotations", {}).pop(CONFIGURATION_HASH, None)
    return {(each["kind"], each["metadata"]["name"]): each for each in objects}


def files() -> dict[str, str]:
    """Returns the content of all files by their paths below FOLDER."""
    schema = values_schema(yaml.safe_load((FOLDER / CHART / "values.yaml").read_text()))
    schema["properties"]["global"] = {"type": "object"}  # of Helm
    found = {f"{CHART}/values.schema.json": json.dumps(schema) + "\n"}
    base = objects_of(SESSION)
    for name in CLUSTERS:
        objects = objects_of(name)
        (config,) = (o for (kind, _), o in objects.items() if kind == CONFIG_MAPS.kind)
        added = [o for key, o in objects.items() if name == SESSION or key not in base]
        added = [o for o in added if o is not config]
        kustomization: Object = {
            "apiVersion": "kustomize.config.k8s.io/v1beta1",
            "kind": "Kustomization",
            "namespace": NAMESPACE,
            "resources": ([] if name == SESSION else [f"../{SESSION}"])
            + (["objects.yaml"] if added else []),
            "configMapGenerator": [
                {
                    "name": config["metadata"]["name"],
                    "behavior": "create" if name == SESSION else "replace",
                    "files": [CONFIG_FILE],
                    "options": {"labels": config["metadata"]["labels"]},
                }
            ],
        }
        if name != SESSION and (patches := list(_patches(base, objects))):
            kustomization["patches"] = patches
        found[f"{name}/kustomization.yaml"] = _yaml(kustomization)
        found[f"{name}/{CONFIG_FILE}"] = HEADER + config["data"][CONFIG_FILE]
        if added:
            found[f"{name}/objects.yaml"] = _yaml(*added)
    found[f"{FLINK}.yaml"] = _yaml(*_of_flink(base))
    return found


def _of_flink(base: Mapping[tuple[str, str], Object]) -> Iterator[Object]:
    """Yields a ServiceAccount with the permissions of masters, for any cluster of a namespace."""
    name = f"{COMMON[options.KUBERNETES_CLUSTER_ID.key]}-masters"
    for kind in (SERVICE_ACCOUNTS.kind, ROLES.kind, ROLE_BINDINGS.kind):
        each = copy.deepcopy(base[kind, name])
        each["metadata"] = {"name": FLINK}
        each.pop("automountServiceAccountToken", None)  # Flink's pods do not request it
        if "rules" in each:  # any Deployment, but no Secret
            each["rules"] = [r for r in each["rules"] if r["resources"] != [SECRETS.plural]]
        for rule in each.get("rules", ()):
            rule.pop("resourceNames", None)
        for subject in each.get("subjects", ()):
            subject["name"] = FLINK
        if "roleRef" in each:
            each["roleRef"]["name"] = FLINK
        yield each


def _patches(
    base: Mapping[tuple[str, str], Object], objects: Mapping[tuple[str, str], Object]
) -> Iterator[Object]:
    for key, old in base.items():
        kind, name = key
        if kind == CONFIG_MAPS.kind:
            continue
        if operations := list(_operations("", old, objects[key])):
            yield {
                "target": {"kind": kind, "name": name},
                "patch": yaml.dump(operations, Dumper=_Dumper, sort_keys=False),
            }


def _operations(path: str, old: Any, new: Any) -> Iterator[Object]:
    """Yields the operations of a JSON patch that makes `new` from `old`."""
    if old == new:
        return
    if isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        for index, (before, after) in enumerate(zip(old, new, strict=True)):
            yield from _operations(f"{path}/{index}", before, after)
        return
    if not isinstance(old, dict) or not isinstance(new, dict):
        yield {"op": "replace", "path": path, "value": new}
        return
    for name in sorted({*old, *new}):
        below = f"{path}/{name.replace('~', '~0').replace('/', '~1')}"
        if name not in new:
            yield {"op": "remove", "path": below}
        elif name not in old:
            yield {"op": "add", "path": below, "value": new[name]}
        else:
            yield from _operations(below, old[name], new[name])


def values_schema(values: Any, name: str = "") -> Object:
    """Returns the schema of the chart's values, which are like their defaults."""
    if isinstance(values, dict):
        if not values or name in ("labels", "resources"):
            return {"type": "object"}
        properties = {key: values_schema(each, key) for key, each in values.items()}
        return {"type": "object", "additionalProperties": False, "properties": properties}
    kinds = {bool: "boolean", int: "integer", str: "string", list: "array"}
    return {"type": kinds[type(values)]}


class _Dumper(yaml.SafeDumper):
    def ignore_aliases(self, data: Any) -> bool:
        return True


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" * ("\n" in text))


_Dumper.add_representer(str, _text)


def _yaml(*objects: Object) -> str:
    text = yaml.dump_all(objects, Dumper=_Dumper, sort_keys=False, width=100)
    return HEADER + text


if __name__ == "__main__":
    for path, content in files().items():
        (FOLDER / path).parent.mkdir(parents=True, exist_ok=True)
        (FOLDER / path).write_text(content)
