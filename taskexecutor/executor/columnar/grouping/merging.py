"""Merges partial results: many rows per key into one, column by column.

`firesteel.plan.aggregates.split` names the merge of each column.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import pyarrow as pa

from firesteel.errors import FiresteelError
from firesteel.operators import AggregateExpression
from taskexecutor.executor.columnar.grouping import merge_numbers, merge_values
from taskexecutor.executor.columnar.grouping.columns import as_array, described
from taskexecutor.executor.columnar.grouping.distinct_counts import DISTINCT
from taskexecutor.executor.columnar.grouping.grouping import Groups, group, one_group

ROWS = "_rows"  # the partial column that counts rows

_MERGES: dict[str, Callable[..., pa.Array]] = {
    "sum": merge_numbers.merge_sum,
    "min": merge_numbers.merge_min,
    "max": merge_numbers.merge_max,
    "any": merge_values.merge_any,
    "list": merge_values.merge_list,
    "set": merge_values.merge_set,
    "distinct": merge_values.merge_set,
    "bit_and": merge_numbers.merge_bits(np.bitwise_and, -1),
    "bit_or": merge_numbers.merge_bits(np.bitwise_or, 0),
    "bit_xor": merge_numbers.merge_bits(np.bitwise_xor, 0),
    "first": merge_values.merge_first,
    "last": merge_values.merge_last,
    "m2": merge_numbers.merge_squares,
}


def merges_of(aggregates: Sequence[AggregateExpression]) -> dict[str, str]:
    """Returns the merge of each partial column of the aggregates, and of the row count."""
    return {name: how for item in aggregates for name, how in item.merge.items()} | {ROWS: "sum"}


def meaning_of_partials(
    aggregates: Sequence[AggregateExpression], schema: pa.Schema | None
) -> dict[str, str]:
    """Returns the meaning of partial rows: see `firesteel.operator.OperatorState.keyed_rows`."""
    partial = columns_of_partials(aggregates, schema)
    rest = [field for field in schema or () if field.name not in partial]
    return {"input": described(pa.schema(rest))}


def columns_of_partials(
    aggregates: Sequence[AggregateExpression], schema: pa.Schema | None
) -> dict[str, str]:
    """Returns descriptions of the partial columns: see
    `firesteel.operator.OperatorState.keyed_rows`. A later program may rename or drop results.
    """
    types = {field.name: f" {field.type}" for field in schema or ()}
    return {
        name: ("distinct " if item.merge[name] == DISTINCT else "") + sql + types.get(name, "")
        for item in aggregates
        for name, sql in item.partial.items()
    }


def merge_partials(
    table: pa.Table, keys: Sequence[str], merges: Mapping[str, str]
) -> pa.RecordBatch:
    """Merges the table into one row per key, in no particular order: the key columns, then the
    merged ones.

    Raises FiresteelError for an overflow, as Spark does, and for types that cannot be merged.
    """
    columns = {name: as_array(table.column(name)) for name in (*keys, *merges)}
    groups = group([columns[key] for key in keys]) if keys else one_group(table.num_rows)
    schema = pa.schema([table.schema.field(name) for name in columns])
    if groups.count == table.num_rows:  # every key occurs once
        return pa.RecordBatch.from_arrays(list(columns.values()), schema=schema)
    first = pa.array(groups.first_rows())
    merged = [columns[key].take(first) for key in keys]
    merged += [merge_column(how, columns[name], groups, columns) for name, how in merges.items()]
    return pa.RecordBatch.from_arrays(merged, schema=schema)


def merge_column(
    how: str, column: pa.Array, groups: Groups, columns: Mapping[str, pa.Array]
) -> pa.Array:
    """Merges a column. `columns` are all unmerged partial columns, for merges that use another
    column (`first:...`).
    """
    kind, *others = how.split(":")
    try:
        merged = _MERGES[kind](column, groups, *(columns[other] for other in others))
        return merged if merged.type == column.type else merged.cast(column.type)
    except (pa.ArrowNotImplementedError, pa.ArrowInvalid) as error:
        raise FiresteelError(
            f"partial results of type {column.type} cannot be merged by {kind}: {error}"
        ) from error
