"""Rows as JSON or CSV, written by Spark."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import pyarrow as pa

from firesteel.connectors.kafka.formats import Csv, Json
from firesteel.operator import RuntimeContext
from taskexecutor.executor.connectors.kafka.record_plan import RecordPlan

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


class TextOfRows:
    def __init__(self, format: Json | Csv, columns: Sequence[str]) -> None:
        self._format = format
        self._columns = list(columns)
        self._plan: RecordPlan | None = None

    def open(self, context: RuntimeContext, schema: pa.Schema) -> None:
        is_json, options = isinstance(self._format, Json), dict(self._format.options)

        def texts(frame: DataFrame) -> DataFrame:
            from pyspark.sql import functions as sql

            row = sql.struct(*(frame[f"`{name.replace('`', '``')}`"] for name in frame.columns))
            text = sql.to_json(row, options) if is_json else sql.to_csv(row, options)
            return frame.select(text.cast("binary").alias("text"))

        given = pa.schema([schema.field(name) for name in self._columns])
        self._plan = RecordPlan(context, given, texts)

    def encode(self, batch: pa.RecordBatch) -> pa.BinaryArray:
        assert self._plan is not None
        if not batch.num_rows:
            return pa.array([], pa.binary())
        return self._plan.run([batch.select(self._columns)]).column(0)

    def close(self) -> None:
        if self._plan is not None:
            self._plan.close()
