"""The rows around each row of a key."""

from __future__ import annotations

from dataclasses import dataclass

from firesteel.operators.aggregates import AggregateExpression
from firesteel.operators.spec import Spec


@dataclass(frozen=True, slots=True, kw_only=True)
class RowsBetweenSpec(Spec):
    """Keeps all rows of each key in the order of the columns `by`, and aggregates, for each row,
    the rows at relative positions `start` to `end`: -9 and 0 select the nine rows before it and
    itself.

    Input: the rows, with their contributions to the partial columns. Output: the rows, one column
    per aggregate, and `row_kind`.
    """

    key_columns: tuple[str, ...]
    by: tuple[str, ...]
    ascending: tuple[bool, ...]  # per column
    start: int  # not positive
    end: int  # not negative
    aggregates: tuple[AggregateExpression, ...]

    state_in_columns = True
    applies_changes = True
    instead_of_growing = "windows: key_by(...).window(...).aggregate(...)"
