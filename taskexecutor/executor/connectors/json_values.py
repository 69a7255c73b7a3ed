"""Arrow's values in JSON, in the form that Spark writes and reads: maps are objects, decimals
strings, bytes base64, times ISO 8601.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Callable
from typing import Any

import pyarrow as pa

Form = Callable[[Any], Any]


def json_form(kind: pa.DataType, *, omits_nulls: bool = False) -> Form | None:
    """Returns a conversion of the type's Python values, other than None, to JSON values; None if no
    conversion is needed. With `omits_nulls`, objects lack the fields of structs that are null.
    """

    def form_of(part: pa.DataType) -> Form | None:
        return json_form(part, omits_nulls=omits_nulls)

    if pa.types.is_dictionary(kind):
        return form_of(kind.value_type)
    if (
        pa.types.is_boolean(kind)
        or pa.types.is_integer(kind)
        or pa.types.is_string(kind)
        or pa.types.is_large_string(kind)
    ):
        return None
    if pa.types.is_floating(kind):
        return _float
    if (
        pa.types.is_binary(kind)
        or pa.types.is_large_binary(kind)
        or pa.types.is_fixed_size_binary(kind)
    ):
        return lambda value: base64.b64encode(value).decode()
    if pa.types.is_temporal(kind) and not pa.types.is_duration(kind):
        return lambda value: value.isoformat()
    if pa.types.is_map(kind):
        keys, values = form_of(kind.key_type), or_none(form_of(kind.item_type))
        return lambda pairs: {
            str(keys(key) if keys else key): values(value) for key, value in pairs
        }
    if pa.types.is_struct(kind):
        parts = {
            kind.field(index).name: or_none(form_of(kind.field(index).type))
            for index in range(kind.num_fields)
        }
        return lambda value: {
            name: form(value[name])
            for name, form in parts.items()
            if not omits_nulls or value[name] is not None
        }
    if pa.types.is_nested(kind):
        items = or_none(form_of(kind.value_type))
        return lambda value: [items(item) for item in value]
    return str  # decimals, which JSON numbers could truncate


def or_none(form: Form | None) -> Form:
    return lambda value: value if form is None or value is None else form(value)


def _float(value: float) -> float | str:
    if math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
