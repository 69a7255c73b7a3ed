"""What operators share that keep rows of each key in order, and emit what changes."""

from __future__ import annotations

from abc import abstractmethod

import pyarrow as pa

from firesteel.operator import KeyedRows, StreamOperator
from taskexecutor.executor.aggregation.columns import as_table
from taskexecutor.executor.aggregation.ranked_rows import RankedRows

BUNDLE_ROWS = 65_536  # rows that wait, or as many as are kept if that is more


class KeptRows(StreamOperator):
    """`initialize_state` sets `_rows`, and `_state`, which holds them in checkpoints."""

    _rows: RankedRows
    _state: KeyedRows

    def __init__(self) -> None:
        self._waiting: list[pa.RecordBatch] = []
        self._waiting_rows = 0

    @abstractmethod
    def change(self, bundle: pa.RecordBatch) -> None:
        """Changes the rows by a bundle, and emits what is different then."""

    def open(self) -> None:
        if (restored := self._state.restored()) is not None:
            self._rows.restore(pa.concat_batches(restored.to_batches()))

    def snapshot_state(self, checkpoint_id: int) -> None:
        rows = self._rows.frozen()
        self._state.keep(lambda: None if (batch := rows()) is None else as_table([batch]))

    def process_batch(self, batch: pa.RecordBatch, input_index: int) -> None:
        if not batch.num_rows:
            return
        self._waiting.append(batch.replace_schema_metadata(None))
        self._waiting_rows += batch.num_rows
        if self._waiting_rows >= max(BUNDLE_ROWS, self._rows.rows):
            self.flush()

    def flush(self) -> None:
        if not self._waiting:
            return
        waiting, self._waiting, self._waiting_rows = self._waiting, [], 0
        self.change(pa.concat_batches(waiting))

    def close(self) -> None:
        self._waiting = []
