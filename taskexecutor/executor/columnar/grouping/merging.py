"""Merges partial results, many rows per key into one, column by column, and computes the results of
merged partials.

`firesteel.plan.aggregates.split` names the merge of each column.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import pyarrow as pa

from firesteel.errors import FiresteelError
from firesteel.operator import RuntimeContext
from firesteel.operators import AggregateExpression
from firesteel.row_kind import ROW_KIND
from taskexecutor.executor.columnar.grouping import merge_columns
from taskexecutor.executor.columnar.grouping.columns import as_array, described
from taskexecutor.executor.columnar.grouping.distinct_counts import DISTINCT
from taskexecutor.executor.columnar.grouping.grouping import Groups, group, one_group

ROWS = "_rows"  # the partial column that counts rows

_MERGES: dict[str, Callable[..., pa.Array]] = {
    "sum": merge_columns.merge_sum,
    "min": merge_columns.merge_min,
    "max": merge_columns.merge_max,
    "any": merge_columns.merge_any,
    "list": merge_columns.merge_list,
    "set": merge_columns.merge_set,
    "distinct": merge_columns.merge_set,
    "bit_and": merge_columns.merge_bits(np.bitwise_and, -1),
    "bit_or": merge_columns.merge_bits(np.bitwise_or, 0),
    "bit_xor": merge_columns.merge_bits(np.bitwise_xor, 0),
    "first": merge_columns.merge_first,
    "last": merge_columns.merge_last,
    "m2": merge_columns.merge_squares,
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


def aggregate_results(
    context: RuntimeContext,
    aggregates: Sequence[AggregateExpression],
    key_columns: Sequence[str],
    merged: pa.Table | pa.RecordBatch,
    times: Mapping[str, pa.Array],
    kinds: Mapping[str, pa.Array],
) -> pa.RecordBatch:
    """Returns the key columns, `times` (the window's columns, if any), one column per aggregate,
    and `kinds` (the column `row_kind`, if any).
    """
    from firesteel.plan.aggregates.finals import evaluate  # imports the SQL parser

    partials = {name: as_array(merged.column(name)) for item in aggregates for name in item.merge}
    columns = {name: as_array(merged.column(name)) for name in key_columns} | dict(times)
    schema = context.output_schema
    for item in aggregates:
        # Without analysis, in tests: the type of the partial, or double for computed results.
        guess = partials[item.final].type if item.final in partials else pa.float64()
        kind = schema.field(item.name).type if schema is not None else guess
        columns[item.name] = evaluate(item, partials, merged.num_rows, kind)
    columns.update(kinds)
    if schema is not None:
        if ROW_KIND not in columns and ROW_KIND in schema.names:  # the caller adds it
            schema = schema.remove(schema.get_field_index(ROW_KIND))
        return pa.RecordBatch.from_arrays(list(columns.values()), schema=schema)
    return pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))
