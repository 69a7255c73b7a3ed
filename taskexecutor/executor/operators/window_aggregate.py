"""The keyed half of a windowed aggregation: merges partial rows per key and window, fires windows as event time passes them.

State is columnar. Partial rows are kept in Arrow slices per window end and merged with one group_by, either when a
window has gathered many of them or when it fires; all windows that one watermark passes are merged, finished and emitted
together, ordered by window. Python's work per batch is a few calls, whatever its rows.

Windows live at the operator, not row by row in the keyed state backend: a snapshot splits the merged tables by key group.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from firesteel.elements import MAX_TIMESTAMP_US, Watermark
from firesteel.errors import FiresteelError
from firesteel.operator import Output, RuntimeContext, StreamOperator
from firesteel.plan.aggregates import evaluate
from firesteel.plan.specs import WindowAggregateSpec

COMPACT_ROWS = 65_536  # partial rows of one window that wait unmerged, beyond as many as there are merged ones

_START, _END, _ROWS = "window_start", "window_end", "_rows"
_FIRE, _CLEAN_UP = "fire", "clean-up"  # namespaces of timers


@dataclass(slots=True)
class _Window:
    """The partial rows of all keys of this subtask for one window."""

    slices: list[pa.RecordBatch] = field(default_factory=list)
    rows: int = 0  # in slices
    merged_rows: int = 0  # of them, known to be one per key
    fired: bool = False


class WindowAggregate(StreamOperator):
    def __init__(self, spec: WindowAggregateSpec) -> None:
        self._spec = spec
        self._merge = {name: how for item in spec.aggregates for name, how in item.merge.items()} | {_ROWS: "sum"}
        self._windows: dict[int, _Window] = {}  # by window end
        self._due: list[int] = []  # ends of windows that fired and are not emitted yet, in order
        self._updated: list[pa.RecordBatch] = []  # late but allowed partials whose windows fired before

    def setup(self, context: RuntimeContext, output: Output) -> None:
        super().setup(context, output)
        self._late = context.counter("numLateRecordsDropped")

    def process_batch(self, batch: pa.RecordBatch, input_index: int) -> None:
        if not batch.num_rows:
            return
        ends_us = _as_int64(batch.column(batch.schema.get_field_index(_END)))
        watermark_us = self.context.timers.current_watermark_us
        # A window is over once the watermark has reached its last microsecond plus the allowed lateness.
        late = ends_us - 1 + self._spec.allowed_lateness_us <= watermark_us
        if late.any():
            dropped = batch.filter(pa.array(late))
            self._late.inc(pc.sum(dropped.column(dropped.schema.get_field_index(_ROWS))).as_py())
            batch, ends_us = batch.filter(pa.array(~late)), ends_us[~late]
            if not batch.num_rows:
                return
        for end_us, part in _by_window(batch, ends_us):
            self._add(end_us, part)
        if self._updated:
            self._emit_updates()

    def _add(self, end_us: int, part: pa.RecordBatch) -> None:
        window = self._windows.get(end_us)
        if window is None:
            window = self._windows[end_us] = _Window()
            timers = self.context.timers
            if end_us - 1 <= timers.current_watermark_us:
                window.fired = True  # late, but allowed: emitted at once
            else:
                timers.register_event_time(end_us - 1, namespace=(_FIRE, end_us))
            if self._spec.allowed_lateness_us:
                clean_up_us = min(end_us - 1 + self._spec.allowed_lateness_us, MAX_TIMESTAMP_US)
                timers.register_event_time(clean_up_us, namespace=(_CLEAN_UP, end_us))
        window.slices.append(part)
        window.rows += part.num_rows
        if window.fired:
            self._updated.append(part)
        if window.rows - window.merged_rows > COMPACT_ROWS + window.merged_rows:
            self._compact(window)

    def on_event_time(self, timestamp_us: int, key: Any, namespace: Any) -> None:
        what, end_us = namespace
        if what == _FIRE:
            self._due.append(end_us)
        elif end_us not in self._due:
            self._windows.pop(end_us, None)
        # else: one watermark passed the window's end and its lateness; it is dropped when it is emitted.

    def process_watermark(self, watermark: Watermark) -> None:
        self._emit_due()
        self.output.emit_watermark(watermark)

    def finish(self) -> None:
        self._emit_due()

    def close(self) -> None:
        self._windows.clear()
        self._due.clear()

    # -- firing

    def _emit_due(self) -> None:
        if not self._due:
            return
        due, self._due = sorted(self._due), []
        slices: list[pa.RecordBatch] = []
        for end_us in due:
            window = self._windows[end_us]
            slices += window.slices
            if end_us - 1 + self._spec.allowed_lateness_us <= self.context.timers.current_watermark_us:
                del self._windows[end_us]
            else:
                window.fired = True
        self._emit(self._merged(slices))

    def _emit_updates(self) -> None:
        """Late rows within the allowed lateness: their keys' results again, complete and at once."""
        updated, self._updated = self._updated, []
        touched = pa.Table.from_batches(updated).group_by([*self._spec.key_columns, _END], use_threads=False).aggregate([])
        ends_us = {int(end) for end in _as_int64(touched.column(_END).combine_chunks())}
        merged = self._merged([part for end_us in sorted(ends_us) for part in self._windows[end_us].slices])
        keys = [*self._spec.key_columns, _END]
        wanted = {tuple(row.values()) for row in touched.select(keys).to_pylist()}
        mask = [tuple(row.values()) in wanted for row in merged.select(keys).to_pylist()]
        self._emit(merged.filter(pa.array(mask)))

    def _emit(self, merged: pa.Table) -> None:
        order = pc.sort_indices(merged, sort_keys=[(_END, "ascending")])  # stable: keys stay as they came
        merged = merged.take(order).combine_chunks()
        partials = {name: _single(merged.column(name)) for name in self._merge if name != _ROWS}
        columns = [_single(merged.column(name)) for name in (*self._spec.key_columns, _START, _END)]
        names = [*self._spec.key_columns, _START, _END]
        schema = self.context.output_schema
        for item in self._spec.aggregates:
            kind = schema.field(item.name).type if schema is not None else _guess(item.final, partials)
            columns.append(evaluate(item, partials, merged.num_rows, kind))
            names.append(item.name)
        batch = (
            pa.RecordBatch.from_arrays(columns, schema=schema)
            if schema is not None
            else pa.RecordBatch.from_arrays(columns, names)
        )
        self.output.emit(batch)

    # -- merging

    def _compact(self, window: _Window) -> None:
        schema = window.slices[0].schema
        merged = self._merged(window.slices).cast(schema).combine_chunks()
        window.slices = merged.to_batches()
        window.rows = window.merged_rows = merged.num_rows

    def _merged(self, slices: list[pa.RecordBatch]) -> pa.Table:
        """One row per key and window."""
        table = pa.Table.from_batches(slices)
        keys = [*self._spec.key_columns, _START, _END]
        aggregations = [(name, how, None) for name, how in self._merge.items()]
        try:
            grouped = table.group_by(keys, use_threads=False).aggregate(aggregations)
        except (pa.ArrowNotImplementedError, pa.ArrowInvalid) as error:
            raise FiresteelError(f"{self.context.operator_name}: partial results cannot be merged: {error}") from error
        columns = [grouped.column(key) for key in keys] + [grouped.column(f"{name}_{how}") for name, how in self._merge.items()]
        fields = [table.schema.field(name) for name in (*keys, *self._merge)]
        # pyarrow widens what it sums (decimals); the partial's own type is Spark's.
        return pa.table([c.cast(f.type) for c, f in zip(columns, fields, strict=True)], schema=pa.schema(fields))


