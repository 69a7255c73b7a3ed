"""Shapes of JSON, written as examples of their types, and their JSON Schemas.

    {"id": str, "end_ms": maybe(int), "tasks": {str: int}, "inputs": [str]}

A type stands for any value of it, and `object` for any value. A list has one shape, that of its
elements. A dict whose only key is `str` is a map; any other one is an object with these properties,
and perhaps more.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

Shape: TypeAlias = Any
Schema: TypeAlias = dict[str, Any]

_TYPES = {str: "string", int: "integer", float: "number", bool: "boolean"}


@dataclass(frozen=True, slots=True)
class _Maybe:
    shape: Shape


def maybe(shape: Shape) -> Shape:
    """The shape, or null, which is unknown."""
    return _Maybe(shape)


def schema(shape: Shape) -> Schema:
    match shape:
        case type():
            return {"type": _TYPES[shape]} if shape is not object else {}
        case _Maybe(of):
            inner = schema(of)
            if isinstance(inner.get("type"), str):
                return {**inner, "type": [inner["type"], "null"]}
            return {"anyOf": [inner, {"type": "null"}]}
        case [of]:
            return {"type": "array", "items": schema(of)}
        case dict() if list(shape) == [str]:
            return {"type": "object", "additionalProperties": schema(shape[str])}
        case dict():
            return {
                "type": "object",
                "properties": {name: schema(of) for name, of in shape.items()},
                "required": list(shape),
            }
    raise TypeError(f"{shape!r} is not a shape")
