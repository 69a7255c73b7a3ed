"""The first rows of each key, as a stream of changes: `key_by(...).top_n(...)`, and the last row of
each key: `drop_duplicates(..., keep="last")`.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from firesteel.operator import OperatorState
from firesteel.plan.specs import TopNSpec
from firesteel.row_kind import DELETE, INSERT, ROW_KIND
from taskexecutor.executor.aggregation.columns import described
from taskexecutor.executor.aggregation.ranked_rows import Ranked, RankedRows
from taskexecutor.executor.operators.kept_rows import KeptRows
from taskexecutor.executor.operators.windows.contents import RANK


class TopN(KeptRows):
    """Each flush emits the rows that are no longer among the first of their keys, or have another
    rank, as deleted, and then those that are there now.
    """

    def __init__(self, spec: TopNSpec) -> None:
        super().__init__()
        self._spec = spec

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

    def change(self, bundle: pa.RecordBatch) -> None:
        gone, come = self._rows.add(bundle)
        self._emit(gone, DELETE)
        self._emit(come, INSERT)

    def _emit(self, ranked: Ranked, kind: str) -> None:
        rows = ranked.rows
        if not rows.num_rows:
            return
        if self._spec.ranked:
            rows = rows.append_column(RANK, pa.array((ranked.ranks + 1).astype(np.int32)))
        self.output.emit(rows.append_column(ROW_KIND, pa.repeat(kind, rows.num_rows)))
