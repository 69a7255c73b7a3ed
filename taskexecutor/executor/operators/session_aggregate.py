"""The keyed half of an aggregation in session windows by Spark's rules."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pyarrow.compute as pc

from firesteel.column_names import column_index
from firesteel.common.units import MIB
from firesteel.errors import FiresteelError
from firesteel.operator import OperatorState
from firesteel.operators import SessionAggregateSpec
from taskexecutor.executor.analysis.checks import check_keys
from taskexecutor.executor.analysis.step import AnalysisStep, AnalyzedOutput
from taskexecutor.executor.columnar import choose
from taskexecutor.executor.columnar.grouping.columns import as_table
from taskexecutor.executor.columnar.grouping.key_times import instants
from taskexecutor.executor.columnar.grouping.merging import (
    ROWS,
    aggregate_results,
    columns_of_partials,
    meaning_of_partials,
    merges_of,
)
from taskexecutor.executor.columnar.grouping.session_rows import SessionRows
from taskexecutor.executor.operators.aggregates import finished_schema
from taskexecutor.executor.operators.query_watermark import QueryOperator
from taskexecutor.executor.operators.registry import OperatorKind, alone

WAITING_ROWS = 262_144  # rows that are not merged yet, if greater than the number of sessions
PART_ROWS = 65_536  # rows of a batch of results
MOST_BYTES = 64 * MIB  # of the sessions of a part, if state is paged


class SessionAggregate(QueryOperator):
    """Rows wait, and are merged when a session may be over or must be emitted."""

    computes = choose.GROUPING

    def __init__(self, spec: SessionAggregateSpec) -> None:
        super().__init__(expires=spec.mode == "append", at_barriers=spec.at_barriers)
        self._spec = spec
        self._merges = merges_of(spec.aggregates)
        self._waiting: list[pa.RecordBatch] = []
        self._waiting_rows = 0
        self._results_due: list[pa.RecordBatch] = []  # held back until a barrier
        self._incomplete = False  # sessions have changed since all were emitted

    def initialize_state(self, state: OperatorState) -> None:
        super().initialize_state(state)
        spec, schema = self._spec, self.context.input_schemas[0]
        self._memory = state.columns
        self._sessions = SessionRows(
            spec.key_columns, spec.start, spec.end, self._merges, self._memory
        )
        keys = [name for name in spec.key_columns if name not in (spec.start, spec.end)]
        meaning = {
            "sessions": f"{spec.start}, {spec.end}",
            **meaning_of_partials(spec.aggregates, schema),
        }
        self._state = state.keyed_rows(
            "sessions", keys, meaning, columns_of_partials(spec.aggregates, schema)
        )

    def open(self) -> None:
        if (restored := self._state.restored()) is not None:
            for batch in restored.combine_chunks().to_batches():
                self._sessions.add([batch])

    def snapshot_state(self, checkpoint_id: int) -> None:
        super().snapshot_state(checkpoint_id)
        self._merge()
        rows = self._sessions.frozen()
        self._state.keep(lambda: as_table(batches) if (batches := rows()) else None)

    def process_batch(self, batch: pa.RecordBatch, input_index: int) -> None:
        batch = batch.select([*self._spec.key_columns, *self._merges])
        if self._spec.mode == "append":
            batch = self._in_time(batch)
        if not batch.num_rows:
            return
        self._incomplete = True
        self._waiting.append(batch)
        self._waiting_rows += batch.num_rows
        if self._waiting_rows > max(WAITING_ROWS, self._sessions.rows):
            self._merge()

    def _in_time(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        late = instants(batch.column(self._spec.end)) <= self._watermark_us
        if not late.any():
            return batch
        late_rows = pa.array(late)
        self._late.inc(pc.sum(batch.column(ROWS).filter(late_rows)).as_py())
        return batch.filter(pc.invert(late_rows))

    def _merge(self) -> None:
        waiting, self._waiting, self._waiting_rows = self._waiting, [], 0
        if waiting:
            self._sessions.add(waiting)

    def expire(self) -> None:
        """Emits the sessions that are over, and forgets them."""
        self._merge()
        for rows in self._sessions.expired(self._watermark_us, self._at_once()):
            if self._spec.at_barriers:
                self._results_due.append(self._results(rows))
            else:
                self.output.emit(self._results(rows))

    def emit_held(self) -> None:
        due, self._results_due = self._results_due, []
        for results in due:
            self.output.emit(results)
        if self._spec.mode == "complete" and self._incomplete:
            self._merge()
            for results in self._all_results():
                self.output.emit(results)
        self._incomplete = False

    def finish(self) -> None:
        self.emit_held()

    def _all_results(self) -> Iterator[pa.RecordBatch]:
        yield from map(self._results, self._sessions.parts(self._at_once()))

    def _results(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        spec = self._spec
        return aggregate_results(self.context, spec.aggregates, spec.key_columns, rows, {}, {})

    def _at_once(self) -> int:
        if self._memory.piece_bytes is None:
            return PART_ROWS
        return min(PART_ROWS, max(1, MOST_BYTES // self._sessions.row_bytes))

    def close(self) -> None:
        self._waiting = []


def _analyze(step: AnalysisStep, spec: SessionAggregateSpec) -> AnalyzedOutput:
    schema = finished_schema(step)
    check_keys(schema, spec.key_columns)
    if step.inputs[0].retracting:
        raise FiresteelError(
            f"{step.operator_name}: session windows are not supported for changes of rows;"
            " aggregate rows instead"
        )
    for name in (spec.start, spec.end):
        kind = schema.field(column_index(schema, name)).type
        if name not in spec.key_columns or not pa.types.is_timestamp(kind):
            raise FiresteelError(
                f"{step.operator_name}: the bound {name!r} ({kind}) of sessions must be one of the"
                " key columns and a timestamp"
            )
    updating = None
    if spec.mode == "complete":
        updating = step.updating(
            when="all sessions again when one has changed",
            instead="emit each session once, when it is over: output mode append",
        )
    return AnalyzedOutput(schema=schema, updating=updating)


KINDS = (OperatorKind(SessionAggregateSpec, _analyze, alone(SessionAggregate)),)
