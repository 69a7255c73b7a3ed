"""Functions of the program over DataFrames."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from firesteel.operators.spec import Spec


@dataclass(frozen=True, slots=True, kw_only=True)
class TransformSpec(Spec):
    """Runs `function(DataFrame) -> DataFrame` on the slot's Spark. It treats each row
    independently, or is meant for each bundle alone (`per_bundle`).
    """

    function: Callable[[Any], Any]
    per_bundle: bool = False

    uses_pandas = False
    runs_on_spark = True


@dataclass(frozen=True, slots=True, kw_only=True)
class ApplySpec(Spec):
    """Runs `function(DataFrame, ...) -> DataFrame` over all rows of one or two inputs, on the
    slot's Spark: the rows of the subtask's keys or, without key columns, all rows.
    """

    function: Callable[..., Any]
    key_columns: tuple[tuple[str, ...], ...]  # per input
    across_keys: bool = False  # the function may relate rows of different keys

    waits_for_end = True
    counts_rows = True
    sets_times = True
    begins_event_time = True

    def time_advances(self, before: bool) -> bool:
        return False
