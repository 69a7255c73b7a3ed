"""Converts a processor's state when a later version of the processor declares it differently.

`firesteel.common.checkpoints.evolution` has already decided that the state can be restored, so this
only applies the declarations: columns are matched by name, new columns get their defaults, and
times to live are adjusted.
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
    """Returns a function that converts the backend's value for a key; it returns None if everything
    has expired. Returns None instead of a function if nothing changes.

    A value without a time to live gets the full one. No value outlives a new, shorter time to live.
    """
    value = _conversion(before.values, now.values)
    if value is None and before.ttl_ms == now.ttl_ms:
        return None
    convert = value or _same
    was_dated, dated, latest_ms = before.ttl_ms is not None, now.ttl_ms is not None, 0
    if now.ttl_ms is not None:
        latest_ms = now_ms + now.ttl_ms

    def one(kept: Any) -> Any:
        """Returns None if it has expired."""
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
    """Returns a conversion between values of these types, which are Spark's as JSON. Nulls stay.
    Returns None if values do not change.
    """
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
    fields: list[tuple[int | None, Convert, Any]] = []  # index before, conversion, default
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
        # Structs within values are Rows.
        return tuple(found) if type(value) is tuple else Row(*names)(*found)

    names = [field["name"] for field in now["fields"]]
    return _nullable(convert)


def _nullable(convert: Convert) -> Convert:
    return lambda value: None if value is None else convert(value)
