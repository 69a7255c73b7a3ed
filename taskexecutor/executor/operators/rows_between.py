"""Aggregates over the neighbouring rows of each row within its key:
`key_by(...).rows_between(...)`.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from firesteel.operator import OperatorState
from firesteel.operators import RowsBetweenSpec
from firesteel.plan.aggregates.finals import evaluate
from firesteel.row_kind import DELETE, INSERT, ROW_KIND
from taskexecutor.executor.analysis.checks import check_order
from taskexecutor.executor.analysis.step import AnalysisStep, AnalyzedOutput, Retracting
from taskexecutor.executor.columnar.grouping.columns import described
from taskexecutor.executor.columnar.grouping.distinct_counts import DISTINCT
from taskexecutor.executor.columnar.grouping.grouping import Groups, Ints, group
from taskexecutor.executor.columnar.grouping.merging import merge_column
from taskexecutor.executor.columnar.grouping.ordered_rows import (
    Changed,
    Ordered,
    OrderedRows,
    in_order,
)
from taskexecutor.executor.columnar.grouping.ranked_rows import Flags, Ranked, ranges
from taskexecutor.executor.numbers import as_numpy
from taskexecutor.executor.operators.changelog_rows import ChangelogRows, changed_by
from taskexecutor.executor.operators.registry import OperatorKind, alone

PART_ROWS = 65_536  # rows whose results are compared at a time
AT_ONCE = 1_048_576  # rows aggregated at a time, counted once for each neighbour


class RowsBetween(ChangelogRows):
    """Keeps all rows. Each flush emits, for all keys or some at a time, DELETE for rows that are
    deleted or whose results change, and then INSERT for rows that are new or have new results. In a
    batch, each row is emitted once, at the end.
    """

    _rows: OrderedRows

    def __init__(self, spec: RowsBetweenSpec) -> None:
        super().__init__()
        self._spec = spec
        self._merges = {name: how for item in spec.aggregates for name, how in item.merge.items()}

    def initialize_state(self, state: OperatorState) -> None:
        spec = self._spec
        by = list(zip(spec.by, spec.ascending, strict=True))
        self._rows = OrderedRows(spec.key_columns, by, state.columns)
        order = [f"{name} {'ASC' if up else 'DESC'}" for name, up in by]
        meaning = {"input": described(self.context.input_schemas[0]), "order": ", ".join(order)}
        self._state = state.keyed_rows("rows", spec.key_columns, meaning)

    def change(self, bundle: pa.RecordBatch) -> None:
        name = self.context.operator_name
        changed = changed_by(bundle, self._rows, name, hidden=self._merges)
        if self.updates:
            self._emit_changes(changed)

    def emit_results(self, kept: Ranked) -> None:
        rows = in_order(kept)
        for some in self._parts(rows, np.arange(kept.rows.num_rows)):
            self._emit(rows, some, INSERT)

    def _emit_changes(self, changed: Changed) -> None:
        before, after = changed.before, changed.after
        near = self._near(before, changed.gone)[changed.stayed_before]
        near |= self._near(after, changed.come)[changed.stayed_after]
        was, now = changed.stayed_before[near], changed.stayed_after[near]
        differ = np.ones(len(was), np.bool_)
        for begin in range(0, len(was), PART_ROWS):
            part = slice(begin, begin + PART_ROWS)
            results = self._results(before, was[part]), self._results(after, now[part])
            differ[part] = _differ(*results)
        gone = np.concatenate((np.flatnonzero(changed.gone), was[differ]))
        come = np.concatenate((np.flatnonzero(changed.come), now[differ]))
        for kind, rows, places in ((DELETE, before, gone), (INSERT, after, come)):
            for some in self._parts(rows, np.sort(places)):
                self._emit(rows, some, kind)

    def _emit(self, ordered: Ordered, places: Ints, kind: str) -> None:
        names = [name for name in ordered.rows.schema.names if name not in self._merges]
        rows = ordered.rows.select(names).take(pa.array(places))
        for item, result in zip(self._spec.aggregates, self._results(ordered, places), strict=True):
            rows = rows.append_column(item.name, result)
        self.output.emit(rows.append_column(ROW_KIND, pa.repeat(kind, rows.num_rows)))

    def _window(self, rows: Ordered) -> tuple[Ints, Ints]:
        """Returns the first and last row that each row's results cover."""
        places = np.arange(rows.rows.num_rows)
        return (
            np.maximum(rows.first, places + self._spec.start),
            np.minimum(rows.last, places + self._spec.end),
        )

    def _near(self, rows: Ordered, marked: Flags) -> Flags:
        """Returns which rows have a marked row in their range."""
        first, last = self._window(rows)
        before = np.concatenate(([0], np.cumsum(marked)))
        return before[last + 1] > before[first]

    def _parts(self, rows: Ordered, places: Ints) -> Iterator[Ints]:
        """Yields some of the rows at a time, to limit the number of aggregated rows."""
        first, last = self._window(rows)
        ends = np.cumsum((last - first + 1)[places])
        begin = 0
        while begin < len(places):
            before = int(ends[begin - 1]) if begin else 0
            end = max(begin + 1, int(np.searchsorted(ends, before + AT_ONCE, "right")))
            yield places[begin:end]
            begin = end

    def _results(self, rows: Ordered, places: Ints) -> list[pa.Array]:
        """Returns one column per aggregate, for these rows."""
        schema, parts = self.context.output_schema, []
        for some in self._parts(rows, places):
            first, last = (bounds[some] for bounds in self._window(rows))
            counts = last - first + 1
            groups = Groups(np.repeat(np.arange(len(some)), counts), len(some))
            near = pa.array(ranges(first, counts))
            columns = {
                name: _of_one(rows.rows.column(name).take(near), how)
                for name, how in self._merges.items()
            }
            merged = {
                name: merge_column(how, columns[name], groups, columns)
                for name, how in self._merges.items()
            }
            results = []
            for item in self._spec.aggregates:
                guess = merged[item.final].type if item.final in merged else pa.float64()
                kind = schema.field(item.name).type if schema is not None else guess
                results.append(evaluate(item, merged, len(some), kind))
            parts.append(results)
        return [pa.concat_arrays(list(each)) for each in zip(*parts, strict=True)]


def _of_one(values: pa.Array, how: str) -> pa.Array:
    """Returns each row's partial result; a list of one for collected values."""
    if how != DISTINCT:
        return values
    there = as_numpy(values.is_valid()).astype(np.int32)
    offsets = np.concatenate(([0], np.cumsum(there))).astype(np.int32)
    return pa.ListArray.from_arrays(pa.array(offsets), values.drop_null())


def _differ(one: list[pa.Array], other: list[pa.Array]) -> Flags:
    """Returns whether the results of the same row differ."""
    rows = len(one[0])
    codes = group([pa.concat_arrays(both) for both in zip(one, other, strict=True)]).codes
    different: Flags = codes[:rows] != codes[rows:]
    return different


def _analyze(step: AnalysisStep, spec: RowsBetweenSpec) -> AnalyzedOutput:
    given = step.inputs[0]
    assert given.schema is not None and given.final is not None, "it follows its partial half"
    partials = {name for item in spec.aggregates for name in item.merge}
    rows = [field for field in given.schema if field.name not in {*partials, ROW_KIND}]
    results = [given.final.field(item.name) for item in spec.aggregates]
    check_order(
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


KINDS = (OperatorKind(RowsBetweenSpec, _analyze, alone(RowsBetween)),)
