"""Computes the results of merged partials."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pyarrow as pa

from firesteel.operator import RuntimeContext
from firesteel.operators import AggregateExpression
from firesteel.plan.aggregates.finals import evaluate
from firesteel.row_kind import ROW_KIND
from taskexecutor.executor.columnar.grouping.columns import as_array


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
