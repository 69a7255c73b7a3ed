"""The key that a stateful operator is processing."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from firesteel.column_names import column_index
from firesteel.common.time_zones import python_zone
from firesteel.errors import FiresteelError


class ShownKeys:
    """Converts keys to the values that PySpark's workers pass to functions of rows or, for pandas,
    of DataFrames: timestamps in the session's zone, arrays as lists, structs as dictionaries.

    Keys of state hold timestamps in UTC, because in other zones Python considers two timestamps
    within the hour of a clock change equal. Arrays and structs are tuples, which are hashable.
    """

    def __init__(
        self,
        schema: pa.Schema | None,
        key_columns: Sequence[str],
        zone: str = "UTC",
        *,
        pandas: bool = False,
    ) -> None:
        self._zone = zone
        self._pandas = pandas
        self._kinds: list[pa.DataType] | None = None  # None: no arrays or structs
        if schema is not None:
            kinds = [schema.field(column_index(schema, name)).type for name in key_columns]
            if any(map(pa.types.is_nested, kinds)):
                self._kinds = kinds

    def __call__(self, key: tuple[Any, ...]) -> tuple[Any, ...]:
        if self._kinds is not None:
            return tuple(map(self._nested, key, self._kinds))
        if not any(isinstance(value, datetime.datetime) for value in key):
            return key
        return tuple(map(self._flat, key))

    def _nested(self, value: Any, kind: pa.DataType) -> Any:
        if value is None:
            return None
        if pa.types.is_struct(kind):
            parts = [kind.field(place) for place in range(kind.num_fields)]
            return {p.name: self._nested(v, p.type) for p, v in zip(parts, value, strict=True)}
        if pa.types.is_nested(kind):
            return [self._nested(element, kind.value_type) for element in value]
        return self._flat(value)

    def _flat(self, value: Any) -> Any:
        if not isinstance(value, datetime.datetime):
            return value
        if self._pandas:
            import pandas as pd

            if value.tzinfo is not None:
                return pd.Timestamp(value).tz_convert(self._zone).tz_localize(None)
            return pd.Timestamp(value)
        if value.tzinfo is None or self._zone == "UTC":
            return value
        return value.astimezone(python_zone(self._zone))


class CurrentKey:
    """The current key, shared by an operator's keyed state variables, timers and contexts."""

    __slots__ = ("_missing", "key", "now_ms", "shown_as")

    def __init__(self, missing: str = "no key is being processed here") -> None:
        """`missing` is the reason in errors about a missing key."""
        self._missing = missing
        self.shown_as: ShownKeys | None = None
        self.key: tuple[Any, ...] | None = None  # None: no key is being processed
        self.now_ms = 0  # processing time of the current batch or timer

    def of(self, what: str) -> tuple[Any, ...]:
        """Returns the key. Raises FiresteelError if none is being processed."""
        if self.key is None:
            raise FiresteelError(f"{what} belongs to a key, and {self._missing}")
        return self.key

    def shown(self, what: str) -> tuple[Any, ...]:
        """Returns the key as the program sees it."""
        key = self.of(what)
        return key if self.shown_as is None else self.shown_as(key)
