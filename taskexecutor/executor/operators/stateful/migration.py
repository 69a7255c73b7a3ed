"""What a processor's state becomes when a later version of it declares the state differently.

Whether it can be restored is decided before (firesteel.common.checkpoints.evolution), so what is
left is to follow the two declarations: columns by name, new ones with their defaults, and times to
live.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

from pyspark.sql import Row

from firesteel.common.checkpoints.descriptions import StateDescription, StateKind
from firesteel.common.checkpoints.evolution import DEFAULT

_FLOATING = ("float", "double")

Convert: TypeAlias = Callable[[Any], Any]


def migration(before: StateDescription, now: StateDescription, now_ms: int) -> Convert | None:
    """Makes what the backend has under a key into what it is to have: None if all of it has
    expired. None instead of a function: nothing changes.

    A value that had no time to live gets a whole one. None outlives a new, shorter one.
    """
    value = _conversion(before.values, now.values)
    if value is None and before.ttl_ms == now.ttl_ms:
        return None
    convert = value or _same
    was_dated, dated, latest_ms = before.ttl_ms is not None, now.ttl_ms is not None, 0
    if now.ttl_ms is not None:
        latest_ms = now_ms + now.ttl_ms

    def one(kept: Any) -> Any:
        """None: it has expired."""
        expiry_ms, value = kept if was_dated else (latest_ms, kept)
        if was_dated and expiry_ms <= now_ms:
            return None
        value = convert(value)
        return (min(expiry_ms, latest_ms), value) if dated else value

    def several(kept: Any) -> Any:
        return [value for value in map(one, kept) if value is not None] or None

    def by_key(kept: Any) -> Any:
        found = {key: one(value) for key, value in kept.items()}
        return {key: value for key, value in found.items() if value is not None} or None

    return {StateKind.VALUE: one, StateKind.LIST: several, StateKind.MAP: by_key}[now.kind]


def _same(value: Any) -> Any:
    return value


def _conversion(before: Any, now: Any) -> Convert | None:
    """Of values of these types, which are Spark's as JSON; nulls stay. None: they stay, too."""
    match before, now:
        case {"type": "struct"}, {"type": "struct"}:
            return _struct_conversion(before, now)
        case {"type": "array"}, {"type": "array"}:
            element = _conversion(before["elementType"], now["elementType"])
            return element and _nullable(lambda value: [element(item) for item in value])
        case {"type": "map"}, {"type": "map"}:
            item = _conversion(before["valueType"], now["valueType"])
            return item and _nullable(lambda value: {key: item(v) for key, v in value.items()})
    if now in _FLOATING and before not in _FLOATING:
        return _nullable(float)
    return None


def _struct_conversion(before: Any, now: Any) -> Convert | None:
    places = {field["name"]: place for place, field in enumerate(before["fields"])}
    fields: list[tuple[int | None, Convert, Any]] = []  # where it was, how it changes, its default
    for field in now["fields"]:
        place = places.get(field["name"])
        if place is None:
            default: Any = (field.get("metadata") or {}).get(DEFAULT)
            floating = field["type"] in _FLOATING and default is not None
            fields.append((None, _same, float(default) if floating else default))
        else:
            was = before["fields"][place]["type"]
            fields.append((place, _conversion(was, field["type"]) or _same, None))
    in_place = [place for place, convert, _ in fields if convert is _same]
    if in_place == list(range(len(before["fields"]))) and len(fields) == len(before["fields"]):
        return None

    def convert(value: Any) -> Any:
        found = [
            default if place is None else change(value[place]) for place, change, default in fields
        ]
        # Structs inside of values are Rows.
        return tuple(found) if type(value) is tuple else Row(*names)(*found)

    names = [field["name"] for field in now["fields"]]
    return _nullable(convert)


def _nullable(convert: Convert) -> Convert:
    return lambda value: None if value is None else convert(value)
