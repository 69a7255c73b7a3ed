"""Base of operators that keep the rows of each key in order and emit the changes, or in a batch the
final result.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Container, Iterator, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from firesteel.errors import FiresteelError
from firesteel.operator import KeyedRows, StreamOperator
from firesteel.row_kind import DELETE, ROW_KIND
from taskexecutor.executor.columnar import choose
from taskexecutor.executor.columnar.grouping.division import divided
from taskexecutor.executor.columnar.grouping.ordered_rows import Changed, Missing, OrderedRows
from taskexecutor.executor.columnar.grouping.ranked_rows import Ranked, RankedRows
from taskexecutor.executor.numbers import as_numpy
from taskexecutor.executor.runtime_mode import is_batch

BUNDLE_ROWS = 65_536  # waiting rows, if greater than the number of kept rows
PART_ROWS = 65_536  # rows of a batch's results, except for keys with more rows


class ChangelogRows(StreamOperator):
    """`initialize_state` sets `_rows`, and `_state`, which holds them in checkpoints."""

    computes = choose.GROUPING
    _rows: RankedRows
    _state: KeyedRows

    def __init__(self) -> None:
        self._waiting: list[pa.RecordBatch] = []
        self._waiting_rows = 0

    @abstractmethod
    def change(self, bundle: pa.RecordBatch) -> None:
        """Applies a bundle to the rows, and emits the changes if `updates`."""

    @abstractmethod
    def emit_results(self, kept: Ranked) -> None:
        """Emits the results of all rows of some keys, key by key."""

    def open(self) -> None:
        self.updates = not is_batch(self.context)
        if (restored := self._state.restored()) is not None:
            self._rows.restore(restored)

    def snapshot_state(self, checkpoint_id: int) -> None:
        self._state.keep(self._rows.frozen())

    def process_batch(self, batch: pa.RecordBatch, input_index: int) -> None:
        if not batch.num_rows:
            return
        self._waiting.append(self._rows.memory.kept(batch.replace_schema_metadata(None)))
        self._waiting_rows += batch.num_rows
        if self._waiting_rows >= max(BUNDLE_ROWS, self._rows.rows):
            self.flush()

    def flush(self) -> None:
        if not self._waiting:
            return
        waiting, self._waiting, self._waiting_rows = self._waiting, [], 0
        for bundle in self._bundles(waiting):
            self.change(bundle)

    def _bundles(self, waiting: Sequence[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yields all waiting rows, or some of their keys at a time if they exceed the memory."""
        rows = self._rows
        parts = rows.parts_of(waiting)
        if parts == 1:
            yield pa.concat_batches(waiting)
            return
        by_batch = [divided(batch, rows.key_columns, parts, rows.memory) for batch in waiting]
        for part in range(parts):
            bundle = pa.concat_batches([each.of(part) for each in by_batch])
            if bundle.num_rows:
                yield bundle

    def finish(self) -> None:
        if not self.updates:
            for kept in self._rows.parts(PART_ROWS):
                self.emit_results(kept)

    def close(self) -> None:
        self._waiting = []


def changed_by(
    bundle: pa.RecordBatch, rows: OrderedRows, operator_name: str, *, hidden: Container[str] = ()
) -> Changed:
    """Applies a bundle to `rows`; its column `row_kind` marks deletions. Raises FiresteelError for
    a deleted row that does not exist, without showing `hidden` columns.
    """
    goes = np.zeros(bundle.num_rows, np.bool_)
    place = bundle.schema.get_field_index(ROW_KIND)
    if place >= 0:
        goes = as_numpy(pc.equal(bundle.column(place), DELETE))
        bundle = bundle.remove_column(place)
    try:
        return rows.change(bundle, goes)
    except Missing as missing:
        row = bundle.slice(missing.row, 1).to_pylist()[0]
        shown = {name: value for name, value in row.items() if name not in hidden}
        raise FiresteelError(
            f"{operator_name}: cannot delete a row that does not exist: {shown}; an upstream "
            "operator must have changed rows or their order"
        ) from None
