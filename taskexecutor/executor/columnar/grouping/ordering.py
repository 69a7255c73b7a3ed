"""Spark's order of rows: nulls first, then values, then NaN; all of it reversed if descending."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from taskexecutor.executor.columnar.grouping.grouping import Ints
from taskexecutor.executor.numbers import as_numpy


def sorted_rows(columns: list[tuple[pa.Array, bool]]) -> Ints:
    """Returns the order of rows by columns, each ascending or descending. Equal rows stay in
    order.
    """
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


def ranks_of(*columns: Ints) -> Ints:
    """Returns how many rows before each row are equal to it; equal rows are adjacent."""
    rows = len(columns[0])
    begins = np.ones(rows, np.bool_)
    if rows:
        begins[1:] = np.any([column[1:] != column[:-1] for column in columns], axis=0)
    heads = np.flatnonzero(begins)
    ranks: Ints = np.arange(rows) - heads[np.cumsum(begins) - 1]
    return ranks
