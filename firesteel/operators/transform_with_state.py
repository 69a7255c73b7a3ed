"""PySpark's stateful processors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class TransformWithStateSpec:
    """Runs PySpark's `StatefulProcessor` over Rows or pandas DataFrames."""

    processor: Any
    key_columns: tuple[str, ...]
    output_schema: Any  # never None
    output_mode: str = "append"  # append | update: for sinks, the processor does not see it
    time_mode: str = "none"  # None: no second input (initial state)
    pandas: bool = False
    initial_key_columns: tuple[str, ...] | None = None  # None: no second input (initial state)
