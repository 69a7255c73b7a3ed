"""Windows of which the first rows in some order are kept: `window.top_n(...)`.

The order is Spark's: nulls first, then values, then NaN; all of it reversed when descending.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from firesteel.column_names import column_index
from firesteel.plan.specs import WindowTopNSpec
from firesteel.row_kind import INSERT, ROW_KIND
from taskexecutor.executor.aggregation.columns import as_array
from taskexecutor.executor.aggregation.grouping import Ints, group, one_group
from taskexecutor.executor.numbers import as_numpy
from taskexecutor.executor.operators.windows.contents import (
    RANK,
    TIME,
    WINDOW_END,
    WINDOW_START,
    Combined,
    as_timestamps,
)
from taskexecutor.executor.operators.windows.kept_rows import KeptRows


class TopContents(KeptRows):
    """At most n rows per key and window; others are dropped as soon as rows are combined."""

    combines = True
    one_window_at_a_time = False

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
        ranks = _ranks(windows[order], codes[order])
        order = order[ranks < self._spec.n]
        return Combined(table.take(pa.array(order)), windows[order])

    def emit(self, table: pa.Table, starts: Ints, ends: Ints, kind: str = INSERT) -> None:
        """The rows of a key and window follow each other in order: `combined` has sorted them."""
        if not table.num_rows:
            return
        ranks = pa.array(_ranks(starts, ends, self._codes(table)) + 1, pa.int32())
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
        """The number of each row's key."""
        if not self.key_columns:
            return one_group(table.num_rows).codes
        places = [column_index(table.schema, key) for key in self.key_columns]
        return group([as_array(table.column(place)) for place in places]).codes


def sorted_rows(columns: list[tuple[pa.Array, bool]]) -> Ints:
    """The order of rows by columns, each of them ascending or not. Equal rows stay in order."""
    by: list[tuple[pa.Array, str]] = []
    for column, ascending in columns:
        direction = "ascending" if ascending else "descending"
        missing, not_a_number = pc.is_null(column), None
        if pa.types.is_floating(column.type):
            not_a_number = pc.is_nan(column).fill_null(False)
        if column.null_count:
            by.append((pc.cast(pc.invert(missing), pa.int8()), direction))
        if not_a_number is not None and pc.any(not_a_number).as_py():
            by.append((pc.cast(not_a_number, pa.int8()), direction))
        by.append((column, direction))
    table = pa.table({str(number): column for number, (column, _) in enumerate(by)})
    keys: Any = [(str(number), direction) for number, (_, direction) in enumerate(by)]
    order: Ints = as_numpy(pc.sort_indices(table, sort_keys=keys)).astype(np.int64)
    return order


def _ranks(*columns: Ints) -> Ints:
    """How many rows before each one are equal to it; equal rows follow each other."""
    rows = len(columns[0])
    begins = np.ones(rows, np.bool_)
    if rows:
        begins[1:] = np.any([column[1:] != column[:-1] for column in columns], axis=0)
    heads = np.flatnonzero(begins)
    ranks: Ints = np.arange(rows) - heads[np.cumsum(begins) - 1]
    return ranks
