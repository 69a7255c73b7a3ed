"""Analyzes the first rows of keys and of windows: their columns, and whether rows can be ordered by
them.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from firesteel.column_names import column_index, same
from firesteel.errors import FiresteelError
from firesteel.operators import RowsBetweenSpec, TopNSpec, WindowTopNSpec
from firesteel.row_kind import ROW_KIND
from taskexecutor.executor.analysis.checks import check_keys
from taskexecutor.executor.analysis.step import AnalysisStep, AnalyzedOutput, Retracting
from taskexecutor.executor.analysis.windows import WINDOW_FIELDS, check_columns
from taskexecutor.executor.columnar.grouping.ordering import sorted_rows
from taskexecutor.executor.columnar.schemas import missing_column, spark_name, to_arrow
from taskexecutor.executor.operators.joins.joined_columns import without_kind
from taskexecutor.executor.operators.windows.contents import RANK


def analyze_top_n(step: AnalysisStep, spec: TopNSpec) -> AnalyzedOutput:
    what = "top_n" if spec.ranked else "drop_duplicates"
    schema, given = to_arrow(step.frame().frame.schema), step.inputs[0]
    if given.retracting or given.settled:
        schema = without_kind(schema)
    check_keys(schema, spec.key_columns)
    added = [pa.field(RANK, pa.int32())] * spec.ranked + [pa.field(ROW_KIND, pa.string())]
    _check_order(what, schema, spec.by, [field.name for field in added])
    return AnalyzedOutput(
        schema=pa.schema([*schema, *added]),
        retracting=Retracting(
            who=step.operator_name,
            because="later rows replace them",
            instead="give it windows: key_by(...).window(...).top_n(...)",
        ),
    )


def analyze_rows_between(step: AnalysisStep, spec: RowsBetweenSpec) -> AnalyzedOutput:
    given = step.inputs[0]
    assert given.schema is not None and given.final is not None, "it follows its partial half"
    partials = {name for item in spec.aggregates for name in item.merge}
    rows = [field for field in given.schema if field.name not in {*partials, ROW_KIND}]
    results = [given.final.field(item.name) for item in spec.aggregates]
    _check_order(
        "rows_between",
        pa.schema(rows),
        spec.by,
        [field.name for field in results] + [ROW_KIND] * (not given.retracting),
    )
    return AnalyzedOutput(
        schema=pa.schema([*rows, *results, pa.field(ROW_KIND, pa.string())]),
        retracting=Retracting(
            who=step.operator_name,
            because="rows inserted between others change their results",
            instead="aggregate in windows: key_by(...).window(...).aggregate(...)",
        ),
    )


def analyze_window_top_n(step: AnalysisStep, spec: WindowTopNSpec) -> AnalyzedOutput:
    schema = to_arrow(step.frame().frame.schema)
    check_columns(step, spec, schema)
    _check_order("top_n", schema, spec.by, (RANK, ROW_KIND) if spec.retracts else (RANK,))
    window_columns = {field.name for field in WINDOW_FIELDS}
    fields = [field for field in schema if field.name not in window_columns]
    fields += [*WINDOW_FIELDS, pa.field(RANK, pa.int32())]
    if spec.retracts:
        fields.append(pa.field(ROW_KIND, pa.string()))
    return AnalyzedOutput(
        schema=pa.schema(fields),
        sides={spec.late_tag: schema} if spec.late_tag else {},
        retracting=Retracting.of_window(step.operator_name) if spec.retracts else None,
    )


def _check_order(what: str, schema: pa.Schema, by: Sequence[str], taken: Sequence[str]) -> None:
    """`taken`: the columns that are added to the rows."""
    for name in by:
        index = column_index(schema, name)
        if index < 0:
            raise missing_column(f"{what}: column {name!r}", name, schema.names)
        try:
            sorted_rows([(pa.array([], schema.field(index).type), True)])
        except (pa.ArrowNotImplementedError, pa.ArrowTypeError):
            kind = spark_name(schema.field(index).type)
            raise FiresteelError(
                f"{what}: column {name!r} is {kind}, which cannot be ordered; order by a plain "
                "column, computed in an upstream transform"
            ) from None
    for name in schema.names:
        if any(same(name, one) for one in taken):
            raise FiresteelError(
                f"{what}: the stream has a column {name!r}, but the results add a column of this "
                f"name; rename it: with_column_renamed({name!r}, ...)"
            )
