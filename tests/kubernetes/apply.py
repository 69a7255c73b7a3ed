"""Server-side apply: which manager owns which fields, and conflicts between them.

A field is a path of names; an element of a list with a key is named by the value of its key. Lists
without a key are one field.
"""

from __future__ import annotations

import copy
from typing import Any, TypeAlias

from tests.kubernetes.failure import Failure
from tests.kubernetes.kinds import Object
from tests.kubernetes.patches import is_set, merge_key

Path: TypeAlias = tuple[str, ...]
Manager: TypeAlias = tuple[str, str]  # its name, and Apply or Update
Owners: TypeAlias = dict[Manager, set[Path]]  # the fields of each manager
_UNOWNED = {("apiVersion",), ("kind",), ("metadata", "name"), ("metadata", "namespace")}


def fields_of(value: Object) -> dict[Path, Any]:
    """Returns the leaves of an object."""
    found: dict[Path, Any] = {}
    metadata = {k: v for k, v in (value.get("metadata") or {}).items() if k in _METADATA}
    _collect({**value, "metadata": metadata}, (), (), found)
    return {path: leaf for path, leaf in found.items() if path not in _UNOWNED}


_METADATA = frozenset({"annotations", "labels", "finalizers", "ownerReferences"})


def _collect(value: Any, path: Path, schema: Path, found: dict[Path, Any]) -> None:
    if isinstance(value, dict) and value:
        for name, below in value.items():
            _collect(below, (*path, name), (*schema, name), found)
    elif isinstance(value, list) and (key := merge_key(schema)):
        for each in value:
            element = (*path, f"{key}={each.get(key)}")
            found[element] = None  # the element itself
            _collect(each, element, (*schema, "[]"), found)
    elif isinstance(value, list) and is_set(schema):
        for each in value:
            found[(*path, f"={each}")] = each
    else:
        found[path] = value


def apply(live: Object, applied: Object, name: str, owners: Owners, *, force: bool) -> Object:
    """Returns the object with the applied fields; updates `owners`. Raises Failure."""
    manager = (name, "Apply")
    wanted, existing = fields_of(applied), fields_of(live)
    conflicts = [
        (other, path)
        for other, owned in owners.items()
        if other != manager
        for path in owned
        if path in wanted and existing.get(path, wanted[path]) != wanted[path]
    ]
    if conflicts and not force:
        raise _conflict(conflicts, live["apiVersion"])
    for other, path in conflicts:
        owners[other].discard(path)
    before = owners.get(manager, set())
    owners[manager] = set(wanted)
    kept = set().union(*owners.values())
    result = copy.deepcopy(live)
    # Elements before their fields: an element that no manager has leaves with its defaults.
    for path in sorted(before - kept, key=len):
        is_element = "=" in path[-1] and not path[-1].startswith("=")
        if not is_element or not any(each[: len(path)] == path for each in kept):
            _remove(result, path)
    return _overlay(result, applied, ())


def updated(before: Object, after: Object, name: str, owners: Owners) -> None:
    """Records that a manager has set the fields that changed without apply."""
    manager = (name, "Update")
    old, new = fields_of(before), fields_of(after)
    changed = {path for path, value in new.items() if path not in old or old[path] != value}
    gone = set(old) - set(new)
    for other, owned in owners.items():
        owned -= gone if other == manager else gone | changed
    if changed:
        owners.setdefault(manager, set()).update(changed)


def managed_fields(owners: Owners, api_version: str) -> list[Object]:
    """Returns `metadata.managedFields`."""
    return [
        {
            "manager": name,
            "operation": operation,
            "apiVersion": api_version,
            "fieldsType": "FieldsV1",
            "fieldsV1": _tree(owned),
        }
        for (name, operation), owned in sorted(owners.items())
        if owned
    ]


def _conflict(conflicts: list[tuple[Manager, Path]], api_version: str) -> Failure:
    fields: dict[str, list[str]] = {}
    for (name, way), path in sorted(conflicts):
        who = f'"{name}"' + (f" using {api_version}" if way == "Update" else "")
        fields.setdefault(who, []).append(f".{'.'.join(path)}")
    pairs = [(who, field) for who, its in fields.items() for field in its]
    if len(pairs) == 1:
        message = f"Apply failed with 1 conflict: conflict with {pairs[0][0]}: {pairs[0][1]}"
    else:
        lines = []
        for who, its in fields.items():
            lines += [f"conflicts with {who}:", *(f"- {field}" for field in its)]
        message = f"Apply failed with {len(pairs)} conflicts: " + "\n".join(lines)
    causes = [
        {"reason": "FieldManagerConflict", "message": f"conflict with {who}", "field": field}
        for who, field in pairs
    ]
    return Failure(409, "Conflict", message, causes=causes)


def _overlay(live: Any, applied: Any, schema: Path) -> Any:
    if isinstance(applied, dict):
        merged = dict(live) if isinstance(live, dict) else {}
        for name, value in applied.items():
            merged[name] = _overlay(merged.get(name), value, (*schema, name))
        return merged
    if isinstance(applied, list) and (key := merge_key(schema)):
        elements = list(live) if isinstance(live, list) else []
        for each in applied:
            place = next((i for i, e in enumerate(elements) if e.get(key) == each.get(key)), None)
            if place is None:
                elements.append(copy.deepcopy(each))
            else:
                elements[place] = _overlay(elements[place], each, (*schema, "[]"))
        return elements
    if isinstance(applied, list) and is_set(schema):
        elements = list(live) if isinstance(live, list) else []
        return elements + [each for each in applied if each not in elements]
    return copy.deepcopy(applied)


def _remove(value: Any, path: Path) -> None:
    """Removes a field, and the containers that it leaves empty."""
    name, *rest = path
    if isinstance(value, dict):
        if name not in value:
            return
        if rest:
            _remove(value[name], tuple(rest))
        if not rest or value[name] in ({}, []):
            del value[name]
    elif isinstance(value, list):
        key, _, its = name.partition("=")
        for each in [e for e in value if str(e.get(key) if key else e) == its]:
            if not rest:
                value.remove(each)
            elif rest != [key]:
                _remove(each, tuple(rest))


def _tree(paths: set[Path]) -> Object:
    root: Object = {}
    for path in sorted(paths):
        node = root
        for part in path:
            name = f'k:{{"{part.partition("=")[0]}":"{part.partition("=")[2]}"}}'
            node = node.setdefault(name if "=" in part else f"f:{part}", {})
    return root
