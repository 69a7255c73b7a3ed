"""Encodes rows with an expression of Spark."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import pyarrow as pa

from firesteel.operator import RuntimeContext
from taskexecutor.executor.connectors.kafka.record_plan import RecordPlan

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame


class SparkEncoder(ABC):
    """Encodes the columns of each row, as one struct."""

    def __init__(self, columns: Sequence[str]) -> None:
        self._columns = list(columns)
        self._plan: RecordPlan | None = None

    @abstractmethod
    def expression(self, context: RuntimeContext, schema: pa.Schema) -> Callable[[Column], Column]:
        """Returns what makes a binary column of the struct. `schema` describes its fields."""

    def open(self, context: RuntimeContext, schema: pa.Schema) -> None:
        given = pa.schema([schema.field(name) for name in self._columns])
        encoded = self.expression(context, given)

        def encode(frame: DataFrame) -> DataFrame:
            from pyspark.sql import functions as sql

            row = sql.struct(*(frame[f"`{name.replace('`', '``')}`"] for name in frame.columns))
            return frame.select(encoded(row).alias("bytes"))

        self._plan = RecordPlan(context, given, encode)

    def encode(self, batch: pa.RecordBatch) -> pa.BinaryArray:
        assert self._plan is not None
        if not batch.num_rows:
            return pa.array([], pa.binary())
        return self._plan.run([batch.select(self._columns)]).column(0)

    def close(self) -> None:
        if self._plan is not None:
            self._plan.close()
