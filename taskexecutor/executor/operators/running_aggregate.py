"""The keyed half of an aggregation without windows."""

from __future__ import annotations

import pyarrow as pa

from firesteel.common.config import Configuration, options
from firesteel.operator import OperatorState, StreamOperator
from firesteel.plan.specs import RunningAggregateSpec
from taskexecutor.executor.aggregation.columns import as_table
from taskexecutor.executor.aggregation.dense_partials import DensePartials
from taskexecutor.executor.aggregation.distinct_counts import DISTINCT, DistinctCounts
from taskexecutor.executor.aggregation.keyed_partials import KeyedPartials
from taskexecutor.executor.aggregation.merging import (
    columns_of_partials,
    meaning_of_partials,
    merges_of,
)
from taskexecutor.executor.aggregation.results import aggregate_results

# Partial rows that wait; if all state is in memory, twice the number of keys if that is more.
BUNDLE_ROWS = 262_144
PART_ROWS = 65_536  # of a batch's results


class RunningAggregate(StreamOperator):
    """Holds the partials of all keys. Each flush emits one row per key that the bundle changed: a
    stream of upserts by key. In a batch, each key has one row, at the end.
    """

    def __init__(self, spec: RunningAggregateSpec) -> None:
        self._spec = spec
        merges = merges_of(spec.aggregates)
        self._merges = {name: "sum" if how == DISTINCT else how for name, how in merges.items()}
        self._waiting: list[pa.RecordBatch] = []
        self._waiting_rows = 0

    def initialize_state(self, state: OperatorState) -> None:
        keys, schema = self._spec.key_columns, self.context.input_schemas[0]
        self._memory = state.columns
        self._distinct = DistinctCounts(keys, merges_of(self._spec.aggregates), self._memory)
        self._state: DensePartials | KeyedPartials = DensePartials(keys, self._merges, self._memory)
        meaning = meaning_of_partials(self._spec.aggregates, schema)
        columns = columns_of_partials(self._spec.aggregates, schema)
        self._totals = state.keyed_rows("totals", keys, meaning, columns)
        self._seen = {
            name: state.keyed_rows(f"values of {name}", keys, {**meaning, "values": columns[name]})
            for name in self._distinct.names
        }

    def open(self) -> None:
        self._updates = Configuration(self.context.config).get(options.RUNTIME_MODE) != "BATCH"
        for name, seen in self._seen.items():
            if (values := seen.restored()) is not None:
                self._distinct.restore(name, values)
        if (totals := self._totals.restored()) is not None:
            if self._memory.piece_bytes is None:
                totals = totals.combine_chunks()
            for batch in totals.to_batches():
                self._add([batch])

    def snapshot_state(self, checkpoint_id: int) -> None:
        totals = self._state.frozen()
        self._totals.keep(lambda: as_table(rows) if (rows := totals()) else None)
        for name, seen in self._seen.items():
            seen.keep(self._distinct.frozen(name))

    def process_batch(self, batch: pa.RecordBatch, input_index: int) -> None:
        if not batch.num_rows:
            return
        self._waiting.append(batch)
        self._waiting_rows += batch.num_rows
        # The more there are, the fewer updates.
        many = self._updates and not self._memory.piece_bytes
        if self._waiting_rows >= max(BUNDLE_ROWS, 2 * self._state.keys if many else 0):
            self.flush()

    def flush(self) -> None:
        if not self._waiting:
            return
        waiting, self._waiting, self._waiting_rows = self._waiting, [], 0
        changed = self._add(self._distinct.replaced(waiting))
        if self._updates:
            self._emit(changed)

    def _emit(self, rows: pa.RecordBatch) -> None:
        self.output.emit(
            aggregate_results(
                self.context, self._spec.aggregates, self._spec.key_columns, rows, {}, {}
            )
        )

    def _add(self, bundle: list[pa.RecordBatch]) -> pa.RecordBatch:
        if isinstance(self._state, DensePartials):
            changed = self._state.add(bundle)
            if changed is not None:
                return changed
            dense, self._state = (
                self._state,
                KeyedPartials(self._spec.key_columns, self._merges, self._memory),
            )
            for rows in dense.frozen()() if dense.keys else ():
                self._state.add(as_table([rows]))
        return self._state.add(as_table(bundle))

    def finish(self) -> None:
        if not self._updates:
            for rows in self._state.parts(PART_ROWS):
                self._emit(rows)

    def close(self) -> None:
        self._waiting = []
