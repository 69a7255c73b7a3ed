"""Windows that keep their first rows in an order: `window.top_n(...)`."""

from __future__ import annotations

import pyarrow as pa

from firesteel.column_names import column_index
from firesteel.operators import WindowTopNSpec
from firesteel.operators.assigners import WINDOW_END, WINDOW_START
from firesteel.row_kind import INSERT, ROW_KIND
from taskexecutor.executor.columnar.grouping.columns import as_array
from taskexecutor.executor.columnar.grouping.grouping import Ints, group, one_group
from taskexecutor.executor.columnar.grouping.ordering import ranks_of, sorted_rows
from taskexecutor.executor.operators.columns import RANK, TIME, as_timestamps
from taskexecutor.executor.operators.windows.contents import Combined, StoredRows


class TopContents(StoredRows):
    """At most n rows per key and window. Others are dropped as soon as rows are combined."""

    combines = True
    one_window_at_a_time = False
    with_all_keys = False

    def __init__(self, spec: WindowTopNSpec) -> None:
        self._spec: WindowTopNSpec = spec
        self.key_columns = spec.key_columns
        self.retracts = spec.retracts

    def meaning(self) -> dict[str, str]:
        directions = zip(self._spec.by, self._spec.ascending, strict=True)
        order = ", ".join(f"{name} {'ASC' if up else 'DESC'}" for name, up in directions)
        return {**super().meaning(), "choice": f"{self._spec.n} by {order}"}

    def combined(self, table: pa.Table, windows: Ints, *, of_one_key: bool = False) -> Combined:
        codes = windows if of_one_key else self._codes(table)
        order = sorted_rows(
            [(pa.array(windows), True), (pa.array(codes), True)]
            + [
                (as_array(table.column(column_index(table.schema, name))), ascending)
                for name, ascending in zip(self._spec.by, self._spec.ascending, strict=True)
            ]
        )
        ranks = ranks_of(windows[order], codes[order])
        order = order[ranks < self._spec.n]
        return Combined(table.take(pa.array(order)), windows[order])

    def emit(self, table: pa.Table, starts: Ints, ends: Ints, kind: str = INSERT) -> None:
        """Emits the rows of each key and window in order, as sorted by `combined`."""
        if not table.num_rows:
            return
        ranks = pa.array(ranks_of(starts, ends, self._codes(table)) + 1, pa.int32())
        added = {
            WINDOW_START: (TIME, as_timestamps(starts)),
            WINDOW_END: (TIME, as_timestamps(ends)),
            RANK: (pa.int32(), ranks),
        }
        if self.retracts:
            added[ROW_KIND] = (pa.string(), pa.repeat(kind, table.num_rows))
        for name, (kind_of, column) in added.items():
            if name in table.schema.names:  # the rows are results of other windows
                table = table.drop_columns([name])
            table = table.append_column(pa.field(name, kind_of), column)
        for batch in table.combine_chunks().to_batches():
            self._output.emit(batch)

    def _codes(self, table: pa.Table) -> Ints:
        """Returns the number of each row's key."""
        if not self.key_columns:
            return one_group(table.num_rows).codes
        places = [column_index(table.schema, key) for key in self.key_columns]
        return group([as_array(table.column(place)) for place in places]).codes
