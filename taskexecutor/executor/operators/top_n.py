"""The first rows of each key, as a stream of changes: `key_by(...).top_n(...)`, and the last row of
each key: `drop_duplicates(..., keep="last")`.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from firesteel.operator import OperatorState, StreamOperator
from firesteel.plan.specs import TopNSpec
from firesteel.row_kind import DELETE, INSERT, ROW_KIND
from taskexecutor.executor.aggregation.columns import as_table, described
from taskexecutor.executor.aggregation.ranked_rows import Ranked, RankedRows
from taskexecutor.executor.operators.windows.contents import RANK

BUNDLE_ROWS = 65_536  # rows that wait, or as many as are kept if that is more


class TopN(StreamOperator):
    """Each flush emits the rows that are no longer among the first of their keys, or have another
    rank, as deleted, and then those that are there now.
    """

    def __init__(self, spec: TopNSpec) -> None:
        self._spec = spec
        self._waiting: list[pa.RecordBatch] = []
        self._waiting_rows = 0

    def initialize_state(self, state: OperatorState) -> None:
        spec = self._spec
        self._rows = RankedRows(
            spec.key_columns,
            spec.n,
            list(zip(spec.by, spec.ascending, strict=True)),
            ranked=spec.ranked,
            latest_first=spec.latest_first,
            memory=state.columns,
        )
        directions = zip(spec.by, spec.ascending, strict=True)
        order = [f"{name} {'ASC' if up else 'DESC'}" for name, up in directions]
        meaning = {
            "input": described(self.context.input_schemas[0]),
            "choice": f"{spec.n} by {', '.join([*order, 'latest' * spec.latest_first])}",
        }
        self._state = state.keyed_rows("rows", spec.key_columns, meaning)

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
        gone, come = self._rows.add(pa.concat_batches(waiting))
        self._emit(gone, DELETE)
        self._emit(come, INSERT)

    def _emit(self, ranked: Ranked, kind: str) -> None:
        rows = ranked.rows
        if not rows.num_rows:
            return
        if self._spec.ranked:
            rows = rows.append_column(RANK, pa.array((ranked.ranks + 1).astype(np.int32)))
        self.output.emit(rows.append_column(ROW_KIND, pa.repeat(kind, rows.num_rows)))

    def close(self) -> None:
        self._waiting = []
