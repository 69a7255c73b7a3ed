"""Merge patches (RFC 7386) and strategic merge patches, which merge some lists by keys."""

from __future__ import annotations

import copy
from typing import Any

from tests.kubernetes.failure import bad_request
from tests.kubernetes.kinds import Object

# The lists that are merged: by the name of their field, the key of their elements.
_KEYS = {
    "conditions": "type",
    "containers": "name",
    "env": "name",
    "ephemeralContainers": "name",
    "hostAliases": "ip",
    "imagePullSecrets": "name",
    "initContainers": "name",
    "ownerReferences": "uid",
    "secrets": "name",
    "topologySpreadConstraints": "topologyKey",
    "volumeDevices": "devicePath",
    "volumeMounts": "mountPath",
    "volumes": "name",
    "addresses": "type",
    "taints": "key",
}
_SETS = frozenset({"finalizers"})  # lists of texts that are united


def merge_key(path: tuple[str, ...]) -> str | None:
    """Returns the key of a list's elements; None if the list is replaced as a whole. Elements of
    lists are `[]` in a path.
    """
    if not path:
        return None
    if path[-1] == "ports":
        return "containerPort" if "containers" in path or "initContainers" in path else "port"
    return _KEYS.get(path[-1])


def is_set(path: tuple[str, ...]) -> bool:
    return bool(path) and path[-1] in _SETS


def merge(target: Any, patch: Any) -> Any:
    if not isinstance(patch, dict):
        return copy.deepcopy(patch)
    merged = dict(target) if isinstance(target, dict) else {}
    for name, value in patch.items():
        if value is None:
            merged.pop(name, None)
        else:
            merged[name] = merge(merged.get(name), value)
    return merged


def strategic(target: Any, patch: Any, path: tuple[str, ...] = ()) -> Any:
    if not isinstance(patch, dict):
        return copy.deepcopy(patch)
    if patch.get("$patch") == "replace":
        return {k: copy.deepcopy(v) for k, v in patch.items() if k != "$patch"}
    merged = dict(target) if isinstance(target, dict) else {}
    if patch.get("$patch") == "delete":
        return {}
    if "$retainKeys" in patch:
        merged = {k: v for k, v in merged.items() if k in patch["$retainKeys"]}
    for name, value in patch.items():
        if name.startswith("$deleteFromPrimitiveList/"):
            field = name.partition("/")[2]
            merged[field] = [each for each in merged.get(field) or [] if each not in value]
    for name, value in patch.items():
        if name.startswith("$"):
            continue
        below = (*path, name)
        if value is None:
            merged.pop(name, None)
        elif isinstance(value, list) and merge_key(below):
            order = patch.get(f"$setElementOrder/{name}")
            merged[name] = _merge_list(merged.get(name) or [], value, below, order)
        elif isinstance(value, list) and is_set(below):
            old = merged.get(name) or []
            merged[name] = old + [each for each in value if each not in old]
        else:
            merged[name] = strategic(merged.get(name), value, below)
    for name, order in patch.items():
        if name.startswith("$setElementOrder/"):
            field = name.partition("/")[2]
            key = merge_key((*path, field))
            if key and field in merged:
                merged[field] = _ordered(merged[field], [each[key] for each in order], key)
    return merged


def _merge_list(
    old: list[Object], patch: list[Object], path: tuple[str, ...], order: Any
) -> list[Object]:
    key = merge_key(path)
    assert key is not None
    merged = list(old)
    for each in patch:
        if each.get("$patch") == "replace" and key not in each:
            return [copy.deepcopy(e) for e in patch if "$patch" not in e]
        if key not in each:
            raise bad_request(f"map: {each} does not contain declared merge key: {key}")
        place = next((i for i, e in enumerate(merged) if e.get(key) == each[key]), None)
        if each.get("$patch") == "delete":
            if place is not None:
                del merged[place]
        elif place is None:
            merged.append(strategic({}, each, (*path, "[]")))
        else:
            merged[place] = strategic(merged[place], each, (*path, "[]"))
    return merged


def _ordered(values: list[Object], order: list[Any], key: str) -> list[Object]:
    places = {value: place for place, value in enumerate(order)}
    return sorted(values, key=lambda each: places.get(each[key], len(places)))
