"""Rows of windows that are not defined by time alone: finds them when their windows fire, and runs
the computation of the results.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import pyarrow as pa

from firesteel.column_names import column_index
from firesteel.operator import ColumnMemory, Output, RuntimeContext
from taskexecutor.executor.columnar.grouping.grouping import Ints, group, one_group
from taskexecutor.executor.columnar.grouping.key_index import KeyIndex
from taskexecutor.executor.operators.columns import TIME, WINDOW_ID

MOST_ROWS = 262_144  # approximate rows of windows that are computed together


class Results(Protocol):
    """Computes results of the rows of firing windows: `SparkWindows`."""

    @property
    def together(self) -> bool:
        """Whether `run` accepts several windows of a key."""

    def setup(self, context: RuntimeContext, output: Output) -> None: ...

    def run(self, table: pa.Table) -> None:
        """Computes the results of the rows, which have their window's columns."""

    def close(self) -> None: ...


class Keys:
    """Numbers the keys of rows, from 0 in the order of arrival."""

    def __init__(self, key_columns: Sequence[str], memory: ColumnMemory) -> None:
        self.columns = tuple(key_columns)
        self._index = KeyIndex(memory)
        self._any = False

    @property
    def count(self) -> int:
        return self._index.count if self.columns else int(self._any)

    def numbers(self, batch: pa.RecordBatch) -> Ints:
        """Returns the number of each row's key."""
        if not self.columns:
            self._any = True
            return one_group(batch.num_rows).codes
        columns = [batch.column(column_index(batch.schema, name)) for name in self.columns]
        groups = group(columns)
        first = pa.array(groups.first_rows())
        numbers: Ints = self._index.numbers([column.take(first) for column in columns])
        return numbers[groups.codes]

    def frozen(self, schema: pa.Schema) -> list[pa.Array]:
        """Returns the columns of all keys, in the order of their numbers. `schema` is that of the
        rows.
        """
        found = self._index.frozen()() or []
        return [
            column.cast(schema.field(column_index(schema, name)).type)
            for name, column in zip(self.columns, found, strict=False)
        ]


def ranks_within(codes: Ints) -> Ints:
    """Returns how many earlier rows have the same code."""
    order = np.argsort(codes, kind="stable")
    ordered = codes[order]
    heads = np.flatnonzero(np.concatenate(([True], ordered[1:] != ordered[:-1])))
    sizes = np.diff(np.append(heads, len(codes)))
    ranks = np.empty(len(codes), np.int64)
    ranks[order] = np.arange(len(codes)) - np.repeat(heads, sizes)
    return ranks


def window_field(name: str) -> pa.Field:
    return pa.field(name, pa.int64() if name == WINDOW_ID else TIME)


def with_window(table: pa.Table, columns: dict[str, pa.Array]) -> pa.Table:
    """Returns the rows with their window's columns, which replace columns of the same names."""
    for name, values in columns.items():
        if name in table.schema.names:  # the rows are results of other windows
            table = table.drop_columns([name])
        table = table.append_column(window_field(name), values)
    return table
