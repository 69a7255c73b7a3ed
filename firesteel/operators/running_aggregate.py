"""The keyed half of an aggregation without windows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from firesteel.operators.aggregates import AggregateExpression
from firesteel.operators.assigners import WINDOW_END, SlidingSpec, WindowSpec
from firesteel.operators.spec import Spec


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningAggregateSpec(Spec):
    """The keyed half without windows: emits the new values of the changed keys, as an upsert
    stream.

    Output: key columns, one column per aggregate, and `row_kind` if its rows are `changes`, or
    those of its input are.

    `mode` is one of Spark's output modes:

    * update: emits the changed keys.
    * append: emits a key once, when it expires. Needs `expires`.
    * complete: emits all keys before a barrier if any has changed. No key expires.

    A key expires when the watermark reaches its time, the value of the key column `expires`: it is
    forgotten, and later rows of the key are late. Keys without a time, null, do not expire. The end
    of the input expires nothing.
    """

    key_columns: tuple[str, ...]
    aggregates: tuple[AggregateExpression, ...]
    window: WindowSpec | None = None  # of which a key column is the end
    changes: bool = False  # a key's earlier values are retracted before the new ones are emitted
    mode: Literal["update", "append", "complete"] = "update"
    expires: str = ""  # a key column with timestamps; empty: keys do not expire
    # Rows, and then watermarks, are emitted only before barriers, each key at most once.
    at_barriers: bool = False
    forgets: bool = False  # every key at each barrier, once its row is emitted; it has no state

    uses_pandas = False
    state_in_columns = True

    @property
    def in_panes(self) -> bool:
        """Whether the input has the panes of sliding windows, not whole windows: each window is
        emitted once, when it expires. The rows of a key in all windows then belong to one subtask.
        """
        sliding = isinstance(self.window, SlidingSpec)
        return sliding and self.mode == "append" and self.expires == WINDOW_END

    @property
    def fixed_parallelism(self) -> int | None:
        """A complete result comes from one subtask: others would not know that rows changed."""
        return 1 if self.mode == "complete" else None
