"""The first rows of each key as a changelog stream: `key_by(...).top_n(...)`, and the last row of
each key: `drop_duplicates(..., keep="last")`.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from firesteel.operator import OperatorState
from firesteel.operators import TopNSpec
from firesteel.row_kind import DELETE, INSERT, ROW_KIND
from taskexecutor.executor.analysis.checks import check_keys, check_order
from taskexecutor.executor.analysis.step import AnalysisStep, AnalyzedOutput, Retracting
from taskexecutor.executor.columnar.grouping.columns import described
from taskexecutor.executor.columnar.grouping.ordered_rows import Changed, OrderedRows
from taskexecutor.executor.columnar.grouping.ranked_rows import Ranked, RankedRows
from taskexecutor.executor.columnar.schemas import to_arrow
from taskexecutor.executor.operators.changelog_rows import ChangelogRows, changed_by
from taskexecutor.executor.operators.columns import RANK, without_kind
from taskexecutor.executor.operators.registry import OperatorKind, alone


class TopN(ChangelogRows):
    """Each flush emits, for all keys or some at a time, DELETE for rows that are no longer among
    the first of their keys or whose rank changes, and then INSERT for the new ones. In a batch, the
    first rows are emitted once, at the end.

    If the input is a changelog stream, all of its rows are kept, because any may become one of the
    first when others are deleted.
    """

    def __init__(self, spec: TopNSpec) -> None:
        super().__init__()
        self._spec = spec

    def initialize_state(self, state: OperatorState) -> None:
        spec, schema = self._spec, self.context.input_schemas[0]
        by = list(zip(spec.by, spec.ascending, strict=True))
        self._all: OrderedRows | None = None
        if schema is not None and ROW_KIND in schema.names:
            self._all = OrderedRows(
                spec.key_columns, by, state.columns, latest_first=spec.latest_first
            )
        self._rows = self._all or RankedRows(
            spec.key_columns,
            spec.n,
            by,
            ranked=spec.ranked,
            latest_first=spec.latest_first,
            memory=state.columns,
        )
        order = [f"{name} {'ASC' if up else 'DESC'}" for name, up in by]
        meaning = {
            "input": described(schema),
            "choice": f"{spec.n} by {', '.join([*order, 'latest' * spec.latest_first])}",
        }
        self._state = state.keyed_rows("rows", spec.key_columns, meaning)

    def change(self, bundle: pa.RecordBatch) -> None:
        if self._all is None:
            gone, come = self._rows.add(bundle)
        else:
            gone, come = self._first(changed_by(bundle, self._all, self.context.operator_name))
        if self.updates:
            self._emit(gone, DELETE)
            self._emit(come, INSERT)

    def emit_results(self, kept: Ranked) -> None:
        first = kept.ranks < self._spec.n
        self._emit(Ranked(kept.rows.filter(pa.array(first)), kept.ranks[first]), INSERT)

    def _first(self, changed: Changed) -> tuple[Ranked, Ranked]:
        """Returns the removed and the new rows among the first."""
        n, (before, after) = self._spec.n, (changed.before, changed.after)
        was, now = (np.arange(len(each.first)) - each.first for each in (before, after))
        same = (was[changed.stayed_before] < n) & (now[changed.stayed_after] < n)
        if self._spec.ranked:
            same &= was[changed.stayed_before] == now[changed.stayed_after]
        goes, comes = was < n, now < n
        goes[changed.stayed_before[same]] = False
        comes[changed.stayed_after[same]] = False
        gone, come = (
            Ranked(each.rows.filter(pa.array(some)), ranks[some])
            for each, some, ranks in ((before, goes, was), (after, comes, now))
        )
        return gone, come

    def _emit(self, ranked: Ranked, kind: str) -> None:
        rows = ranked.rows
        if not rows.num_rows:
            return
        if self._spec.ranked:
            rows = rows.append_column(RANK, pa.array((ranked.ranks + 1).astype(np.int32)))
        self.output.emit(rows.append_column(ROW_KIND, pa.repeat(kind, rows.num_rows)))


def _analyze(step: AnalysisStep, spec: TopNSpec) -> AnalyzedOutput:
    what = "top_n" if spec.ranked else "drop_duplicates"
    schema, given = to_arrow(step.frame().frame.schema), step.inputs[0]
    if given.retracting or given.settled:
        schema = without_kind(schema)
    check_keys(schema, spec.key_columns)
    added = [pa.field(RANK, pa.int32())] * spec.ranked + [pa.field(ROW_KIND, pa.string())]
    check_order(what, schema, spec.by, [field.name for field in added])
    return AnalyzedOutput(
        schema=pa.schema([*schema, *added]),
        retracting=Retracting(
            who=step.operator_name,
            because="later rows replace them",
            instead="give it windows: key_by(...).window(...).top_n(...)",
        ),
    )


KINDS = (OperatorKind(TopNSpec, _analyze, alone(TopN)),)
