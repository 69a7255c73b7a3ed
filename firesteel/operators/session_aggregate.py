"""The keyed half of an aggregation in session windows by Spark's rules."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from firesteel.operators.aggregates import AggregateExpression
from firesteel.operators.spec import Spec


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionAggregateSpec(Spec):
    """Merges sessions of equal keys that touch or overlap.

    Input: key columns, among them the timestamps `start` and `end` of the session of a row; partial
    columns; `_rows`. Output: the key columns, with the bounds of the merged session, and one column
    per aggregate. The bounds must not be part of the partitioning.

    `mode` is one of Spark's output modes for sessions:

    * append: emits a session once, when the watermark reaches its end, and forgets it. A row is
      late if the watermark has reached the end of the session that it starts.
    * complete: emits all sessions before a barrier if any has changed, and forgets none.

    The end of the input completes no session.
    """

    key_columns: tuple[str, ...]  # with `start` and `end`
    start: str
    end: str
    aggregates: tuple[AggregateExpression, ...]
    mode: Literal["append", "complete"] = "append"
    # Rows, and then watermarks, are emitted only before barriers.
    at_barriers: bool = False

    uses_pandas = False
    state_in_columns = True

    @property
    def fixed_parallelism(self) -> int | None:
        """A complete result comes from one subtask: others would not know that rows changed."""
        return 1 if self.mode == "complete" else None
