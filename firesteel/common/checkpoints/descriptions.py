"""Describes the states of an operator in a checkpoint's metadata. The descriptions suffice to read
the states without the program, and to decide whether a later program can restore them.

They are found when the job's plan is analysed. `co_process` declares its states when it opens:
their schemas are in a broadcast state. User-defined operators have no descriptions.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from enum import Enum
from typing import Any


class StateKind(Enum):
    VALUE = "value"
    LIST = "list"
    MAP = "map"
    ROWS = "rows"  # in columns: an Arrow table per key group
    DELETED = "deleted"  # the program deletes what earlier versions of it left


# The broadcast state of those that are declared when a task opens: by name, as JSON.
DECLARED = "firesteel.declared"


@dataclass(frozen=True, slots=True, kw_only=True)
class StateDescription:
    """One state. Types are those of Spark, in the form of a StructType's `jsonValue()`."""

    kind: StateKind
    keys: Any = None  # the columns of the key; None: not known
    values: Any = None  # the columns of values; None if they are in `columns`
    map_keys: Any = None  # of a map: the columns of its keys
    ttl_ms: int | None = None
    # For rows: what the state represents, such as {"window": "1 hour"}; and what columns with
    # opaque names hold, such as {"_p0_sum": "sum(d) bigint"}.
    meaning: Mapping[str, str] = field(default_factory=dict)
    columns: Mapping[str, str] = field(default_factory=dict)
    # The state that an earlier version of the program left under this name was deleted first.
    replaces: bool = False

    def to_json(self) -> str:
        return json.dumps({**asdict(self), "kind": self.kind.value})

    @classmethod
    def from_json(cls, text: str) -> StateDescription:
        """Raises ValueError for what a later version has written."""
        values = json.loads(text)
        known = {name: values[name] for name in cls.__dataclass_fields__ if name in values}
        return cls(**{**known, "kind": StateKind(values["kind"])})


StateDescriptions = Mapping[str, StateDescription]  # by name
