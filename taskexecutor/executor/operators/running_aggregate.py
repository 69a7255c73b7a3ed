"""The keyed half of an aggregation without windows."""

from __future__ import annotations

from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from firesteel.column_names import column_index
from firesteel.common.units import MIB
from firesteel.errors import FiresteelError
from firesteel.operator import OperatorState
from firesteel.operators import RunningAggregateSpec
from firesteel.row_kind import DELETE, INSERT, ROW_KIND
from taskexecutor.executor.analysis.checks import check_keys
from taskexecutor.executor.analysis.step import AnalysisStep, AnalyzedOutput, Retracting
from taskexecutor.executor.columnar import choose
from taskexecutor.executor.columnar.grouping.columns import as_array, as_table
from taskexecutor.executor.columnar.grouping.dense_partials import DensePartials
from taskexecutor.executor.columnar.grouping.distinct_counts import DISTINCT, DistinctCounts
from taskexecutor.executor.columnar.grouping.key_times import instants
from taskexecutor.executor.columnar.grouping.keyed_partials import KeyedPartials
from taskexecutor.executor.columnar.grouping.latest_rows import LatestRows
from taskexecutor.executor.columnar.grouping.merging import (
    ROWS,
    aggregate_results,
    columns_of_partials,
    meaning_of_partials,
    merges_of,
)
from taskexecutor.executor.columnar.grouping.retraction import LastResults, Retraction
from taskexecutor.executor.numbers import as_numpy
from taskexecutor.executor.operators.aggregates import finished_schema
from taskexecutor.executor.operators.columns import with_kind
from taskexecutor.executor.operators.query_watermark import QueryOperator
from taskexecutor.executor.operators.query_windows import QueryWindows
from taskexecutor.executor.operators.registry import OperatorKind, alone
from taskexecutor.executor.runtime_mode import is_batch

# Waiting partial rows; if all state is in memory, at least twice the number of keys.
BUNDLE_ROWS = 262_144
PART_ROWS = 65_536  # rows of a batch's results
MOST_BYTES = 64 * MIB  # state that a bundle or a part affects, if state is paged


