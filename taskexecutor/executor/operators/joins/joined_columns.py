"""The columns of a join's result, and the keys of joined rows.

A key with a null in any column equals no other key.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from firesteel.column_names import column_index, same
from firesteel.errors import FiresteelError
from firesteel.operator import RuntimeContext
from firesteel.operators import AsOfSpec, JoinSpec, SameWindowSpec
from firesteel.operators.assigners import WINDOW_END, WINDOW_START
from firesteel.row_kind import INSERT, ROW_KIND
from taskexecutor.executor.columnar.grouping.grouping import Ints, group
from taskexecutor.executor.columnar.grouping.key_index import KeyIndex
from taskexecutor.executor.numbers import as_numpy
from taskexecutor.executor.operators.columns import TIME, as_timestamps, without_kind

NO_WINDOWS: Ints = np.empty(0, np.int64)  # for rows without windows


class JoinedColumns:
    """The columns of PySpark's join on names: a key column that has the same name on both sides
    occurs once.
    """

    def __init__(self, spec: JoinSpec, left: pa.Schema, right: pa.Schema) -> None:
        """Raises FiresteelError if the result would have two columns of the same name."""
        # Changes of either side change the result; those of versions are part of their history.
        changes = any(ROW_KIND in side.names for side in (left, right))
        self.retracts = spec.retracts or (changes and not isinstance(spec.within, AsOfSpec))
        left, right = without_kind(left), without_kind(right)
        self.window = spec.within.window if isinstance(spec.within, SameWindowSpec) else None
        keys = [
            (column_index(left, mine), column_index(right, theirs))
            for mine, theirs in zip(spec.left_keys, spec.right_keys, strict=True)
        ]
        shared = [(i, j) for i, j in keys if same(left.field(i).name, right.field(j).name)]
        mine, theirs = {i for i, _ in shared}, {j for _, j in shared}
        # Of each column: its index in the left and in the right rows, where they have it.
        self.places: list[tuple[int | None, int | None]] = [
            *shared,
            *((place, None) for place in range(len(left)) if place not in mine),
            *((None, place) for place in range(len(right)) if place not in theirs),
        ]
        if spec.how == "semi":
            self.places = [(place, None) for place in range(len(left))]
        fields = [left.field(i) if i is not None else right.field(j or 0) for i, j in self.places]
        if self.window is not None:
            fields += [pa.field(WINDOW_START, TIME), pa.field(WINDOW_END, TIME)]
        if self.retracts:
            fields.append(pa.field(ROW_KIND, pa.string()))
        _check_names(fields)
        self.schema = pa.schema([field.with_nullable(True) for field in fields])

    @classmethod
    def of_inputs(cls, spec: JoinSpec, context: RuntimeContext) -> JoinedColumns:
        """Returns the columns for the operator's inputs. Also raises FiresteelError if the schema
        of an input is unknown.
        """
        left, right = context.input_schemas
        if left is None or right is None:
            raise FiresteelError(
                f"{context.operator_name}: the schemas of both streams must be known; declare them"
                " on the operators before it"
            )
        return cls(spec, left, right)

    def batch(
        self,
        left: pa.RecordBatch | None,
        right: pa.RecordBatch | None,
        windows: Ints,
        kind: str = INSERT,
    ) -> pa.RecordBatch:
        """Returns pairs of rows, or rows of one side with nulls for the other side (None).
        `windows` are their starts, if any.
        """
        rows = max(batch.num_rows for batch in (left, right) if batch is not None)
        columns: list[pa.Array] = []
        for places, field in zip(self.places, self.schema, strict=False):
            for batch, place in zip((left, right), places, strict=True):
                if batch is not None and place is not None:
                    columns.append(batch.column(place))
                    break
            else:
                columns.append(pa.nulls(rows, field.type))
        if self.window is not None:
            columns += [as_timestamps(windows), as_timestamps(windows + self.window.size_us)]
        if self.retracts:
            columns.append(pa.repeat(kind, rows))
        return pa.RecordBatch.from_arrays(columns, schema=self.schema)


def _check_names(fields: list[pa.Field]) -> None:
    names: list[str] = []
    for field in fields:
        if any(same(field.name, name) for name in names):
            raise FiresteelError(
                f"the result would have two columns {field.name!r}; rename or drop one of them"
                f" before the join: with_column_renamed({field.name!r}, ...)"
            )
        names.append(field.name)


Flags = np.ndarray[Any, np.dtype[np.bool_]]


def columns_of(rows: pa.RecordBatch, names: Sequence[str]) -> list[pa.Array]:
    return [rows.column(column_index(rows.schema, name)) for name in names]


def without_key(rows: pa.RecordBatch, names: Sequence[str]) -> Flags:
    """Returns which rows have a null in their key."""
    nulls: Flags = np.zeros(rows.num_rows, np.bool_)
    for column in columns_of(rows, names):
        if column.null_count:
            nulls |= as_numpy(column.is_null())
    return nulls


def numbers_of(index: KeyIndex, rows: pa.RecordBatch, names: Sequence[str]) -> Ints:
    """Returns the number of each row's key. Numbers new keys."""
    keys = columns_of(rows, names)
    groups = group(keys)
    first = pa.array(groups.first_rows())
    return index.numbers([key.take(first) for key in keys])[groups.codes]
