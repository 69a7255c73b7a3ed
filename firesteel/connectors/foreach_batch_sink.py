"""Sinks that pass batches of rows to a function of the program."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from firesteel.connectors.sink import Sink

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row


@dataclass(frozen=True, slots=True)
class ForeachBatchSink(Sink):
    """The sink of `DataStream.foreach_batch`.

    With `consecutive`, the ids of batches are 0, 1, 2, ... and continue after a restore; the job
    takes checkpoints, and the sink has one subtask. `completed` is the URI of a directory in which
    a batch is recorded once the function has returned: a job that restores a recorded batch does
    not pass it to the function again.
    """

    function: Callable[[DataFrame, int], None]
    consecutive: bool = False
    completed: str = ""


@dataclass(frozen=True, slots=True)
class ForeachRowsSink(Sink):
    """Calls `function(rows, partition, epoch)` with the rows between two checkpoints, as often as
    a ForeachBatchSink calls its function. The partition is that of the subtask that received the
    rows, and the epoch that of the checkpoint: both stay the same if the call is repeated.
    """

    function: Callable[[Sequence[Row], int, int], None]
    completed: str = ""

    @property
    def consecutive(self) -> bool:
        """Whether the ids of batches are consecutive."""
        return False
