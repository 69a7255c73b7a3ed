"""Functions of the program over DataFrames."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class TransformSpec:
    """Runs `function(DataFrame) -> DataFrame` on the slot's Spark. It treats each row
    independently, or is meant for each bundle alone (`per_bundle`).
    """

    function: Callable[[Any], Any]
    per_bundle: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ApplySpec:
    """Runs `function(DataFrame, ...) -> DataFrame` over all rows of one or two inputs, on the
    slot's Spark: the rows of the subtask's keys or, without key columns, all rows.
    """

    function: Callable[..., Any]
    key_columns: tuple[tuple[str, ...], ...]  # per input
    across_keys: bool = False  # the function may relate rows of different keys