def _by_window(batch: pa.RecordBatch, ends_us: np.ndarray[Any, Any]) -> list[tuple[int, pa.RecordBatch]]:
    """The batch cut by window end, in order of time."""
    if (ends_us == ends_us[0]).all():
        return [(int(ends_us[0]), batch)]
    if not (ends_us[1:] >= ends_us[:-1]).all():
        order = np.argsort(ends_us, kind="stable")
        batch, ends_us = batch.take(pa.array(order)), ends_us[order]
    starts = np.flatnonzero(np.concatenate(([True], ends_us[1:] != ends_us[:-1])))
    stops = np.append(starts[1:], len(ends_us))
    return [(int(ends_us[a]), batch.slice(a, b - a)) for a, b in zip(starts.tolist(), stops.tolist(), strict=True)]


def _as_int64(times: pa.Array) -> np.ndarray[Any, Any]:
    values: np.ndarray[Any, Any] = times.cast(pa.timestamp("us", times.type.tz)).view(pa.int64()).to_numpy(zero_copy_only=False)
    return values


def _single(column: pa.ChunkedArray) -> pa.Array:
    if column.num_chunks == 1:
        return column.chunk(0)
    return column.combine_chunks() if column.num_chunks else pa.array([], column.type)


def _guess(final: str, partials: dict[str, pa.Array]) -> pa.DataType:
    """Without analysis (tests): a partial as it is, anything computed as a double."""
    return partials[final].type if final in partials else pa.float64()