class RunningAggregate(QueryOperator):
    """Holds the partials of all keys. Each flush emits one row per key that the bundle changed: a
    stream of upserts by key. In a batch, each key has one row, at the end.

    If the input or the result is a changelog stream, a key's previous row is deleted when its
    result changes or the key has no rows left.
    """

    computes = choose.GROUPING

    def __init__(self, spec: RunningAggregateSpec) -> None:
        self._expires = "" if spec.mode == "complete" else spec.expires
        super().__init__(expires=bool(self._expires), at_barriers=spec.at_barriers)
        self._spec = spec
        merges = merges_of(spec.aggregates)
        self._merges = {name: "sum" if how == DISTINCT else how for name, how in merges.items()}
        self._waiting: list[pa.RecordBatch] = []
        self._waiting_rows = 0
        self._bundle_rows = BUNDLE_ROWS
        self._changes: Retraction | None = None
        self._last: LastResults | None = None
        # Held back until a barrier: in update mode the merged rows of changed keys, in append mode
        # results.
        self._changed = LatestRows(spec.key_columns)
        self._results_due: list[pa.RecordBatch] = []
        self._incomplete = False  # keys have changed since all were emitted

    def initialize_state(self, state: OperatorState) -> None:
        super().initialize_state(state)
        keys, schema = self._spec.key_columns, self.context.input_schemas[0]
        aggregates, self._memory = self._spec.aggregates, state.columns
        meaning = meaning_of_partials(aggregates, schema)
        if self._spec.window is not None:
            meaning = {"window": repr(self._spec.window), **meaning}
        columns = columns_of_partials(aggregates, schema)
        if schema is not None and ROW_KIND in schema.names:
            name = self.context.operator_name
            self._changes = Retraction(aggregates, keys, schema, name, self._memory)
            self._merges = self._changes.merges
            columns_of_totals = self._changes.columns(columns)
        else:
            columns_of_totals = columns
        self._start()
        if self._spec.forgets:
            return
        self._totals = state.keyed_rows("totals", keys, meaning, columns_of_totals)
        seen = self._changes.kept_values if self._changes else [(n,) for n in self._distinct.names]
        self._seen = {
            names: state.keyed_rows(
                f"values of {', '.join(names)}",
                keys,
                {**meaning, "values": ", ".join(columns[name] for name in names)},
            )
            for names in seen
        }

    def _start(self) -> None:
        """Starts without any key."""
        keys = self._spec.key_columns
        self._distinct = DistinctCounts(keys, merges_of(self._spec.aggregates), self._memory)
        self._state: DensePartials | KeyedPartials = (
            self._keyed_partials()
            if self._expires
            else DensePartials(keys, self._merges, self._memory)
        )

    def open(self) -> None:
        self._updates = not is_batch(self.context)
        if self._spec.forgets:
            return
        for names, seen in self._seen.items():
            if (values := seen.restored()) is None:
                continue
            if self._changes is not None:
                self._changes.restore(names, values)
            else:
                self._distinct.restore(names[0], values)
        if (totals := self._totals.restored()) is not None:
            if self._memory.piece_bytes is None:
                totals = totals.combine_chunks()
            for batch in totals.to_batches():
                self._add([batch])
        if self._updates and (self._changes is not None or self._spec.changes):
            self._last = LastResults(self._spec.key_columns, self._memory)
            for rows in self._state.parts(PART_ROWS):
                self._last.replaced(*self._results(rows))

    def snapshot_state(self, checkpoint_id: int) -> None:
        super().snapshot_state(checkpoint_id)
        if self._spec.forgets:
            return
        totals, changes = self._state.frozen(), self._changes is not None

        def rows() -> pa.Table | None:
            found = as_table(batches) if (batches := totals()) else None
            # Drops keys without rows.
            return found.filter(pc.field(ROWS) > 0) if changes and found is not None else found

        self._totals.keep(rows)
        for names, seen in self._seen.items():
            seen.keep(
                self._changes.frozen(names) if self._changes else self._distinct.frozen(names[0])
            )

    def process_batch(self, batch: pa.RecordBatch, input_index: int) -> None:
        if not batch.num_rows:
            return
        self._waiting.append(batch)
        self._waiting_rows += batch.num_rows
        # The more rows wait, the fewer updates are emitted.
        many = self._updates and not self._memory.piece_bytes
        if self._waiting_rows >= max(self._bundle_rows, 2 * self._state.keys if many else 0):
            self.flush()

    def flush(self) -> None:
        if not self._waiting:
            return
        waiting, self._waiting, self._waiting_rows = self._waiting, [], 0
        if self._expires:
            waiting = [each for each in map(self._in_time, waiting) if each.num_rows]
            if not waiting:
                return
        replaced = self._changes.signed if self._changes else self._distinct.replaced
        changed = self._add(replaced(waiting))
        self._bundle_rows = self._at_once(BUNDLE_ROWS)
        if self._last is not None:
            gone, come = self._last.replaced(*self._results(changed))
            self._emit(gone, DELETE)
            self._emit(come, INSERT)
        elif self._updates:
            self._emit_changed(changed)

    def _in_time(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Returns the rows of keys that have not expired."""
        late = instants(batch.column(self._expires)) <= self._watermark_us
        if not late.any():
            return batch
        self._late.inc(int(as_numpy(batch.column(ROWS))[late].sum()))
        return batch.filter(pa.array(~late))

    def _emit_changed(self, changed: pa.RecordBatch) -> None:
        if self._spec.mode == "complete":
            self._incomplete = True
        elif self._spec.mode == "update" and self._spec.at_barriers:
            self._changed.add(changed)
        elif self._spec.mode == "update":
            self._emit(self._results(changed).results)

    def expire(self) -> None:
        """Forgets the keys that the watermark has reached; in append mode, emits them."""
        state = self._state
        assert isinstance(state, KeyedPartials)
        expired = state.expire(self._watermark_us)
        if self._spec.mode == "append":
            for rows in state.parts_of(expired, self._at_once(PART_ROWS)):
                results = self._results(rows).results
                if self._spec.at_barriers:
                    self._results_due.append(results)
                else:
                    self._emit(results)
        if state.wasteful:
            self._state = state.without_expired()
            self._distinct = self._distinct.only(self._is_live)

    def _is_live(self, keys: pa.Table) -> pa.Table:
        live = instants(as_array(keys.column(self._expires))) > self._watermark_us
        return keys.filter(pa.array(live))

    def emit_held(self) -> None:
        due, self._results_due = self._results_due, []
        for results in due:
            self._emit(results)
        changed = self._changed.take()
        if changed is not None:
            for start in range(0, changed.num_rows, PART_ROWS):
                self._emit(self._results(changed.slice(start, PART_ROWS)).results)
        if self._incomplete:
            self._incomplete = False
            for rows in self._state.parts(self._at_once(PART_ROWS)):
                self._emit(self._results(rows).results)
        if self._spec.forgets:
            self._start()

    def _results(self, changed: pa.RecordBatch) -> _Results:
        """Returns the results of merged rows."""
        keys = self._spec.key_columns
        asked, rows = changed.select(keys), changed
        if self._changes is not None:
            asked, rows = self._changes.partials(changed)
        return _Results(
            asked, aggregate_results(self.context, self._spec.aggregates, keys, rows, {}, {})
        )

    def _emit(self, results: pa.RecordBatch, kind: str = "") -> None:
        if not results.num_rows:
            return
        if kind:
            results = results.append_column(ROW_KIND, pa.repeat(kind, results.num_rows))
        self.output.emit(results)

    def _add(self, bundle: list[pa.RecordBatch]) -> pa.RecordBatch:
        if isinstance(self._state, DensePartials):
            changed = self._state.add(bundle)
            if changed is not None:
                return changed
            dense, self._state = self._state, self._keyed_partials()
            for rows in dense.frozen()() if dense.keys else ():
                self._state.add(as_table([rows]))
        return self._state.add(as_table(bundle))

    def _keyed_partials(self) -> KeyedPartials:
        return KeyedPartials(
            self._spec.key_columns, self._merges, self._memory, time_column=self._expires
        )

    def finish(self) -> None:
        self.emit_held()
        if not self._updates:
            changes = self._changes is not None or self._spec.changes
            for rows in self._state.parts(self._at_once(PART_ROWS)):
                self._emit(self._results(rows).results, INSERT if changes else "")

    def _at_once(self, rows: int) -> int:
        """Returns at most `rows`, fewer if the rows of keys are large, such as lists of values."""
        if self._memory.piece_bytes is None:
            return rows
        return min(rows, max(1, MOST_BYTES // self._state.row_bytes))

    def close(self) -> None:
        self._waiting = []


class _Results(NamedTuple):
    keys: pa.RecordBatch  # that have changed
    results: pa.RecordBatch  # of those that have rows


def _analyze(step: AnalysisStep, spec: RunningAggregateSpec) -> AnalyzedOutput:
    schema = finished_schema(step)
    _check_mode(step, spec, schema)
    if spec.changes or step.inputs[0].retracting:
        return AnalyzedOutput(
            schema=with_kind(schema),
            retracting=Retracting(
                who=step.operator_name,
                because="a key's row is replaced when its values change",
                instead="aggregate its input instead, or in windows:"
                " key_by(...).window(...).aggregate(...)",
            ),
        )
    updating = None
    if not step.batch and spec.mode != "append":  # where each key has one row
        updating = step.updating(
            when="a row for a key again whenever its values change",
            instead="make it emit changes that can be retracted: aggregate(..., changes=True),"
            " give it windows: key_by(...).window(...).aggregate(...)",
        )
    return AnalyzedOutput(schema=schema, updating=updating)


def _check_mode(step: AnalysisStep, spec: RunningAggregateSpec, schema: pa.Schema) -> None:
    what = f"{step.operator_name}: output mode {spec.mode!r}"
    if spec.forgets and not (spec.mode == "update" and spec.at_barriers):
        raise FiresteelError(
            f"{what}: keys are forgotten at barriers, where their rows are emitted"
        )
    if (spec.mode != "update" or spec.expires or spec.at_barriers) and (
        spec.changes or step.inputs[0].retracting
    ):
        raise FiresteelError(f"{what} is not supported for changes of rows; aggregate rows instead")
    if spec.mode == "append" and not spec.expires:
        raise FiresteelError(
            f"{what} needs a key with event time, which determines when it is complete; group by a"
            " column that has a watermark, or by a window of it"
        )
    if spec.expires:
        check_keys(schema, spec.key_columns)
        kind = schema.field(column_index(schema, spec.expires)).type
        if spec.expires not in spec.key_columns or not pa.types.is_timestamp(kind):
            raise FiresteelError(
                f"{what}: keys expire by column {spec.expires!r} ({kind}), which must be one of the"
                " key columns and a timestamp"
            )


def running_aggregate(spec: RunningAggregateSpec) -> RunningAggregate | QueryWindows:
    return QueryWindows(spec) if spec.in_panes else RunningAggregate(spec)


KINDS = (OperatorKind(RunningAggregateSpec, _analyze, alone(running_aggregate)),)
