"""Converts Arrow batches to pandas DataFrames and back, as in PySpark's
transformWithStateInPandas.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from firesteel.common.error_report import summary_of
from firesteel.common.time_zones import in_zone
from firesteel.errors import FiresteelError
from firesteel.text import text_of
from taskexecutor.executor.columnar.schemas import shown, to_spark
from taskexecutor.executor.operators.python_rows.row_collector import (
    MAX_BUFFERED_ROWS,
    Origin,
    buffered_rows,
)

if TYPE_CHECKING:
    import pandas as pd


def to_frame(batch: pa.RecordBatch, time_zone: str) -> pd.DataFrame:
    """Converts a batch. Timestamps become local to `time_zone`, without a zone, at any depth."""
    import pandas as pd
    from pyspark.sql.conversion import ArrowBatchTransformer

    batch = in_zone(batch, time_zone)  # PySpark takes the zone of flat columns from their types
    return pd.concat(ArrowBatchTransformer.to_pandas(batch, timezone=time_zone), axis=1)


class FrameCollector:
    """Collects the DataFrames that a function yields, as batches of the declared schema.

    Columns are matched by name if their labels are strings, otherwise by position. Frames of the
    same types are converted together, because converting one costs as much as thousands of rows.
    See RowCollector.
    """

    def __init__(
        self, schema: pa.Schema, emit: Callable[[pa.RecordBatch], None], name: str, time_zone: str
    ) -> None:
        self._schema = schema
        self._spark_schema = to_spark(schema)
        self._emit = emit
        self._name = name
        self._time_zone = time_zone
        self._names: list[str] = list(schema.names)
        self._frames: list[pd.DataFrame] = []
        self._origins: list[Origin | None] = []  # of each frame; None: the operator's only function
        self._origin: Origin | None = None
        self._rows = 0
        self._limit = MAX_BUFFERED_ROWS

    def expect(self, rows: int, size_bytes: int) -> None:
        """See `RowCollector.expect`."""
        self._limit = buffered_rows(rows, size_bytes)

    def begin(self, function: str, key: Any) -> None:
        self._origin = Origin(function, key)

    def fill(self, results: Iterator[Any]) -> bool:
        for result in results:
            frame = self._arranged(result)
            if not len(frame):
                continue
            self._frames.append(frame)
            self._origins.append(self._origin)
            self._rows += len(frame)
            if self._rows >= self._limit:
                return True
        return False

    def flush(self) -> None:
        if not self._frames:
            return
        frames, origins = self._frames, self._origins
        self._frames, self._origins, self._rows = [], [], 0
        kinds = [tuple(frame.dtypes) for frame in frames]
        start = 0
        for end in range(1, len(frames) + 1):
            if end == len(frames) or kinds[end] != kinds[start]:
                self._emit_together(frames[start:end], origins[start:end])
                start = end

    def _emit_together(self, frames: list[pd.DataFrame], origins: list[Origin | None]) -> None:
        import pandas as pd

        try:
            batch = self._converted(
                frames[0] if len(frames) == 1 else pd.concat(frames, ignore_index=True)
            )
        except Exception as error:
            for frame, origin in zip(frames, origins, strict=True):
                self._blame(frame, origin)
            raise FiresteelError(f"{self._name}: {text_of(error)}") from error
        self._emit(batch)

    def _blame(self, frame: pd.DataFrame, origin: Origin | None) -> None:
        """Raises FiresteelError if this frame cannot be converted."""
        try:
            self._converted(frame)
        except Exception as error:
            raise self._misfit(frame, origin, f"; {summary_of(error)}") from error

    def _converted(self, frame: pd.DataFrame) -> pa.RecordBatch:
        from pyspark.sql.conversion import PandasToArrowConversion

        batch = PandasToArrowConversion.convert(
            frame, self._spark_schema, timezone=self._time_zone, arrow_cast=True
        )
        return pa.RecordBatch.from_arrays(batch.columns, schema=self._schema)

    def _arranged(self, frame: Any) -> pd.DataFrame:
        """Returns the frame with the schema's columns, in their order and under their names."""
        import pandas as pd

        if not isinstance(frame, pd.DataFrame):
            raise self._wrong(
                self._origin, f"yielded a {type(frame).__name__}; it must yield a pandas.DataFrame"
            )
        labels = list(frame.columns)
        if labels == self._names or (not labels and not len(frame)):
            return frame
        by_name = any(isinstance(label, str) for label in labels)
        if len(labels) != len(self._names) or (
            by_name and sorted(map(str, labels)) != sorted(self._names)
        ):
            raise self._misfit(frame, self._origin, "")
        return frame[self._names] if by_name else frame.set_axis(self._names, axis=1)

    def _misfit(self, frame: pd.DataFrame, origin: Origin | None, detail: str) -> FiresteelError:
        got = ", ".join(f"{label} {kind}" for label, kind in frame.dtypes.items())
        return self._wrong(
            origin,
            "yielded another schema than it declares: "
            f"expected {shown(self._schema)}; got {got or '(no columns)'}{detail}",
        )

    def _wrong(self, origin: Origin | None, what: str) -> FiresteelError:
        return FiresteelError(f"{self._name}: {origin or 'the function'} {what}")
