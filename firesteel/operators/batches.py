"""Batches: the rows between two checkpoints, as one subtask sees them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from firesteel.operators.spec import Spec

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

BATCH = "__firesteel_batch"
CHECKPOINT = "__firesteel_checkpoint"


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchesSpec(Spec):
    """Takes the rows between two checkpoints as a batch.

    Input: the rows. Output: the rows or, with a `function`, those of `function(frame)`, where
    `frame` has all rows of the batch; it is called at the checkpoint, unless the batch is empty.

    With `marks`, the output has two more columns, which are null in rows. At each checkpoint, a row
    follows in which all other columns are null: CHECKPOINT (int64) is its id, and BATCH (int64)
    that of the batch: 0, 1, 2, ..., or null if the batch has no rows.
    """

    function: Callable[[DataFrame], DataFrame] | None = None
    marks: bool = False

    uses_pandas = False
    sees_each_update = True

    @property
    def fixed_parallelism(self) -> int:
        return 1
