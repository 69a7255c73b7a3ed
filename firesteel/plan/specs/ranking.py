"""The first rows of each key, without windows."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class TopNSpec:
    """Keeps the first `n` rows of each key in the order of the columns `by`, and emits what changes
    with each bundle.

    Input: the rows. Output: the rows, with `rank` (int32, from 1) if they are `ranked`, and
    `row_kind`. Of rows that are equal in all columns `by`, the earliest comes first, or the latest
    (`latest_first`).
    """

    key_columns: tuple[str, ...]
    n: int
    by: tuple[str, ...]
    ascending: tuple[bool, ...]  # of each column
    ranked: bool = True
    latest_first: bool = False
