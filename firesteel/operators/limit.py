"""Ends a stream after some rows."""

from __future__ import annotations

from dataclasses import dataclass

from firesteel.operators.spec import Spec


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitSpec(Spec):
    """Keeps the first `rows` rows that arrive, and drops the others. Input and output: the rows."""

    rows: int

    uses_pandas = False
    counts_rows = True

    @property
    def fixed_parallelism(self) -> int:
        return 1
