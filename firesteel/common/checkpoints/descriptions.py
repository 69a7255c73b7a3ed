"""What the states of an operator are, as a checkpoint's metadata says: enough to read them without
the program, and to tell whether a later program can go on with them.

They are found when the job's plan is analysed. `co_process` declares its states when it opens:
those with a schema are in a broadcast state. Operators of your own have none.
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
    """Types are those of Spark, as `jsonValue()` of a StructType has them."""

    kind: StateKind
    keys: Any = None  # the columns of the key; None: not known
    values: Any = None  # the columns of values; None if they are in `columns`
    map_keys: Any = None  # of a map: the columns of its own keys
    ttl_ms: int | None = None
    # Of rows: what the whole stands for, such as {"window": "1 hour"}; and, of columns whose names
    # say nothing, what they hold, such as {"_p0_sum": "sum(d) bigint"}.
    meaning: Mapping[str, str] = field(default_factory=dict)
    columns: Mapping[str, str] = field(default_factory=dict)
    # What an earlier version of the program left under this name was deleted before.
    replaces: bool = False

    def to_json(self) -> str:
        return json.dumps({**asdict(self), "kind": self.kind.value})

    @classmethod
    def from_json(cls, text: str) -> StateDescription:
        """Raises ValueError for what a later version has written."""
        found = json.loads(text)
        known = {name: found[name] for name in cls.__dataclass_fields__ if name in found}
        return cls(**{**known, "kind": StateKind(found["kind"])})


StateDescriptions = Mapping[str, StateDescription]  # by name
