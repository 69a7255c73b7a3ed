"""Decides whether a program can restore states that it now declares differently.

Values are matched by the names of their columns. A new column needs a default or must be nullable;
a column may disappear; its type may widen. Anything else is refused, as is an ambiguous change: if
one column disappears and another of the same type appears, it may have been renamed, and its values
would be lost silently.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from firesteel.common.checkpoints.descriptions import (
    StateDescription,
    StateDescriptions,
    StateKind,
)

DEFAULT = "default"  # in the metadata of a column

_WHOLE = ("byte", "short", "integer", "long")
# For each type, the types that hold all of its values exactly.
_WIDER: dict[str, tuple[str, ...]] = {
    "byte": ("short", "integer", "long", "float", "double"),
    "short": ("integer", "long", "float", "double"),
    "integer": ("long", "double"),
    "float": ("double",),
}


def changed_states(before: StateDescriptions, now: StateDescriptions) -> str:
    """Returns why an operator with the states `before` cannot continue with `now`; empty if it can.
    States that are no longer declared are kept, unless they are in columns.
    """
    for name, was in before.items():
        declared = now.get(name)
        if declared is None:
            in_columns = [one for one, state in now.items() if state.kind is StateKind.ROWS]
            if was.kind is StateKind.ROWS or in_columns:
                return (
                    f"it has no state {name!r}, which the checkpoint has, only"
                    f" {', '.join(map(repr, now)) or 'none'}"
                )
        elif problem := changed_state(was, declared):
            return f"its state {name!r} cannot be restored: {problem}"
    return ""


def kept_states(before: StateDescriptions, now: StateDescriptions) -> StateDescriptions:
    """Returns the states of an operator that has restored `before`. Unknown states stay."""
    states = {**before, **now}
    return {name: state for name, state in states.items() if state.kind is not StateKind.DELETED}


def changed_state(before: StateDescription, now: StateDescription) -> str:
    """Returns why values of `before` cannot become values of `now`; empty if they can."""
    if now.replaces or now.kind is StateKind.DELETED:
        return ""
    if before.kind is not now.kind:
        return (
            f"it is a {before.kind.value} in the checkpoint but a {now.kind.value} in the program"
        )
    if now.kind is StateKind.ROWS:
        return _changed_rows(before, now)
    if now.map_keys is not None and (problem := _changed_key(before.map_keys, now.map_keys)):
        return problem
    return _changed(before.values, now.values, "")


def _changed_rows(before: StateDescription, now: StateDescription) -> str:
    for what in sorted(now.meaning.keys() | before.meaning.keys()):
        was, is_now = before.meaning.get(what, ""), now.meaning.get(what, "")
        if was != is_now:
            return (
                f"its {what} was {was or 'none'} in the checkpoint, and is {is_now or 'none'} now"
            )
    kept = set(before.columns.values())
    new = [text for text in now.columns.values() if text not in kept]
    if new:
        return (
            f"it has no {', '.join(new)}, only {', '.join(before.columns.values()) or 'nothing'}:"
            " a new aggregate cannot know the rows before the checkpoint"
        )
    return ""


def _changed_key(before: Any, now: Any) -> str:
    was = [(field["name"], field["type"]) for field in before["fields"]]
    is_now = [(field["name"], field["type"]) for field in now["fields"]]
    if len(was) != len(is_now) or any(
        old[0] != new[0] or not _equal_key(old[1], new[1])
        for old, new in zip(was, is_now, strict=True)
    ):
        return (
            f"the keys of the map were ({shown(before)}) in the checkpoint, and are ({shown(now)})"
            " now"
        )
    return ""


def _equal_key(before: Any, now: Any) -> bool:
    """Whether equal keys stay equal; whole numbers do, whatever their width."""
    wider = isinstance(before, str) and isinstance(now, str) and now in _WIDER.get(before, ())
    return before == now or (wider and now in _WHOLE)


def _changed(before: Any, now: Any, where: str) -> str:
    """Compares two types in JSON. `where` is the column, with a trailing dot if not empty."""
    match before, now:
        case {"type": "struct"}, {"type": "struct"}:
            return _changed_struct(before, now, where)
        case {"type": "array"}, {"type": "array"}:
            return _changed(before["elementType"], now["elementType"], where)
        case {"type": "map"}, {"type": "map"}:
            if _equal_key(before["keyType"], now["keyType"]):
                return _changed(before["valueType"], now["valueType"], where)
        case str(), str():
            if before == now or now in _WIDER.get(before, ()) or _wider_decimal(before, now):
                return ""
    if before == now:
        return ""
    return (
        f"its column {where[:-1]!r} was {shown(before)} in the checkpoint, and is {shown(now)} now."
        " Types may get wider (INT to BIGINT or DOUBLE, FLOAT to DOUBLE)"
    )


def _changed_struct(before: Any, now: Any, where: str) -> str:
    was = {field["name"]: field for field in before["fields"]}
    is_now = {field["name"]: field for field in now["fields"]}
    new = [field for name, field in is_now.items() if name not in was]
    for field in new:
        name = where + field["name"]
        if not field["nullable"] and DEFAULT not in (field.get("metadata") or {}):
            return (
                f"its column {name!r} ({shown(field['type'])}) is new, not nullable and has no"
                f' default: StructField(..., metadata={{"{DEFAULT}": ...}})'
            )
        for gone in (field for name, field in was.items() if name not in is_now):
            if not _changed(gone["type"], field["type"], "x."):
                return (
                    f"its column {where + gone['name']!r} ({shown(gone['type'])}) is gone and"
                    f" {name!r} ({shown(field['type'])}) is new, which looks like another name for"
                    " it, and its values would be lost. Keep the name; or, if that is meant, drop"
                    " the one, take a savepoint and add the other"
                )
    for name, field in is_now.items():
        if name in was and (
            problem := _changed(was[name]["type"], field["type"], f"{where}{name}.")
        ):
            return problem
    return ""


def _wider_decimal(before: str, now: str) -> bool:
    digits = [re.fullmatch(r"decimal\((\d+),\s*(-?\d+)\)", kind) for kind in (before, now)]
    if not all(digits):
        return False
    (had, of_it), (has, of_this) = [tuple(map(int, d.groups())) for d in digits if d is not None]
    return has - of_this >= had - of_it and of_this >= of_it


def shown(kind: Any) -> str:
    """Returns a type as SQL writes it."""
    match kind:
        case {"type": "struct"}:
            return ", ".join(_shown_fields(kind))
        case {"type": "array"}:
            return f"ARRAY<{shown_inside(kind['elementType'])}>"
        case {"type": "map"}:
            return f"MAP<{shown_inside(kind['keyType'])}, {shown_inside(kind['valueType'])}>"
        case str():
            return _SQL.get(kind, kind.upper())
    return str(kind)


def shown_inside(kind: Any) -> str:
    is_struct = isinstance(kind, dict) and kind.get("type") == "struct"
    return f"STRUCT<{shown(kind)}>" if is_struct else shown(kind)


def _shown_fields(struct: Any) -> Iterator[str]:
    for field in struct["fields"]:
        yield f"{field['name']} {shown_inside(field['type'])}"


_SQL = {"byte": "TINYINT", "short": "SMALLINT", "integer": "INT", "long": "BIGINT"}
