"""ForeachBatchSink: passes the rows to a function of the program as DataFrames."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from firesteel.connectors.sink import Sink

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


@dataclass(frozen=True, slots=True)
class ForeachBatchSink(Sink):
    """The sink of `DataStream.foreach_batch`."""

    function: Callable[[DataFrame, int], None]
