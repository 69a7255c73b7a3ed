"""The first rows of each key, without windows."""

from __future__ import annotations

from dataclasses import dataclass

from firesteel.operators.spec import Spec


@dataclass(frozen=True, slots=True, kw_only=True)
class TopNSpec(Spec):
    """Keeps the first `n` rows of each key in the order of the columns `by`, and emits the changes
    of each bundle.

    Input: the rows, which may be changes: then all of them are kept. Output: the rows, with `rank`
    (int32, from 1) if they are `ranked`, and `row_kind`. Among rows that are equal in all columns
    `by`, the earliest comes first, or the latest (`latest_first`).
    """

    key_columns: tuple[str, ...]
    n: int
    by: tuple[str, ...]
    ascending: tuple[bool, ...]  # per column
    ranked: bool = True
    latest_first: bool = False

    uses_pandas = False
    counts_rows = True
    state_in_columns = True
    applies_changes = True
