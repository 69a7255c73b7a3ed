"""Joins each row with the version of its key that is valid at the row's time: `as_of_join`."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from firesteel.elements import MAX_WATERMARK, Watermark
from firesteel.errors import FiresteelError
from firesteel.operator import (
    ColumnMemory,
    OperatorState,
    Output,
    RuntimeContext,
    StreamOperator,
)
from firesteel.operators import AsOfSpec, JoinSpec
from firesteel.row_kind import DELETE, INSERT, ROW_KIND
from taskexecutor.executor.column_memory import IN_MEMORY
from taskexecutor.executor.columnar import choose
from taskexecutor.executor.columnar.grouping.columns import described
from taskexecutor.executor.columnar.grouping.grouping import Ints
from taskexecutor.executor.columnar.grouping.key_index import KeyIndex
from taskexecutor.executor.numbers import as_numpy
from taskexecutor.executor.operators.columns import event_times
from taskexecutor.executor.operators.joins.joined_columns import (
    NO_WINDOWS,
    Flags,
    JoinedColumns,
    numbers_of,
    without_key,
)
from taskexecutor.executor.operators.joins.versions import Versions, restored
from taskexecutor.executor.operators.joins.waiting_rows import WaitingRows

BUNDLE_ROWS = 65_536  # rows of both sides that wait to be added
LEAST = 65_536  # number of versions and keys below which none are searched for removal

_LEFT, _RIGHT = 0, 1
_LEAST_TIME = -(2**63)


class AsOfJoin(StreamOperator):
    """Rows of the left stream wait for the combined watermark: then all versions that may be valid
    at their times have arrived.

    The operator keeps each key's latest version up to the watermark, and all later ones. A late
    version is valid for rows that are waiting or still to arrive.

    In a batch, all rows wait for the end of event time, and none is late.
    """

    computes = choose.GROUPING
    inputs = 2
    keeps_event_time = True

    def __init__(self, spec: JoinSpec) -> None:
        assert isinstance(spec.within, AsOfSpec)
        self._spec = spec
        self._times = spec.within.times
        self._tolerance_us = spec.within.tolerance_us
        self._keys = spec.left_keys, spec.right_keys
        self._bundles: tuple[list[pa.RecordBatch], list[pa.RecordBatch]] = ([], [])
        self._bundled_rows = 0
        self._forget_at = LEAST
        self._memory: ColumnMemory = IN_MEMORY
        self._clear()

    def _clear(self) -> None:
        self._index = KeyIndex(self._memory)
        self._versions = Versions(self._memory)
        self._waiting = WaitingRows(self._memory)

    def setup(self, context: RuntimeContext, output: Output) -> None:
        super().setup(context, output)
        self._late = context.counter("numLateRecordsDropped")
        self._late_versions = context.counter("numLateVersions")
        self._columns = JoinedColumns.of_inputs(self._spec, context)

    def initialize_state(self, state: OperatorState) -> None:
        self._memory = state.columns
        self._clear()
        meaning = {"how": self._spec.how, "within": str(self._spec.within)}
        self._left_rows, self._right_rows = (
            state.keyed_rows(name, keys, {**meaning, "input": described(schema)})
            for name, keys, schema in zip(
                ("left rows", "right rows"), self._keys, self.context.input_schemas, strict=True
            )
        )

    def open(self) -> None:
        if (table := self._left_rows.restored()) is not None:
            self._waiting.restore(table)
        self._load(self._right_rows.restored())

    def _load(self, table: pa.Table | None) -> None:
        """Loads versions into an empty instance."""
        for found in restored(table, self._memory) if table is not None else ():
            numbers = numbers_of(self._index, found.rows, self._keys[_RIGHT])
            self._versions.add(found.rows, numbers, found.times, found.deletions)

    def snapshot_state(self, checkpoint_id: int) -> None:
        self._left_rows.keep(self._waiting.frozen())
        self._right_rows.keep(self._versions.frozen(*self._needed()))

    def _needed(self) -> tuple[int, int]:
        """Returns the time up to which rows have been joined, and the least time of a version that
        a later row may join.
        """
        watermark_us = self._watermark_us
        if self._tolerance_us is None:
            return watermark_us, _LEAST_TIME
        return watermark_us, max(watermark_us + 1 - self._tolerance_us, _LEAST_TIME)

    @property
    def _watermark_us(self) -> int:
        return _LEAST_TIME if self._spec.whole else self.context.timers.current_watermark_us

    def process_batch(self, batch: pa.RecordBatch, input_index: int) -> None:
        self._bundles[input_index].append(batch.replace_schema_metadata(None))
        self._bundled_rows += batch.num_rows
        if self._bundled_rows >= BUNDLE_ROWS:
            self.flush()

    def flush(self) -> None:
        for side, add in enumerate((self._add_rows, self._add_versions)):
            if bundle := self._bundles[side]:
                rows = pa.concat_batches(bundle)
                bundle.clear()
                if rows.num_rows:
                    name = self.context.operator_name
                    times = event_times(rows, self._times.columns[side], name)
                    times = times + self._times.shifts_us[side]
                    add(rows, times, times <= self._watermark_us)
        self._bundled_rows = 0

    def _add_rows(self, rows: pa.RecordBatch, times: Ints, late: Flags) -> None:
        if (place := rows.schema.get_field_index(ROW_KIND)) >= 0:  # none of them is a deletion
            rows = rows.remove_column(place)
        if late.any():
            self._late.inc(int(late.sum()))
            rows, times = rows.filter(pa.array(~late)), times[~late]
        self._waiting.add(rows, times)

    def _add_versions(self, rows: pa.RecordBatch, times: Ints, late: Flags) -> None:
        if late.any():
            self._late_versions.inc(int(late.sum()))
        rows, deletions = self._deletions(rows)
        nulls = without_key(rows, self._keys[_RIGHT])
        if nulls.any():
            rows, times, deletions = rows.filter(pa.array(~nulls)), times[~nulls], deletions[~nulls]
        if rows.num_rows:
            numbers = numbers_of(self._index, rows, self._keys[_RIGHT])
            self._versions.add(rows, numbers, times, deletions)

    def _deletions(self, rows: pa.RecordBatch) -> tuple[pa.RecordBatch, Flags]:
        """Returns the rows without the column `row_kind`, and which of them are deletions."""
        place = rows.schema.get_field_index(ROW_KIND)
        if place < 0:
            return rows, np.zeros(rows.num_rows, np.bool_)
        kinds = rows.column(place)
        known = pc.is_in(kinds, pa.array([INSERT, DELETE]))
        if not pc.all(known).as_py():
            found = kinds.filter(pc.invert(known))[0].as_py()
            raise FiresteelError(
                f"{self.context.operator_name}: a version has {found!r} in its column {ROW_KIND!r};"
                f" allowed are {INSERT!r} and {DELETE!r}, after which its key has no version"
            )
        return rows.remove_column(place), as_numpy(pc.equal(kinds, DELETE))

    def process_watermark(self, watermark: Watermark) -> None:
        if self._spec.whole and watermark != MAX_WATERMARK:
            return
        for rows, times in self._waiting.due(watermark.timestamp_us):
            self._join(rows, times)
        self._forget()
        self.output.emit_watermark(watermark)

    def _join(self, rows: pa.RecordBatch, times: Ints) -> None:
        numbers = numbers_of(self._index, rows, self._keys[_LEFT])
        places = self._versions.valid(numbers, times, self._tolerance_us)
        places[without_key(rows, self._keys[_LEFT])] = -1
        if self._spec.how == "inner":
            found = places >= 0
            rows, places = rows.filter(pa.array(found)), places[found]
        if rows.num_rows:
            versions = self._versions.take(places)
            self.output.emit(self._columns.batch(rows, versions, NO_WINDOWS))

    def _forget(self) -> None:
        """Removes versions that no future row may join, and the numbers of keys without versions,
        once these may be half of all.
        """
        if self._versions.count + self._index.count < self._forget_at:
            return
        table = self._versions.frozen(*self._needed())()
        self._index, self._versions = KeyIndex(self._memory), Versions(self._memory)
        self._load(table)
        self._forget_at = max(LEAST, 2 * (self._versions.count + self._index.count))

    def close(self) -> None:
        for bundle in self._bundles:
            bundle.clear()
        self._clear()
