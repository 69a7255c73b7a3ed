"""Arrow batches to pandas DataFrames and back, as PySpark does it for transformWithStateInPandas."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from firesteel.errors import FiresteelError
from taskexecutor.executor.operators.stateful.rows import MAX_BUFFERED_ROWS, shown_key
from taskexecutor.executor.spark.schemas import shown

if TYPE_CHECKING:
    import pandas as pd


def to_frame(batch: pa.RecordBatch, time_zone: str) -> pd.DataFrame:
    """Timestamps become local to `time_zone`, without a zone."""
    import pandas as pd
    from pyspark.sql.conversion import ArrowBatchTransformer

    return pd.concat(ArrowBatchTransformer.to_pandas(batch, timezone=time_zone), axis=1)


class FrameCollector:
    """DataFrames that the processor yields, as batches of the declared schema.

    Columns are matched by name if their labels are texts, else by position. See `rows.RowCollector`.
    """

    def __init__(self, schema: pa.Schema, emit: Callable[[pa.RecordBatch], None], name: str, time_zone: str) -> None:
        from taskexecutor.executor.spark.schemas import to_spark

        self._schema = schema
        self._spark_schema = to_spark(schema)
        self._emit = emit
        self._name = name
        self._time_zone = time_zone
        self._batches: list[pa.RecordBatch] = []
        self._rows = 0
        self._origin: tuple[str, Any] = ("", None)

    def expect(self, rows: int, size_bytes: int) -> None:
        """See `RowCollector.expect`; DataFrames are converted as they come."""

    def begin(self, function: str, key: Any) -> None:
        self._origin = (function, key)

    def fill(self, results: Iterator[Any]) -> bool:
        for result in results:
            batch = self._converted(result)
            if batch.num_rows:
                self._batches.append(batch)
                self._rows += batch.num_rows
            if self._rows >= MAX_BUFFERED_ROWS:
                return True
        return False

    def flush(self) -> None:
        if not self._batches:
            return
        batches, self._batches, self._rows = self._batches, [], 0
        if len(batches) > 1:
            batches = pa.Table.from_batches(batches).combine_chunks().to_batches()
        for batch in batches:
            self._emit(batch)

    def _converted(self, frame: Any) -> pa.RecordBatch:
        import pandas as pd
        from pyspark.sql.conversion import PandasToArrowConversion

        if not isinstance(frame, pd.DataFrame):
            raise self._wrong(f"yielded a {type(frame).__name__}; it must yield a pandas.DataFrame")
        names = self._schema.names
        by_name = any(isinstance(label, str) for label in frame.columns)
        if len(frame.columns) == 0 and not len(frame):
            return _empty(self._schema)
        if (by_name and sorted(map(str, frame.columns)) != sorted(names)) or len(frame.columns) != len(names):
            raise self._misfit(frame, "")
        if len(frame) == 0:
            return _empty(self._schema)
        try:
            batch = PandasToArrowConversion.convert(
                frame, self._spark_schema, timezone=self._time_zone, arrow_cast=True, assign_cols_by_name=by_name
            )
        except Exception as error:
            raise self._misfit(frame, f"; {str(error).splitlines()[0] if str(error) else type(error).__name__}") from error
        return pa.RecordBatch.from_arrays(batch.columns, schema=self._schema)

    def _misfit(self, frame: pd.DataFrame, detail: str) -> FiresteelError:
        got = ", ".join(f"{label} {kind}" for label, kind in frame.dtypes.items())
        return self._wrong(
            f"yielded another schema than it declares: expected {shown(self._schema)}; got {got or '(no columns)'}{detail}"
        )

    def _wrong(self, what: str) -> FiresteelError:
        function, key = self._origin
        return FiresteelError(f"{self._name}: {function} for key {shown_key(key)} {what}")


def _empty(schema: pa.Schema) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array([], field.type) for field in schema], schema=schema)
